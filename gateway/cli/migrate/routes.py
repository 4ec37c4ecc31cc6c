"""Convert the bindings that map paths to topics, such as `sse-kafka`, and the guards of these."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gateway.config.source.problems import format_loc
from gateway.config.types.section import Loc

from .bindings import (
    Binding,
    BindingGraph,
    NarrowedPath,
    Way,
    convert_location,
    convert_path,
    list_conditions,
    narrow_path,
)
from .draft import Draft
from .kafka import ClusterConverter
from .listen import carry_access_control
from .report import SourceValue

WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")
_CERTIFICATE_FIELDS = {
    "subject.cn": "CN", "subject.o": "O", "subject.ou": "OU", "subject.c": "C", "subject.l": "L",
    "subject.st": "ST", "subject.dc": "DC", "subject.uid": "UID", "san.dns": "dns",
    "san.email": "email", "san.uri": "uri",
}  # fmt: skip


@dataclass
class RouteConverter:
    graph: BindingGraph
    clusters: ClusterConverter
    draft: Draft
    guard_names: set[str] = field(default_factory=set)

    def convert(self) -> None:
        for binding in self.graph.proxies:
            ways = self.graph.find_ways(binding)
            for source in binding.routes:
                paths = _find_paths(source, ways)
                if paths:
                    self._convert_route(binding, source, paths, ways)
                else:
                    source.omit(
                        "no request reaches it: the bindings before it let no such path through"
                    )
            idempotency = binding.options.get("idempotency", "header")
            if idempotency.text.lower() == "idempotency-key":
                idempotency.imply("is the header of clients here")
            binding.source.explain("proxy")
            for way in ways:
                _report_conditions(way)

    def _convert_route(
        self,
        binding: Binding,
        source: SourceValue,
        paths: list[tuple[NarrowedPath, SourceValue | None]],
        ways: list[Way],
    ) -> None:
        draft = self.draft
        loc = draft.append(("routes",), {})
        draft.comment(loc, f"from {format_loc(source.loc)}")
        route = _Route(draft, loc, paths[0][0], source.get("with"))
        is_written = route.options.get("capability").text == "produce"
        is_document = binding.type == "http-kafka"
        methods: tuple[str, ...] = ()
        if is_document and is_written:
            methods = WRITE_METHODS if route.options.get("key").exists else WRITE_METHODS[:3]
        self._set_paths(loc, paths, methods)
        if is_document and is_written:
            route.convert_produce(binding.options.get("correlation", "headers"))
        elif is_document:
            route.convert_fetch()
        else:
            route.convert_stream()
        start = source.get("exit").text or binding.source.get("exit").text
        self._set_guards_and_cluster(loc, source, start, ways)
        https = {
            step.binding.name: step.binding
            for way in ways
            for step in way
            if step.binding.type == "http"
        }
        # With one http server its CORS is that of `listen`.
        if len(https) == 1 and len(self.graph.list_used("http", "server")) > 1:
            (http,) = https.values()
            carry_access_control(http.options.get("access-control"), draft, loc)

    def _set_paths(
        self,
        loc: Loc,
        paths: list[tuple[NarrowedPath, SourceValue | None]],
        methods: tuple[str, ...],
    ) -> None:
        """Set the paths of a route; `methods` are for paths without one, and empty if it reads."""
        whens: list[dict[str, str]] = []
        carried: list[tuple[SourceValue, int]] = []
        for narrowed, when in paths:
            method = when.get("method") if when is not None else None
            if when is not None and methods and when.get("method").text == "GET":
                # The path of replies, which the location says again.
                for key in ("path", "method"):
                    when.get(key).carry(*loc, "async", "location")
                continue
            if when is not None:
                carried.append((when, len(whens)))
            chosen = (method.text,) if method is not None and method.exists else methods
            for each in chosen or ("",):
                is_needed = bool(each) and (bool(methods) or each != "GET")
                whens.append({"path": narrowed.path, **({"method": each} if is_needed else {})})
        is_one = len(whens) == 1
        self.draft.set(loc, {**(whens[0] if is_one else {"when": whens}), "guarded": {}})
        for when, number in carried:
            place = loc if is_one else (*loc, "when", number)
            when.get("path").carry(*place, "path")
            when.get("method").carry(*place, "method" if "method" in whens[number] else "path")

    def _set_guards_and_cluster(
        self, loc: Loc, source: SourceValue, start: str, ways: list[Way]
    ) -> None:
        """Set the cluster of a route, and the guards of all bindings on its way."""
        draft = self.draft
        is_read = draft.get((*loc, "capability")) != "produce"
        topic, reply_topic = (draft.get((*loc, name)) for name in ("topic", "replyTo"))
        # A value that is no text is refused later.
        topic = topic if isinstance(topic, str) else ""
        cluster, behind = self.clusters.use_topic(start, topic, is_read=is_read)
        if isinstance(reply_topic, str):
            self.clusters.use_topic(start, reply_topic, is_read=False)
        if self.clusters.has_several:
            draft.set((*loc, "kafka"), cluster)
        steps = [step for way in ways for step in way] + behind
        sources = [source, *(step.route for step in steps if step.route is not None)]
        guards: dict[str, list[str]] = draft.get((*loc, "guarded"))
        for each in sources:
            for name, roles in each.get("guarded").items():
                known = guards.setdefault(name, [])
                known += [role for role in roles.list_texts() if role not in known]
                roles.carry(*loc, "guarded", name)
        self.guard_names |= guards.keys()
        if not guards:
            draft.get(loc).pop("guarded")

    # guards

    def convert_guards(self, root: SourceValue) -> None:
        """Convert the guards of routes. Guards for Kafka are converted with the clusters."""
        for name, guard in root.get("guards").items():
            kind = guard.get("type").text
            if name not in self.guard_names:
                guard.omit("no route is guarded by it")
            elif kind in ("jwt", "x509"):
                section = ("guards", name)
                self.draft.comment(section, f"from guard {name}")
                self.draft.carry(guard.get("type"), *section, "type")
                convert = self._convert_jwt if kind == "jwt" else self._convert_x509
                convert(guard.get("options"), section)
            elif kind == "inline":
                guard.omit(
                    "one user with a fixed secret is no protection of a port that others reach; "
                    "guards of type jwt, http or x509 are. Its routes are left out"
                )
            else:
                guard.omit(
                    f"there is no guard of type {kind}; use jwt, http or x509. Its routes are left "
                    "out"
                )
        for http in self.graph.list_used("http", "server"):
            for name, authorization in http.options.get("authorization").items():
                self._convert_credentials(name, authorization)

    def _convert_jwt(self, options: SourceValue, section: Loc) -> None:
        draft = self.draft
        for option in ("issuer", "audience", "roles", "identity", "attributes"):
            draft.carry(options.get(option), *section, option)
        keys = options.get("keys")
        draft.carry(keys, *section, "keys")
        if isinstance(keys.value, list):
            draft.set((*section, "keys"), [_convert_key(key, draft) for key in keys])
        draft.carry_seconds(options.get("challenge"), *section, "challenge")

    def _convert_x509(self, options: SourceValue, section: Loc) -> None:
        fields = [(options.get("identity"), (*section, "identity"))]
        for name, value in options.get("attributes").items():
            fields.append((value, (*section, "attributes", name)))
        for source, target in fields:
            if part := _CERTIFICATE_FIELDS.get(source.text):
                self.draft.carry(source, *target, value=part)
        options.explain("guard x509", section)

    def _convert_credentials(self, name: str, authorization: SourceValue) -> None:
        if self.draft.get(("guards", name)) is None:
            what = f"no route is guarded by '{name}', or its guard is not carried over"
            authorization.omit(what)
            return
        for place in ("headers", "cookies", "query"):
            for key, form in authorization.get("credentials", place).items():
                target = ("guards", name, "credentials", place, key)
                if self.draft.get(target) is None:
                    text = re.sub(r"\{\s*credentials\s*\}", "{credentials}", form.text)
                    self.draft.set(target, text)
                form.carry(*target)


@dataclass
class _Route:
    """A route whose options are converted: its place in the draft, and a path of its requests."""

    draft: Draft
    loc: Loc
    path: NarrowedPath
    options: SourceValue

    def convert_stream(self) -> None:
        self._take("topic", "topic")
        self._take_filters()
        event, capability = self.options.get("event", "id"), self.options.get("capability")
        if event.text == "${etag}":
            event.imply("the id of an event is its position")
        if capability.text == "produce":
            self._set(capability, True, "produce")
        self.options.explain("stream", self.loc)

    def convert_fetch(self) -> None:
        filters = list(self.options.get("filters"))
        is_document = len(filters) == 1 and filters[0].get("key").exists
        if is_document and not self.options.get("merge").exists:
            self._take("capability", "capability")
        else:
            self.draft.set((*self.loc, "mode"), "snapshot")
            self.options.get("capability").carry(*self.loc, "mode")
            self.options.explain("fetch", self.loc)
        self._take("topic", "topic")
        self._take_filters()

    def convert_produce(self, correlation_headers: SourceValue) -> None:
        options = self.options
        for name in ("capability", "topic", "key"):
            self._take(name, name)
        for name, template in options.get("overrides").items():
            self._set(template, template.value, "overrides", name)
        if options.get("acks").text in ("none", "in_sync_replicas"):
            self._take("acks", "acks")
        options.explain("produce", self.loc)
        self._take("reply-to", "replyTo")
        has_replies = options.get("reply-to").exists
        if has_replies:
            for name, option in (("reply-to", "replyTo"), ("correlation-id", "correlationId")):
                header = correlation_headers.get(name)
                self._set(header, header.value, "correlation", option)
        location = options.get("async", "location")
        if location.exists and not has_replies:
            options.get("async").omit("there is no reply without reply-to", self.loc)
            return
        converted = convert_location(location.text)
        self._set(location, converted, "async", "location")
        if location.exists and converted != location.text:
            comment = f"was {location.text}: an id is a segment of its own. Clients follow Location"
            self.draft.comment((*self.loc, "async"), comment)

    def _take(self, option: str, target: str) -> None:
        source = self.options.get(option)
        self._set(source, source.value, target)

    def _set(self, source: SourceValue, value: Any, *target: str) -> None:
        if isinstance(value, str):
            value = self.path.bind(value)
        if source.exists:
            self.draft.set((*self.loc, *target), value)
            source.carry(*self.loc, *target)

    def _take_filters(self) -> None:
        filters: list[dict[str, Any]] = []
        for source in self.options.get("filters"):
            condition: dict[str, Any] = {}
            place = (*self.loc, "filters", len(filters))
            if source.get("key").exists:
                condition["key"] = self.path.bind(source.get("key").text)
                source.get("key").carry(*place, "key")
            for name, value in source.get("headers").items():
                condition.setdefault("headers", {})[name] = self.path.bind(value.text)
                value.carry(*place, "headers", name)
            filters.append(condition)
        if filters:
            self.draft.set((*self.loc, "filters"), filters)


def _find_paths(
    source: SourceValue, ways: list[Way]
) -> list[tuple[NarrowedPath, SourceValue | None]]:
    conditions: list[SourceValue | None] = list(source.get("when")) or [None]
    return [
        (narrowed, when)
        for when in conditions
        for narrowed in narrow_path(
            convert_path(when.get("path").text if when is not None else ""), ways
        )
    ]


def _report_conditions(way: Way) -> None:
    """Record the paths and methods of conditions, which the paths of routes include."""
    is_narrow = bool(list_conditions(way))
    narrowing = "the paths of routes are only those that it lets through"
    reason = narrowing if is_narrow else "lets every path through"
    for step in way:
        for when in step.conditions:
            if step.binding.type == "http":
                when.get("headers", ":path").imply(reason)
            elif step.binding.type in ("sse", "ws"):
                when.get("path").imply(reason)


def _convert_key(key: SourceValue, draft: Draft) -> dict[str, str]:
    """Return a JWK with its numbers in base64url, as RFC 7518 has them, and without its secret."""
    members = {member: value.text for member, value in key.items()}
    for member in {"n", "e", "x", "y", "k"} & members.keys():
        if not members[member].startswith("${"):
            members[member] = members[member].translate(str.maketrans("+/", "-_")).rstrip("=")
    if "k" in members and not members["k"].startswith("${"):
        members["k"] = draft.need_variable("TOKEN_KEY", "the shared secret of tokens, in base64url")
    return members
