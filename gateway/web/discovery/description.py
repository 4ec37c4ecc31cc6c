"""Describe what a client may know of the gateway: streams, requests, parameters and examples.

The description is built from the settings member by member, so that a member that is added there
does not become public: no servers, no security, no keys, no values of filters.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from gateway.config import Route, Settings
from gateway.config.types.path import PathPattern
from gateway.config.types.template import Template
from gateway.config.types.units import format_duration
from gateway.version import __version__
from gateway.web.access.guard import SecurityScheme
from gateway.web.exchange.dispatch import get_exchange
from gateway.web.http.assets import VERSIONED_MODULE_PATH

from .messages import build_security_schemes

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
    """A parameter of a path or a query; leaving it out has the effect of its default."""

    name: str
    location: Literal["path", "query"]
    description: str
    required: bool = False
    transports: tuple[Transport, ...] = ALL_TRANSPORTS
    default: str | None = None

    def to_json(self) -> dict[str, Any]:
        members: dict[str, Any] = {"name": self.name, "in": self.location}
        members |= {"required": True} if self.required else {}
        members |= {} if self.default is None else {"default": self.default}
        members |= {} if self.transports == ALL_TRANSPORTS else {"transports": self.transports}
        return members | {"description": self.description}


class CommandExample(NamedTuple):
    """A line for a terminal that opens a stream: a command, with the URL as last argument."""

    transport: Transport
    command: str
    extra_query: str

    def build_url(self, base_url: str, path: str, required_query: str) -> str:
        if self.transport == "websocket":
            # http becomes ws, and https becomes wss.
            base_url = base_url.replace("http", "ws", 1)
        query = _join_queries(required_query, self.extra_query)
        return base_url + path + ("?" + query if query else "")

    def format_line(self, base_url: str, path: str, required_query: str) -> str:
        """Return the whole line, quoted for a shell."""
        return f"{self.command} {shlex.quote(self.build_url(base_url, path, required_query))}"


@dataclass(frozen=True)
class StreamDescription:
    """What a client may know of one route. Created by `list_streams`; it never changes.

    Attributes:
        default_start: Where a client begins that does not say; None if that depends on the topic.
        security_schemes: How clients identify themselves, by name, for each of its guards in order.
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
        history = self.route.stream.history
        return history if isinstance(history, str) else format_duration(history)

    @property
    def client_filters(self) -> bool:
        return self.route.with_.client_filters

    @property
    def client_fields(self) -> bool:
        return self.route.with_.client_fields

    @property
    def produce(self) -> bool:
        """Whether clients may write records over WebSocket."""
        return self.route.stream.produce

    @property
    def is_snapshot(self) -> bool:
        """Whether streams begin with the latest record of each key."""
        return self.route.stream.mode == "snapshot"

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
        """The query without which the route answers 400, with names as values to replace."""
        return "&".join(f"{p.name}={{{p.name}}}" for p in self._iter_template_parameters())

    @property
    def examples(self) -> tuple[CommandExample, ...]:
        schemes = [next(iter(guard_schemes.values())) for guard_schemes in self.security_schemes]
        curl = "".join([f" {scheme.curl}" for scheme in schemes if scheme.curl])
        wscat = "".join([f" {scheme.wscat}" for scheme in schemes if scheme.wscat])
        query = _join_queries(*[scheme.query for scheme in schemes])
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
        """Whether the EventSource of a page of the same site satisfies all guards."""
        return all(
            any(scheme.is_sent_by_browser for scheme in guard_schemes.values())
            for guard_schemes in self.security_schemes
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
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "examples": [
                {
                    "transport": example.transport,
                    "line": example.format_line(base_url, path, self.required_query),
                }
                for path in self.paths
                for example in self.examples
            ],
        }

    def _iter_path_parameters(self) -> Iterator[Parameter]:
        patterns = [PathPattern.parse(path) for path in self.paths]
        for name in dict.fromkeys(name for pattern in patterns for name in pattern.params):
            in_all_paths = all(name in pattern.params for pattern in patterns)
            use = self._describe_use(f"params.{name}")
            yield Parameter(name, "path", use, required=in_all_paths)

    def _iter_template_parameters(self) -> Iterator[Parameter]:
        placeholders = (
            placeholder
            for template in self._iter_templates()
            for placeholder in template.placeholders
        )
        names = (placeholder.name for placeholder in placeholders if placeholder.root == "query")
        for name in dict.fromkeys(names):
            yield Parameter(name, "query", self._describe_use(f"query.{name}"), required=True)

    def _iter_templates(self) -> Iterator[Template]:
        yield from self.route.with_.topic_templates
        for item in self.route.with_.filters:
            yield from item.templates

    def _describe_use(self, placeholder: str) -> str:
        if not any("${" + placeholder + "}" in topic for topic in self.topics):
            return "Which records: part of the route's filter."
        if self.allow:
            return f"Topics, a list with commas; * is any text. Allowed: {', '.join(self.allow)}."
        return "Which topic: part of its name."

    def _iter_common_parameters(self) -> Iterator[Parameter]:
        if self.history != "none":
            back = "" if self.history == "all" else f"; at most {self.history} back"
            description = (
                f"Where to begin: live, earliest, an ISO 8601 time, or ago as in -5m{back}."
            )
            yield Parameter("from", "query", description, default=self.default_start)
        description = "Where to end: latest (what there is now), a time, or a number of records."
        yield Parameter("until", "query", description)
        description = "Resume after this position; the header Last-Event-ID overrides it."
        yield Parameter("lastEventId", "query", description)
        if self.client_filters:
            description = (
                "Only these records, such as key=alice, /amount>=10 or JSON; repeat for AND."
            )
            yield Parameter("filter", "query", description)
        if self.client_fields:
            description = (
                "Only these members of the value: JSON pointers with commas, /id,/customer/name."
            )
            yield Parameter("fields", "query", description)
        description = "Long poll: answer with what there is, or wait for it, as in 30s; at most 5m."
        yield Parameter("wait", "query", description, transports=("ndjson",))
        description = "A position with every record."
        yield Parameter("positions", "query", description, transports=("ndjson",))
        description = "How many records may be sent before more are granted; without it, no limit."
        yield Parameter("credit", "query", description, transports=("websocket",))


