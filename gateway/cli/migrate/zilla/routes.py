"""Convert the bindings that map paths to topics: `sse-kafka`, `http-kafka` and `ws-kafka`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.config.source.problems import format_loc
from gateway.config.types.section import Loc

from .bindings import Binding, BindingGraph, Way
from .kafka import ClusterConverter
from .listen import carry_access_control
from .paths import NarrowedPath, convert_location, convert_path, list_conditions, narrow_path

WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")
_NOT_REACHED = "no request reaches it: the bindings before it let no such path through"
_MERGE = (
    "a document of many records is not available: the path is a stream of the latest record of "
    "each key (mode: snapshot), which `?wait=` ends as a page"
)
_KEYED_ID = (
    "the id of an event is always the whole position, so that streams resume; format: envelope "
    "shows the key and the headers"
)
_OWN_IDEMPOTENCY_HEADER = "the header of clients is idempotency-key here; change the clients"


@dataclass(slots=True)
class _Mapping:
    """A route that is being converted.

    Attributes:
        paths: Its paths, as far as requests reach them, each with its source.
        notes: Values that are not carried, each with the reason.
    """

    binding: Binding
    source: SourceValue
    paths: list[tuple[NarrowedPath, SourceValue | None]]
    values: dict[str, Any] = field(default_factory=dict)
    carried: list[tuple[SourceValue, Loc]] = field(default_factory=list)
    notes: list[tuple[SourceValue, str]] = field(default_factory=list)

    def bind(self, text: str) -> str:
        return self.paths[0][0].bind(text) if self.paths else text

    def get_text(self, option: str) -> str:
        """Return an option of `with`; empty if it is missing or no text, which is refused later."""
        value = self.values.get("with", {}).get(option)
        return value if isinstance(value, str) else ""

    def take(self, source: SourceValue, *target: str, value: Any = None) -> None:
        """Set an option to a value of the source, or to `value`, if the source has it."""
        if not source.exists:
            return
        section: dict[str, Any] = self.values
        for step in target[:-1]:
            section = section.setdefault(step, {})
        new = source.value if value is None else value
        section[target[-1]] = self.bind(new) if isinstance(new, str) else new
        self.carried.append((source, target))


class RouteConverter:
    """Converts all routes of one file, and collects the guards that they require."""

    def __init__(self, graph: BindingGraph, clusters: ClusterConverter, draft: Draft) -> None:
        self.guard_names: set[str] = set()
        self._graph = graph
        self._clusters = clusters
        self._draft = draft

    def convert(self) -> None:
        for binding in self._graph.proxies:
            ways = self._graph.find_ways(binding)
            for source in binding.routes:
                self._convert_route(binding, source, ways)
            idempotency = binding.options.get("idempotency", "header")
            if idempotency.text.lower() == "idempotency-key":
                idempotency.imply("is the header of clients here")
            idempotency.omit(_OWN_IDEMPOTENCY_HEADER)
            binding.options.get("correlation").omit("no route of the binding waits for replies")
            for way in ways:
                self._report_conditions(way)

    def _convert_route(self, binding: Binding, source: SourceValue, ways: list[Way]) -> None:
        mapping = _Mapping(binding, source, self._find_paths(source, ways))
        if not mapping.paths:
            source.omit(_NOT_REACHED)
            return
        options = source.get("with")
        capability = options.get("capability").text
        if binding.type == "http-kafka" and capability == "produce":
            self._convert_produce(mapping, options)
        elif binding.type == "http-kafka":
            self._convert_fetch(mapping, options)
        else:
            self._convert_stream(mapping, options)
        start = source.get("exit").text or binding.source.get("exit").text
        self._finish(mapping, start, ways)

    def _find_paths(
        self, source: SourceValue, ways: list[Way]
    ) -> list[tuple[NarrowedPath, SourceValue | None]]:
        conditions: list[SourceValue | None] = list(source.get("when")) or [None]
        return [
            (narrowed, when)
            for when in conditions
            for narrowed in narrow_path(
                convert_path(when.get("path").text if when is not None else ""), ways
            )
        ]

    def _convert_stream(self, mapping: _Mapping, options: SourceValue) -> None:
        self._take_paths(mapping, ())
        mapping.take(options.get("topic"), "with", "topic")
        self._take_filters(mapping, options)
        event = options.get("event", "id")
        if event.text == "${etag}":
            event.imply("the id of an event is its position")
        mapping.notes.append((event, _KEYED_ID))
        if options.get("capability").text == "produce":
            mapping.values["with"]["produce"] = True
            mapping.carried.append((options.get("capability"), ("with", "produce")))
        mapping.notes.append((options.get("capability"), "streams can always be read"))

    def _convert_fetch(self, mapping: _Mapping, options: SourceValue) -> None:
        self._take_paths(mapping, ())
        filters = list(options.get("filters"))
        is_document = len(filters) == 1 and filters[0].get("key").exists
        if is_document and not options.get("merge").exists:
            mapping.take(options.get("capability"), "with", "capability")
        else:
            mapping.values["with"] = {"mode": "snapshot"}
            mapping.carried.append((options.get("capability"), ("with", "mode")))
            mapping.notes.append((options.get("merge"), _MERGE))
        mapping.take(options.get("topic"), "with", "topic")
        self._take_filters(mapping, options)

    def _convert_produce(self, mapping: _Mapping, options: SourceValue) -> None:
        methods = WRITE_METHODS if options.get("key").exists else WRITE_METHODS[:3]
        self._take_paths(mapping, methods)
        mapping.take(options.get("capability"), "with", "capability")
        mapping.take(options.get("topic"), "with", "topic")
        mapping.take(options.get("key"), "with", "key")
        for name, template in options.get("overrides").items():
            mapping.take(template, "with", "overrides", name)
        acks = options.get("acks")
        if acks.text in ("none", "in_sync_replicas"):
            mapping.take(acks, "with", "acks")
        weaker = (
            "leader_only is not available; a request waits for the in-sync replicas, its default"
        )
        mapping.notes.append((acks, weaker))
        reply_to = options.get("reply-to")
        mapping.take(reply_to, "with", "replyTo")
        if reply_to.exists:
            headers = mapping.binding.options.get("correlation", "headers")
            for name, option in (("reply-to", "replyTo"), ("correlation-id", "correlationId")):
                mapping.take(headers.get(name), "with", "correlation", option)
        own_id = "the gateway makes the correlation id; a service repeats the header of the request"
        mapping.notes.append((options.get("correlation-id"), own_id))
        location = options.get("async", "location")
        if location.exists and not reply_to.exists:
            mapping.notes.append((options.get("async"), "there is no reply without reply-to"))
            return
        converted = convert_location(location.text)
        mapping.take(location, "with", "async", "location", value=converted)
        if converted != location.text:
            comment = f"was {location.text}: an id is a segment of its own. Clients follow Location"
            mapping.values.setdefault("comments", []).append(comment)

    def _take_paths(self, mapping: _Mapping, methods: tuple[str, ...]) -> None:
        """Set the paths of a route; `methods` are for paths without one, and empty if it reads."""
        whens: list[dict[str, str]] = []
        for narrowed, when in mapping.paths:
            method = when.get("method") if when is not None else None
            loc: Loc = ("when", len(whens))
            if when is not None and methods and when.get("method").text == "GET":
                # The path of replies, which the location says again.
                for key in ("path", "method"):
                    mapping.carried.append((when.get(key), ("with", "async", "location")))
                continue
            chosen = (method.text,) if method is not None and method.exists else methods
            for each in chosen or ("",):
                is_needed = bool(each) and (bool(methods) or each != "GET")
                whens.append({"path": narrowed.path, **({"method": each} if is_needed else {})})
            if when is not None:
                mapping.carried.append((when.get("path"), (*loc, "path")))
                is_written = "method" in whens[-1]
                place = (*loc, "method") if is_written else (*loc, "path")
                mapping.carried.append((when.get("method"), place))
        mapping.values["when"] = whens

    def _take_filters(self, mapping: _Mapping, options: SourceValue) -> None:
        filters = []
        for index, source in enumerate(options.get("filters")):
            condition: dict[str, Any] = {}
            if source.get("key").exists:
                condition["key"] = mapping.bind(source.get("key").text)
                place: Loc = ("with", "filters", index, "key")
                mapping.carried.append((source.get("key"), place))
            for name, value in source.get("headers").items():
                condition.setdefault("headers", {})[name] = mapping.bind(value.text)
                mapping.carried.append((value, ("with", "filters", index, "headers", name)))
            filters.append(condition)
        if filters:
            mapping.values.setdefault("with", {})["filters"] = filters

    def _finish(self, mapping: _Mapping, start: str, ways: list[Way]) -> None:
        """Add a converted route, with the guards of all bindings on its way."""
        with_ = mapping.values.get("with", {})
        topic = mapping.get_text("topic")
        is_read = with_.get("capability") != "produce"
        cluster, behind = self._clusters.use_topic(start, topic, is_read=is_read)
        self._clusters.use_topic(start, mapping.get_text("replyTo"), is_read=False)
        if self._clusters.has_several:
            with_["kafka"] = cluster
        steps = [step for way in ways for step in way] + behind
        sources = [mapping.source, *(step.route for step in steps if step.route is not None)]
        guarded = [each for source in sources for each in source.get("guarded").items()]
        if guarded:
            guards: dict[str, list[str]] = {}
            for name, roles in guarded:
                known = guards.setdefault(name, [])
                known += [role for role in roles.list_texts() if role not in known]
                mapping.carried.append((roles, ("guarded", name)))
            mapping.values["guarded"] = guards
            self.guard_names |= guards.keys()
        self._add(mapping, ways)

    def _add(self, mapping: _Mapping, ways: list[Way]) -> None:
        comments = mapping.values.pop("comments", [])
        ordered: dict[str, Any] = {
            key: mapping.values[key] for key in ("when", "guarded", "with") if key in mapping.values
        }
        origin = f"from {format_loc(mapping.source.loc)}"
        loc = self._draft.add_route(ordered, origin)
        for comment in comments:
            self._draft.comment((*loc, "with", "async"), comment)
        for source, place in mapping.carried:
            source.carry(*loc, *place)
        for source, reason in mapping.notes:
            source.omit(reason, loc)
        servers = {step.binding.name: step.binding for way in ways for step in way}
        https = [binding for binding in servers.values() if binding.type == "http"]
        # With one http server its CORS is that of `listen`.
        if len(https) == 1 and len(self._graph.list_used("http", "server")) > 1:
            carry_access_control(https[0].options.get("access-control"), self._draft, loc)

    def _report_conditions(self, way: Way) -> None:
        """Record the paths and methods of conditions, which the paths of routes include."""
        reason = "the paths of routes are only those that it lets through"
        if not list_conditions(way):
            reason = "lets every path through"
        for step in way:
            for when in step.route.get("when") if step.route is not None else ():
                if step.binding.type == "http":
                    when.get("headers", ":path").imply(reason)
                    when.get("headers", ":method").omit(
                        "routes have methods of their own: when[].method"
                    )
                elif step.binding.type in ("sse", "ws"):
                    when.get("path").imply(reason)
