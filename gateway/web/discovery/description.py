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
from gateway.config.types.units import show_duration
from gateway.version import __version__

from .exchanges import exchanges
from .ways import Way, schemes

SSE, NDJSON = "text/event-stream", "application/x-ndjson"
SUBPROTOCOL = "gateway.v1"
MULTIPLEX = "/ws"
NO_ROUTES = (
    "this gateway has no routes; add one to its configuration, such as "
    "routes: [{when: [{path: /events/orders}], with: {topic: orders}}], and start it again "
    "(`gateway check FILE` says what is wrong with a file)"
)

Transport = Literal["sse", "ndjson", "websocket"]
EVERY: tuple[Transport, ...] = ("sse", "ndjson", "websocket")


class Parameter(NamedTuple):
    """place: path or query. transports: where it means something. default: None for none."""

    name: str
    place: Literal["path", "query"]
    description: str
    required: bool = False
    transports: tuple[Transport, ...] = EVERY
    default: str | None = None

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.name, "in": self.place}
        told |= {"required": True} if self.required else {}
        told |= {} if self.default is None else {"default": self.default}
        told |= {} if self.transports == EVERY else {"transports": self.transports}
        return told | {"description": self.description}


class Example(NamedTuple):
    """A line for a terminal: the command, and the URL that is its last word. query: of the URL,
    besides what the route requires."""

    transport: Transport
    command: str
    query: str

    def url(self, base: str, path: str, required: str) -> str:
        if self.transport == "websocket":
            base = base.replace("http", "ws", 1)
        query = _joined(required, self.query)
        return base + path + ("?" + query if query else "")

    def line(self, base: str, path: str, required: str) -> str:
        return f"{self.command} {shlex.quote(self.url(base, path, required))}"


@dataclass(frozen=True)
class Stream:
    """One route.

    topics: the templates as written.
    start:  where a client begins that does not say; None if that is not the same every time.
    json:   the values of all of its topics are JSON.
    ways:   of its guards, in their order: how a client shows who it is, by name.
    challenges: its guards ask for a new token before the old one is over.
    """

    route: Route
    topics: tuple[str, ...]
    start: Literal["live", "earliest"] | None
    json: bool
    ways: tuple[Mapping[str, Way], ...] = ()
    challenges: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(when.path for when in self.route.when)

    @property
    def format(self) -> str:
        return self.route.with_.format

    @property
    def history(self) -> str:
        history = self.route.with_.history
        return history if isinstance(history, str) else show_duration(history)

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
    def snapshot(self) -> bool:
        return self.route.with_.mode == "snapshot"

    @property
    def allow(self) -> tuple[str, ...]:
        return self.route.with_.allow

    @property
    def guarded(self) -> tuple[str, ...]:
        return tuple(self.route.guarded)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*self._of_path(), *self._of_templates(), *self._of_every_stream())

    @property
    def required(self) -> str:
        """The query without which the route answers 400, with the names as values to replace."""
        return "&".join(f"{p.name}={{{p.name}}}" for p in self._of_templates())

    @property
    def examples(self) -> tuple[Example, ...]:
        shown = [next(iter(each.values())) for each in self.ways]
        curl = "".join([f" {way.curl}" for way in shown if way.curl])
        wscat = "".join([f" {way.wscat}" for way in shown if way.wscat])
        query = _joined(*[way.query for way in shown])
        past = "" if self.history == "none" else "from=earliest&until=latest"
        return (
            Example("sse", f"curl -N{curl}", query),
            Example("ndjson", f"curl -N{curl} -H 'Accept: {NDJSON}'", _joined(query, past)),
            Example("websocket", f"npx wscat{wscat} -c", query),
        )

    @property
    def by_page(self) -> bool:
        """A page of the same site may have it: an EventSource sends what its guards want."""
        return all(any(way.unasked for way in each.values()) for each in self.ways)

    def as_json(self, base: str) -> dict[str, Any]:
        return {
            "paths": self.paths,
            "topics": self.topics,
            **({"allow": self.allow} if self.allow else {}),
            "format": self.format,
            "contentTypes": (SSE, NDJSON),
            "websocket": SUBPROTOCOL,
            "history": self.history,
            "filters": self.client_filters,
            "fields": self.client_fields,
            "produce": self.produce,
            "guarded": self.guarded,
            "parameters": [each.as_json() for each in self.parameters],
            "examples": [
                {"transport": each.transport, "line": each.line(base, path, self.required)}
                for path in self.paths
                for each in self.examples
            ],
        }

    def _of_path(self) -> Iterator[Parameter]:
        patterns = [PathPattern.parse(path) for path in self.paths]
        for name in dict.fromkeys(name for each in patterns for name in each.params):
            everywhere = all(name in each.params for each in patterns)
            yield Parameter(name, "path", self._used(f"params.{name}"), required=everywhere)

    def _of_templates(self) -> Iterator[Parameter]:
        holes = (hole for template in self._templates() for hole in template.holes)
        for name in dict.fromkeys(hole.name for hole in holes if hole.root == "query"):
            yield Parameter(name, "query", self._used(f"query.{name}"), required=True)

    def _templates(self) -> Iterator[Template]:
        yield from self.route.with_.sources
        for one in self.route.with_.filters:
            yield from one.templates

    def _used(self, hole: str) -> str:
        """What becomes of a parameter."""
        if not any("${" + hole + "}" in topic for topic in self.topics):
            return "Which records: part of the route's filter."
        if self.allow:
            return f"Topics, a list with commas; * is any text. Allowed: {', '.join(self.allow)}."
        return "Which topic: part of its name."

    def _of_every_stream(self) -> Iterator[Parameter]:
        if self.history != "none":
            back = "" if self.history == "all" else f"; at most {self.history} back"
            what = f"Where to begin: live, earliest, an ISO 8601 time, or ago as in -5m{back}."
            yield Parameter("from", "query", what, default=self.start)
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