def _join_queries(*queries: str) -> str:
    return "&".join([query for query in queries if query])


def list_streams(settings: Settings) -> tuple[StreamDescription, ...]:
    """Return the description of every route that is a stream, in their order."""
    schemes_by_guard = build_security_schemes(settings)
    routes = [route for route in settings.routes if route.is_stream]
    return tuple(_build_stream(route, settings, schemes_by_guard) for route in routes)


def _build_stream(
    route: Route, settings: Settings, schemes_by_guard: Mapping[str, Mapping[str, SecurityScheme]]
) -> StreamDescription:
    sources = route.with_.topic_templates
    topics = [
        topic
        for topic in settings.get_kafka(route).topics
        if any(template.can_render(topic.name) for template in sources)
    ]
    offsets = {topic.default_offset for topic in topics}
    start: Literal["live", "earliest"] | None = None
    if offsets == {"live"}:
        start = "live"
    elif offsets == {"historical"} and route.stream.history == "all":
        start = "earliest"
    is_json = all(topic.value.model == "json" or topic.value.is_decoded for topic in topics)
    schemes = tuple(schemes_by_guard[name] for name in route.guarded)
    guards = [settings.guards[name] for name in route.guarded]
    has_challenges = any(guard.challenge_lead is not None for guard in guards)
    texts = tuple(str(template) for template in sources)
    return StreamDescription(route, texts, start, is_json, schemes, has_challenges)


def build_description(settings: Settings, base_url: str) -> dict[str, Any]:
    """Return the description of the gateway for programs, as JSON."""
    streams = list_streams(settings)
    scheme = "wss" if urlsplit(base_url).scheme == "https" else "ws"
    links = {
        "asyncapi": f"{base_url}/asyncapi.json",
        "live": f"{base_url}/health/live",
        "ready": f"{base_url}/health/ready",
        "websocket": f"{scheme}{base_url[base_url.index(':') :]}{MULTIPLEX_PATH}",
        "module": f"{base_url}/gateway.js",
        "versionedModule": f"{base_url}{VERSIONED_MODULE_PATH}",
        "types": f"{base_url}/gateway.d.ts",
    }
    description: dict[str, Any] = {"name": settings.name, "version": __version__}
    description |= {} if settings.routes else {"hint": NO_ROUTES_HINT}
    requests = [exchange.to_json(base_url) for exchange in list_exchanges(settings)]
    description |= {"streams": [stream.to_json(base_url) for stream in streams]}
    return description | ({"requests": requests} if requests else {}) | {"links": links}


class ExchangeDescription(NamedTuple):
    """One method of one path. Created by `list_exchanges`; it never changes."""

    method: str
    path: str
    route: Route
    security_schemes: tuple[Mapping[str, SecurityScheme], ...] = ()

    @property
    def action(self) -> str:
        return get_exchange(self.route.with_).describe(self.route.with_)

    def format_line(self, base_url: str) -> str:
        """Return a line for a terminal, with the names of path parameters as values to replace."""
        schemes = [next(iter(guard_schemes.values())) for guard_schemes in self.security_schemes]
        query = "&".join([scheme.query for scheme in schemes if scheme.query])
        url = shlex.quote(base_url + self.path + (f"?{query}" if query else ""))
        options = "" if self.method == "GET" else f" -X {self.method}"
        body = " -H 'Content-Type: application/json' -d '{}'"
        options += body if self.method in ("POST", "PUT", "PATCH") else ""
        options += "".join([f" {scheme.curl}" for scheme in schemes if scheme.curl])
        return f"curl{options} {url}"

    def to_json(self, base_url: str) -> dict[str, Any]:
        with_ = self.route.with_
        members = {"method": self.method, "path": self.path, "capability": with_.capability}
        template = with_.reply_location
        location = {} if template is None else {"location": str(template)}
        return {
            **members,
            "topics": tuple(str(source) for source in with_.topic_templates),
            "replies": with_.reply_topic is not None,
            **location,
            "guarded": tuple(self.route.guarded),
            "line": self.format_line(base_url),
        }


def list_exchanges(settings: Settings) -> tuple[ExchangeDescription, ...]:
    return tuple(_iter_exchanges(settings))


def _iter_exchanges(settings: Settings) -> Iterator[ExchangeDescription]:
    schemes_by_guard = build_security_schemes(settings)
    for route in settings.routes:
        if not route.is_stream:
            schemes = tuple(schemes_by_guard[name] for name in route.guarded)
            for when in route.when:
                yield ExchangeDescription(route.get_method(when), when.path, route, schemes)
