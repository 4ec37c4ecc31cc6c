"""What `gateway/README.md` says under "Where to add what": one of each is added here, and used.

Nothing in `gateway` knows of them: each is a class or two, and an entry in a registry.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal, NamedTuple

import httpx
import pytest
from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from support.brokers import embedded_kafka
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway
from support.records import RecordToSend, produce_records

from gateway.api.object_wire import ObjectWire
from gateway.cli.sidecar import create_sidecar
from gateway.config import (
    GUARD_KINDS,
    WITH_KINDS,
    GuardSection,
    With,
    build_json_schema,
    loads,
)
from gateway.config.types.fields import Text
from gateway.config.types.formats import (
    EVENT_FORMATS,
    SERIALIZATION_FORMATS,
    SerializationFormat,
)
from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.log.record import TopicPartition
from gateway.errors import ConfigError, FormatError
from gateway.formats import FORMATS, EventFormat, create_format
from gateway.formats.event import TEXT_SCHEMA, Schema, build_object_schema, build_ref
from gateway.formats.plain import PLAIN_CODECS, PlainCodec
from gateway.hub.wires.control_events import CONTROL_EVENTS, ENTRY_EVENTS, EntryEvent
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.websocket import WebSocketWire
from gateway.hub.wires.wire import Wire
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.access.admission import GUARD_LOADERS
from gateway.web.access.grant import Grant
from gateway.web.access.guard import (
    AccessRequest,
    Guard,
    GuardContext,
    GuardErrors,
    SecurityScheme,
    build_api_key,
)
from gateway.web.exchange.dispatch import EXCHANGES, Exchange
from gateway.web.http.query import get_query_pairs
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes

kafka = embedded_kafka({"orders": 1, "digits": 1, "lengths": 1})


@asynccontextmanager
async def running_client(
    config: dict[str, Any], **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway in this process. options: of `create_app`."""
    async with (
        running_in_process_gateway(config, **options) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60.0) as client,
    ):
        yield client


async def read_lines(client: httpx.AsyncClient, path: str) -> list[Any]:
    """All that there is, from the beginning."""
    query, headers = {"from": "earliest", "until": "latest"}, {"accept": "application/x-ndjson"}
    lines = (await client.get(path, params=query, headers=headers)).text.splitlines()
    return [line for line in map(json.loads, lines) if "@end" not in str(line)]


class BadgeSection(GuardSection):
    """A guard that believes a badge."""

    type: Literal["badge"] = Field(description="The kind of guard. For tests.")
    color: str = Field(default="blue", description="The color of badges. For tests.")


class BadgeGuard(Guard[BadgeSection]):
    """A guard that believes a badge: a header with a color and a name."""

    is_renewable = False

    def __init__(self, section: BadgeSection, context: GuardContext) -> None:
        self._section, self._name = section, context.name
        self.errors = GuardErrors(context.name, context.realm, "wear a badge")

    @classmethod
    def create(cls, section: BadgeSection, context: GuardContext) -> BadgeGuard:
        return cls(section, context)

    @classmethod
    def describe(cls, section: BadgeSection) -> tuple[SecurityScheme, ...]:
        definition = build_api_key("header", "x-badge")
        return (SecurityScheme(definition, f"-H 'X-Badge: {section.color} NAME'"),)

    async def grant(self, request: AccessRequest) -> Grant:
        color, _, name = request.connection.headers.get("x-badge", "").partition(" ")
        if not name:
            raise self.errors.build_missing_credentials()
        if color != self._section.color:
            raise self.errors.build_invalid_token(f"{color} is not the color")
        return Grant(self._name, name)