def _joined(*queries: str) -> str:
    return "&".join([query for query in queries if query])


def streams(settings: Settings) -> tuple[Stream, ...]:
    """Every route that is one, in its order."""
    known = schemes(settings)
    routes = [route for route in settings.routes if route.with_.capability == "stream"]
    return tuple(_stream(route, settings, known) for route in routes)


def _stream(route: Route, settings: Settings, known: Mapping[str, Mapping[str, Way]]) -> Stream:
    sources = route.with_.sources
    topics = [
        topic
        for topic in settings.kafka_of(route).topics
        if any(template.may_be(topic.name) for template in sources)
    ]
    offsets = {topic.default_offset for topic in topics}
    start: Literal["live", "earliest"] | None = None
    if offsets == {"live"}:
        start = "live"
    elif offsets == {"historical"} and route.with_.history == "all":
        start = "earliest"
    json = all(topic.value.model == "json" or topic.value.decodes for topic in topics)
    ways = tuple(known[name] for name in route.guarded)
    guards = [settings.guards[name] for name in route.guarded]
    challenges = any(getattr(guard, "challenge", None) is not None for guard in guards)
    texts = tuple(str(template) for template in sources)
    return Stream(route, texts, start, json, ways, challenges)


def description(settings: Settings, base: str) -> dict[str, Any]:
    """The gateway for programs. base: its URL as the client knows it, no slash at its end."""
    found = streams(settings)
    scheme = "wss" if urlsplit(base).scheme == "https" else "ws"
    links = {
        "asyncapi": f"{base}/asyncapi.json",
        "live": f"{base}/health/live",
        "ready": f"{base}/health/ready",
        "websocket": f"{scheme}{base[base.index(':') :]}{MULTIPLEX}",
        "module": f"{base}/gateway.js",
        "types": f"{base}/gateway.d.ts",
    }
    told: dict[str, Any] = {"name": settings.name, "version": __version__}
    told |= {} if settings.routes else {"hint": NO_ROUTES}
    requests = [each.as_json(base) for each in exchanges(settings)]
    told |= {"streams": [each.as_json(base) for each in found]}
    return told | ({"requests": requests} if requests else {}) | {"links": links}
