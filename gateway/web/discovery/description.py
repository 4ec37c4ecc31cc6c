"""What a client may know of a gateway: streams, their parameters, and a line to try each.

Read from the settings member by member, so that nothing gets out by being added there: no
servers, no security, no keys, no values of filters.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from gateway.config import Route, Settings
from gateway.config.source.template import Template
from gateway.config.types.path import PathPattern
from gateway.config.types.units import format_duration
from gateway.version import __version__

from .exchanges import list_exchanges
from .security_schemes import SecurityScheme, build_security_schemes

SSE_MEDIA_TYPE, NDJSON_MEDIA_TYPE = "text/event-stream", "application/x-ndjson"
SUBPROTOCOL = "gateway.v1"
MULTIPLEX_PATH = "/ws"
NO_ROUTES_HINT = (
    "this gateway has no routes; add one to its configuration, such as "
    "routes: [{when: [{path: /events/orders}], with: {topic: orders}}], and start it again "
    "(`gateway check FILE` says what is wrong with a file)"
)

Transport = Literal["sse", "ndjson", "websocket"]
ALL_TRANSPORTS: tuple[Transport, ...] = ("sse", "ndjson", "websocket")


class Parameter(NamedTuple):
    """place: path or query. transports: where it means something. default: None for none."""

    name: str
    location: Literal["path", "query"]
    description: str
    required: bool = False
    transports: tuple[Transport, ...] = ALL_TRANSPORTS
    default: str | None = None

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.name, "in": self.location}
        told |= {"required": True} if self.required else {}
        told |= {} if self.default is None else {"default": self.default}
        told |= {} if self.transports == ALL_TRANSPORTS else {"transports": self.transports}
        return told | {"description": self.description}


class CommandExample(NamedTuple):
    """A line for a terminal: the command, and the URL that is its last word. query: of the URL,
    besides what the route requires."""

    transport: Transport
    command: str
    extra_query: str

    def build_url(self, base_url: str, path: str, required_query: str) -> str:
        if self.transport == "websocket":
            base_url = base_url.replace("http", "ws", 1)
        query = _join_queries(required_query, self.extra_query)
        return base_url + path + ("?" + query if query else "")

    def format_line(self, base_url: str, path: str, required_query: str) -> str:
        return f"{self.command} {shlex.quote(self.build_url(base_url, path, required_query))}"


@dataclass(frozen=True)
class StreamDescription:
    """One route.

    topics: the templates as written.
    start:  where a client begins that does not say; None if that is not the same every time.
    json:   the values of all of its topics are JSON.
    ways:   of its guards, in their order: how a client shows who it is, by name.
    challenges: its guards ask for a new token before the old one is over.
    """

    route: Route
    topics: tuple[str, ...]
    default_start: Literal["live", "earliest"] | None
    is_json: bool
    security_schemes: tuple[Mapping[str, SecurityScheme], ...] = ()
    has_challenges: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(when.path for when in self.route.when)

    @property
    def format(self) -> str:
        return self.route.with_.format

    @property
    def history(self) -> str:
        history = self.route.with_.history
        return history if isinstance(history, str) else format_duration(history)

    @property
    def client_filters(self) -> bool:
        return self.route.with_.client_filters

    @property
    def client_fields(self) -> bool:
        return self.route.with_.client_fields

    @property
    def produce(self) -> bool:
        return self.route.with_.produce

    @property
    def is_snapshot(self) -> bool:
        return self.route.with_.mode == "snapshot"

    @property
    def allow(self) -> tuple[str, ...]:
        return self.route.with_.allow

    @property
    def guarded(self) -> tuple[str, ...]:
        return tuple(self.route.guarded)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return (
            *self._iter_path_parameters(),
            *self._iter_template_parameters(),
            *self._iter_common_parameters(),
        )

    @property
    def required_query(self) -> str:
        """The query without which the route answers 400, with the names as values to replace."""
        return "&".join(f"{p.name}={{{p.name}}}" for p in self._iter_template_parameters())

    @property
    def examples(self) -> tuple[CommandExample, ...]:
        shown = [next(iter(each.values())) for each in self.security_schemes]
        curl = "".join([f" {way.curl}" for way in shown if way.curl])
        wscat = "".join([f" {way.wscat}" for way in shown if way.wscat])
        query = _join_queries(*[way.query for way in shown])
        past = "" if self.history == "none" else "from=earliest&until=latest"
        return (
            CommandExample("sse", f"curl -N{curl}", query),
            CommandExample(
                "ndjson",
                f"curl -N{curl} -H 'Accept: {NDJSON_MEDIA_TYPE}'",
                _join_queries(query, past),
            ),
            CommandExample("websocket", f"npx wscat{wscat} -c", query),
        )

    @property
    def is_usable_by_page(self) -> bool:
        """A page of the same site may have it: an EventSource sends what its guards want."""
        return all(
            any(way.is_sent_by_browser for way in each.values()) for each in self.security_schemes
        )

    def to_json(self, base_url: str) -> dict[str, Any]:
        return {
            "paths": self.paths,
            "topics": self.topics,
            **({"allow": self.allow} if self.allow else {}),
            "format": self.format,
            "contentTypes": (SSE_MEDIA_TYPE, NDJSON_MEDIA_TYPE),
            "websocket": SUBPROTOCOL,
            "history": self.history,
            "filters": self.client_filters,
            "fields": self.client_fields,
            "produce": self.produce,
            "guarded": self.guarded,
            "parameters": [each.to_json() for each in self.parameters],
            "examples": [
                {
                    "transport": each.transport,
                    "line": each.format_line(base_url, path, self.required_query),
                }
                for path in self.paths
                for each in self.examples
            ],
        }

    def _iter_path_parameters(self) -> Iterator[Parameter]:
        patterns = [PathPattern.parse(path) for path in self.paths]
        for name in dict.fromkeys(name for each in patterns for name in each.params):
            everywhere = all(name in each.params for each in patterns)
            yield Parameter(name, "path", self._describe_use(f"params.{name}"), required=everywhere)

    def _iter_template_parameters(self) -> Iterator[Parameter]:
        holes = (hole for template in self._iter_templates() for hole in template.placeholders)
        for name in dict.fromkeys(hole.name for hole in holes if hole.root == "query"):
            yield Parameter(name, "query", self._describe_use(f"query.{name}"), required=True)

    def _iter_templates(self) -> Iterator[Template]:
        yield from self.route.with_.topic_templates
        for one in self.route.with_.filters:
            yield from one.templates

    def _describe_use(self, placeholder: str) -> str:
        """What becomes of a parameter."""
        if not any("${" + placeholder + "}" in topic for topic in self.topics):
            return "Which records: part of the route's filter."
        if self.allow:
            return f"Topics, a list with commas; * is any text. Allowed: {', '.join(self.allow)}."
        return "Which topic: part of its name."

    def _iter_common_parameters(self) -> Iterator[Parameter]:
        if self.history != "none":
            back = "" if self.history == "all" else f"; at most {self.history} back"
            what = f"Where to begin: live, earliest, an ISO 8601 time, or ago as in -5m{back}."
            yield Parameter("from", "query", what, default=self.default_start)
        what = "Where to end: latest (what there is now), a time, or a number of records."
        yield Parameter("until", "query", what)
        what = "Go on after this position; the header Last-Event-ID beats it."
        yield Parameter("lastEventId", "query", what)
        if self.client_filters:
            what = "Only these records, such as key=alice, /amount>=10 or JSON; repeat for AND."
            yield Parameter("filter", "query", what)
        if self.client_fields:
            what = "Only these members of the value: JSON pointers with commas, /id,/customer/name."
            yield Parameter("fields", "query", what)
        what = "Long poll: answer with what there is, or wait for it, as in 30s; at most 5m."
        yield Parameter("wait", "query", what, transports=("ndjson",))
        what = "A position with every record."
        yield Parameter("positions", "query", what, transports=("ndjson",))
        what = "Events about many partitions: partitions-ready and partitions-error."
        yield Parameter("grouped", "query", what)
        what = "How many records may be sent before more are granted; without it, no limit."
        yield Parameter("credit", "query", what, transports=("websocket",))


def _join_queries(*queries: str) -> str:
    return "&".join([query for query in queries if query])


def list_streams(settings: Settings) -> tuple[StreamDescription, ...]:
    """Every route that is one, in its order."""
    known = build_security_schemes(settings)
    routes = [route for route in settings.routes if route.with_.capability == "stream"]
    return tuple(_build_stream(route, settings, known) for route in routes)


def _build_stream(
    route: Route, settings: Settings, schemes_by_guard: Mapping[str, Mapping[str, SecurityScheme]]
) -> StreamDescription:
    sources = route.with_.topic_templates
    topics = [
        topic
        for topic in settings.kafka_of(route).topics
        if any(template.can_render(topic.name) for template in sources)
    ]
    offsets = {topic.default_offset for topic in topics}
    start: Literal["live", "earliest"] | None = None
    if offsets == {"live"}:
        start = "live"
    elif offsets == {"historical"} and route.with_.history == "all":
        start = "earliest"
    json = all(topic.value.model == "json" or topic.value.is_decoded for topic in topics)
    ways = tuple(schemes_by_guard[name] for name in route.guarded)
    guards = [settings.guards[name] for name in route.guarded]
    challenges = any(getattr(guard, "challenge", None) is not None for guard in guards)
    texts = tuple(str(template) for template in sources)
    return StreamDescription(route, texts, start, json, ways, challenges)


def build_description(settings: Settings, base_url: str) -> dict[str, Any]:
    """The gateway for programs. base: its URL as the client knows it, no slash at its end."""
    found = list_streams(settings)
    scheme = "wss" if urlsplit(base_url).scheme == "https" else "ws"
    links = {
        "asyncapi": f"{base_url}/asyncapi.json",
        "live": f"{base_url}/health/live",
        "ready": f"{base_url}/health/ready",
        "websocket": f"{scheme}{base_url[base_url.index(':') :]}{MULTIPLEX_PATH}",
        "module": f"{base_url}/gateway.js",
        "types": f"{base_url}/gateway.d.ts",
    }
    told: dict[str, Any] = {"name": settings.name, "version": __version__}
    told |= {} if settings.routes else {"hint": NO_ROUTES_HINT}
    requests = [each.to_json(base_url) for each in list_exchanges(settings)]
    told |= {"streams": [each.to_json(base_url) for each in found]}
    return told | ({"requests": requests} if requests else {}) | {"links": links}