@pytest.fixture
def badge(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The kind of guard is added; return the section of one."""
    monkeypatch.setitem(GUARD_KINDS, "badge", BadgeSection)
    monkeypatch.setitem(GUARD_LOADERS, BadgeSection, lambda: BadgeGuard)
    return {"type": "badge", "color": "red"}


async def test_a_kind_of_guard_admits_refuses_and_is_described(
    badge: dict[str, Any], kafka: EmbeddedKafka
):
    routes = [
        {
            "when": [{"path": "/orders"}],
            "guarded": {"entrance": []},
            "with": {"topic": "orders", "filters": [{"key": "${guarded['entrance'].identity}"}]},
        }
    ]
    config = build_config(kafka.bootstrap, ["orders"], routes, guards={"entrance": badge})
    async with running_client(config) as client:

        async def get_status(badge_text: str) -> int:
            headers = {"x-badge": badge_text, "accept": "application/x-ndjson"}
            query = {"from": "earliest", "until": "latest"}
            return (await client.get("/orders", params=query, headers=headers)).status_code

        assert await get_status("red ada") == 200
        assert [await get_status("blue ada"), await get_status("")] == [401, 401]
        document = (await client.get("/asyncapi.json")).json()
        schemes = document["components"]["securitySchemes"]
        assert schemes == {"entrance": build_api_key("header", "x-badge")}
        (stream,) = (await client.get("/", headers={"accept": "application/json"})).json()[
            "streams"
        ]
        assert "-H 'X-Badge: red NAME'" in stream["examples"][0]["line"]


def test_a_kind_of_guard_is_validated_and_in_the_json_schema(badge: dict[str, Any]):
    options = build_json_schema()["properties"]["guards"]["additionalProperties"]
    assert "badge" in options["properties"]["type"]["anyOf"][0]["enum"]
    assert {"$ref": "#/$defs/BadgeSection"} in [choice["then"] for choice in options["allOf"]]
    with pytest.raises(ConfigError) as refused:
        loads(
            "kafka: {servers: [a:1]}\nguards: {door: {type: badge, colour: red}, gate: {type: bag}}"
        )
    assert "unknown key 'colour' in guards.door; did you mean 'color'?" in str(refused.value)
    assert "'bag' is no kind of guard; did you mean 'badge'?" in str(refused.value)


class HexCodec(PlainCodec):
    """Bytes as hexadecimal digits."""

    def encode(self, value: Any) -> bytes:
        try:
            return bytes.fromhex(value)
        except (TypeError, ValueError):
            raise FormatError("it is not hexadecimal; write such as 00ff") from None

    def decode(self, data: bytes) -> str:
        return data.hex()


@pytest.fixture
def hexadecimal(monkeypatch: pytest.MonkeyPatch) -> SerializationFormat:
    """The format of keys and values is added."""
    format = SerializationFormat("hex", 6)
    monkeypatch.setitem(SERIALIZATION_FORMATS, format.name, format)
    monkeypatch.setitem(PLAIN_CODECS, format, HexCodec())
    return format


async def test_a_format_of_values_is_used_by_routes_and_by_the_sidecar(
    hexadecimal: SerializationFormat, kafka: EmbeddedKafka
):
    routes = [
        {"when": [{"path": "/read"}], "with": {"topic": "digits"}},
        {"when": [{"path": "/write"}], "with": {"capability": "produce", "topic": "digits"}},
    ]
    topics = [{"name": "digits", "value": {"model": hexadecimal.name}}]
    config = build_config(kafka.bootstrap, topics, routes, sidecar={"producer": {}})
    async with running_client(config, co_hosted_app_factory=create_sidecar) as client:
        assert (await client.post("/write", json="00ff")).status_code == 201
        refused = await client.post("/write", json="no digits")
        assert (refused.status_code, "write such as 00ff" in refused.text) == (400, True)
        for value_format, value in (("hex", "0a"), (hexadecimal.number, "0b"), ("string", "\f")):
            body = {"valueFormat": value_format, "records": [{"value": value}]}
            produced = await client.post("/producers/digits", json=body)
            assert produced.status_code == 200, produced.text
        assert await read_lines(client, "/read") == ["00ff", "0a", "0b", "0c"]


def test_a_format_of_values_is_an_option_and_in_the_json_schema(hexadecimal: SerializationFormat):
    sections = build_json_schema()["$defs"]
    for names in (
        sections["Model"]["properties"]["model"]["anyOf"][0]["enum"],
        sections["Formats"]["properties"]["valueFormat"]["anyOf"][0]["enum"],
    ):
        assert hexadecimal.name in names
    with pytest.raises(ConfigError, match="'hexx' is not known here; did you mean 'hex'"):
        loads("kafka: {servers: [a:1], topics: [{name: t, value: {model: hexx}}]}")


@pytest.fixture
def length() -> Iterator[str]:
    """The event format is added; return its name."""
    FORMATS["length"] = EventFormat(
        lambda binary: lambda record: (None, b'{"bytes": %d}' % len(record.value or b"")),
        {"type": "object", "properties": {"bytes": {"type": "integer"}}},
        media_type="application/vnd.length+json",
    )
    EVENT_FORMATS.append("length")
    yield "length"
    EVENT_FORMATS.remove("length")
    del FORMATS["length"]


async def test_an_event_format_is_sent_and_described(length: str, kafka: EmbeddedKafka):
    by_key = [{"key": "${params.key}"}]
    routes = [
        {"when": [{"path": "/lengths"}], "with": {"topic": "lengths", "format": length}},
        {
            "when": [{"path": "/lengths/{key}"}],
            "with": {
                "capability": "fetch", "topic": "lengths", "filters": by_key, "format": length,
            },
        },
    ]  # fmt: skip
    await produce_records(kafka.bootstrap, "lengths", [RecordToSend(b"four", key=b"a")])
    async with running_client(build_config(kafka.bootstrap, ["lengths"], routes)) as client:
        assert await read_lines(client, "/lengths") == [{"bytes": 4}]
        response = await client.get("/lengths/a")
        assert response.headers["content-type"] == "application/vnd.length+json"
        document = (await client.get("/asyncapi.json")).json()
        assert document["components"]["schemas"]["length"]["type"] == "object"
        assert document["components"]["messages"]["sse-length"]["contentType"].startswith("appl")
        messages = document["channels"]["lengths.websocket"]["messages"]
        assert "websocket-records-length" in messages


class TopicsWith(With):
    """The topics of a path."""

    capability: Literal["topics"] = Field(description="What a request does. For tests.")
    separator: Text = Field(default=",", description="What stands between names. For tests.")


async def respond_with_topics(routes: Routes, match: Match, request: Request) -> Response:
    assert isinstance(match.route.with_, TopicsWith)
    view = await routes.get_view(match, get_query_pairs(request))
    return PlainTextResponse(match.route.with_.separator.join(view.topics))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The capability is added; return the options of a route with it."""
    monkeypatch.setitem(WITH_KINDS, "topics", TopicsWith)
    exchange = Exchange(lambda with_: "the names of topics", respond_with_topics)
    monkeypatch.setitem(EXCHANGES, TopicsWith, exchange)
    return {"capability": "topics", "topic": "${params.names}", "allow": ["*"], "separator": "+"}


async def test_a_capability_of_routes_responds_and_is_described(
    names: dict[str, Any], badge: dict[str, Any], kafka: EmbeddedKafka
):
    routes = [{"when": [{"path": "/names/{names}"}], "guarded": {"entrance": []}, "with": names}]
    guards = {"entrance": badge}
    config = build_config(kafka.bootstrap, ["orders", "digits"], routes, guards=guards)
    async with running_client(config) as client:
        headers = {"x-badge": "red ada"}
        response = await client.get("/names/orders,digits", headers=headers)
        assert (response.status_code, response.text) == (200, "digits+orders")
        assert (await client.get("/names/orders")).status_code == 401
        assert (await client.post("/names/orders", headers=headers)).status_code == 405
        page = await client.get("/", headers={"accept": "text/html"})
        assert "the names of topics" in page.text
        (request,) = (await client.get("/")).json()["requests"]
        assert (request["capability"], request["path"]) == ("topics", "/names/{names}")


def test_a_capability_is_validated_and_in_the_json_schema(names: dict[str, Any]):
    options = build_json_schema()["$defs"]["Route"]["properties"]["with"]
    assert {"$ref": "#/$defs/TopicsWith"} in [choice["then"] for choice in options["allOf"]]
    with pytest.raises(ConfigError) as refused:
        loads(
            "kafka: {servers: [a:1], topics: [{name: orders}]}\n"
            "routes:\n"
            "  - when: [{path: /a}]\n"
            "    with: {topic: orders, separator: +}\n"
            "  - when: [{path: /b}]\n"
            "    with: {topic: orders, capability: topics, seperator: +, heartbeat: 1s}\n"
        )
    assert [line.partition(" ")[2] for line in str(refused.value).splitlines()] == [
        "routes[0].with: 'separator' is for capability: topics; add that, or remove it",
        "unknown key 'seperator' in routes[1].with; did you mean 'separator'?",
        "routes[1].with: 'heartbeat' is for capability: stream; add that, or remove it",
    ]


class Notice(NamedTuple):
    """An entry that says something about a partition."""

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    text: str


class NoticeEvent(EntryEvent[Notice]):
    """`notice`: an operator says something."""

    name = "notice"
    summary = "An operator says something."
    schema: ClassVar[Schema | None] = {
        **build_object_schema({"text": TEXT_SCHEMA}),
        "description": "Show `text` to people.",
    }

    def describe(self, entry: Notice) -> dict[str, Any]:
        return {"text": entry.text}


@pytest.fixture
def notice(monkeypatch: pytest.MonkeyPatch) -> NoticeEvent:
    """The control event is added."""
    event = NoticeEvent()
    monkeypatch.setitem(CONTROL_EVENTS, event.name, event)
    monkeypatch.setitem(ENTRY_EVENTS, Notice, event)
    return event


@pytest.mark.parametrize(
    ("accept", "line"),
    [
        ("text/event-stream", 'event: notice\ndata: {"text":"back soon"}\n\n'),
        ("application/x-ndjson", '{"@notice":{"text":"back soon"}}\n'),
    ],
)
async def test_a_control_event_is_sent_to_a_client_and_described(
    notice: NoticeEvent, kafka: EmbeddedKafka, accept: str, line: str
):
    config = build_config(kafka.bootstrap, ["orders"])
    async with (
        running_in_process_gateway(config) as (url, app),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60.0) as client,
    ):
        request = client.stream("GET", "/events/orders?positions", headers={"accept": accept})
        async with request as response, asyncio.timeout(60):
            pieces = response.aiter_text()
            received = await anext(pieces)
            (stream,) = app.state.hubs.get_hub("").clients
            stream.send_event(notice.name, {"text": "back soon"})
            while line not in received:
                received += await anext(pieces)
        document = (await client.get("/asyncapi.json")).json()
    assert document["components"]["schemas"]["notice"] == notice.schema
    messages = document["components"]["messages"]
    assert messages["sse-notice"]["summary"] == notice.summary
    assert messages["ndjson-notice"]["name"] == "@notice"
    assert messages["websocket-notice"]["payload"]["allOf"][1] == build_ref("notice")
    assert "sse-notice" in document["channels"]["events-orders.http"]["messages"]


@pytest.mark.parametrize(
    ("wire", "encoded"),
    [
        (SseWire(), b'event: notice\ndata: {"text":"hi"}\n\n'),
        (NdjsonWire(), b'{"@notice":{"text":"hi"}}\n'),
        (WebSocketWire(), b'{"type":"notice","text":"hi"}'),
        (ObjectWire(), b""),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_event_of_an_entry_is_encoded_on_every_wire(
    notice: NoticeEvent, wire: Wire, encoded: bytes
):
    entry: Any = Notice(TopicPartition("orders", 0), 1, 1, 0, "hi")
    encoder = wire.create_encoder(create_format("value"))
    head = encoder.encode_entry(entry)
    events = [] if head is None else [ChannelEvent(None, head, None)]
    assert encoder.encode_events(events, b"").endswith(encoded)
