"""What a gateway tells of itself, without a Kafka."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import Message
from support.asyncapi import check_payload, find_faults, get_messages
from support.gateways import build_config
from support.sse import parse_stream

from gateway import __version__
from gateway.config import Settings, loads
from gateway.config.types.path import RESERVED_PATHS, is_reserved_path
from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.core.log.record import (
    Entry,
    Fault,
    Gap,
    GapReason,
    Ready,
    Record,
    SnapshotEnd,
    TopicPartition,
)
from gateway.formats import Format, create_format
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.websocket import WebSocketWire, encode_label
from gateway.hub.wires.wire import Beginning, Wire
from gateway.web import demo, discovery
from gateway.web.app.app import create_app
from gateway.web.discovery.asyncapi import build_document
from gateway.web.discovery.description import build_description
from gateway.web.discovery.html import MIN_STREAMS_FOR_SEARCH, render_page
from gateway.web.http.assets import VERSIONED_MODULE_PATH
from gateway.web.routing.messages import parse_message
from gateway.wire.websocket import insert_member
from gateway.wire.websocket import iter_texts as frames

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
SHOP = """
name: shop
kafka:
  servers: [localhost:9092]
  topics:
    - {name: orders, value: {model: json}}
    - {name: pay-eu, defaultOffset: historical}
routes:
  - when: [{path: /events/orders}, {path: "/events/orders/{customer}"}]
    with: {topic: orders, history: 24h}
  - when: [{path: "/pay/{region}"}]
    with:
      topic: "pay-${params.region}"
      format: envelope
      filters: [{headers: {card: "${query.card}"}}]
  - when: [{path: /live}]
    with: {topics: [orders, pay-eu], format: cloudevents, history: none}
  - when: [{path: /raw}]
    with: {topic: pay-eu, binary: base64}
  - when: [{path: /part}]
    with: {topic: orders, fields: [/order], clientFilters: true, clientFields: true}
  - when: [{path: "/topics/{names}"}]
    with: {topics: ["${params.names}"], allow: [orders, "pay-*"], produce: true}
"""
DEMO = demo.PAGES["/"].read_text()
NONE = "name: empty\nkafka: {servers: [localhost:9092]}\n"


def open_client(app: Any, base: str = "http://gw:8080") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base)


@pytest.fixture
async def shop() -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(create_app(loads(SHOP))) as http:
        yield http


def describe_streams(settings: Settings) -> dict[str, dict[str, Any]]:
    """By their first path."""
    told = json.loads(discovery.format_json(build_description(settings, "http://gw")))
    return {each["paths"][0]: each for each in told["streams"]}


def list_parameters(stream: dict[str, Any]) -> list[str]:
    return [each["name"] for each in stream["parameters"]]


async def test_a_document_is_not_written_in_the_event_loop():
    """It was, for each Host anew: 47 ms with 20 routes, in which nobody else was served."""
    names = [f"topic{n}" for n in range(40)]
    turn_count = 0

    async def count_turns() -> None:
        nonlocal turn_count
        while True:
            await asyncio.sleep(0)
            turn_count += 1

    app = create_app(Settings.model_validate(build_config(["localhost:9092"], names)))
    async with open_client(app) as http, asyncio.TaskGroup() as group:
        counting = group.create_task(count_turns())
        assert (await http.get("/asyncapi.json")).status_code == 200
        counting.cancel()
    assert turn_count > 100


async def test_no_document_is_written_for_clients_that_have_left():
    """They waited for the thread, in no account, and others' documents behind them."""
    names = [f"topic{n}" for n in range(40)]
    app = create_app(Settings.model_validate(build_config(["localhost:9092"], names)))
    answers = list[tuple[int, Any]]()

    async def request(host: str, *, has_left: bool) -> None:
        async def receive() -> Message:
            if not has_left:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answers.append((message["status"], host))

        path = {"path": "/asyncapi.json", "raw_path": b"/asyncapi.json", "query_string": b""}
        headers = [(b"host", host.encode())]
        await app({"type": "http", "method": "GET", "headers": headers, **path}, receive, send)

    await request("known", has_left=False)
    async with asyncio.TaskGroup() as group:
        for n in range(20):
            group.create_task(request(f"left-{n}", has_left=True))
        for n in range(20):
            group.create_task(request(f"waits-{n}", has_left=False))
        await asyncio.sleep(0)
        await request("known", has_left=False)
    assert {status for status, host in answers if host.startswith("left")} == {204}
    hosts = [host for status, host in answers if status == 200]
    assert len(hosts) == 22 and hosts.index("known", 1) < 20


# Who gets what


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("Text/HTML;Q=0.5, application/json;q=0.1", True),
        ("text/*", True),
        ("text/html, application/json", False),
        ("text/html;q=0.2, application/json", False),
        ("text/html;q=0", False),
        ("text/html;q=high", False),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("text/event-stream", False),
    ],
)
async def test_a_page_for_those_who_ask_for_one_and_json_for_the_rest(accept, page, shop):
    answer = await shop.get("/", headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html" if page else "application/json")
    assert set(answer.headers["vary"].split(", ")) == {"Accept", "Accept-Encoding"}
    assert ("<!doctype html>" in answer.text) is page
    assert page or answer.json()["name"] == "shop"


@pytest.mark.parametrize("path", ["/", "/asyncapi.json", "/discovery.js", "/discovery.css"])
async def test_who_has_it_already_is_not_sent_it_again(path: str, shop: httpx.AsyncClient):
    first = await shop.get(path)
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = await shop.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert (await shop.get(path, headers={"if-none-match": '"other"'})).status_code == 200


async def test_the_page_and_the_json_are_never_taken_for_each_other(shop: httpx.AsyncClient):
    page = (await shop.get("/", headers={"accept": BROWSER})).headers["etag"]
    assert (await shop.get("/", headers={"if-none-match": page})).status_code == 200


@pytest.mark.parametrize("path", ["/", "/asyncapi.json"])
async def test_other_methods_are_refused(path: str, shop: httpx.AsyncClient):
    answer = await shop.post(path)
    assert answer.status_code == 405
    assert answer.json()["status"] == 405


# What programs are told


async def test_streams_have_what_a_client_needs(shop: httpx.AsyncClient):
    told = (await shop.get("/")).json()
    assert (told["name"], told["version"]) == ("shop", __version__)
    assert told["links"]["asyncapi"] == "http://gw:8080/asyncapi.json"
    assert told["links"]["websocket"] == "ws://gw:8080/ws"
    orders, pay, live, raw, part, topics = told["streams"]
    assert orders["paths"] == ["/events/orders", "/events/orders/{customer}"]
    assert (orders["topics"], orders["format"], orders["history"]) == (["orders"], "value", "1d")
    assert orders["contentTypes"] == ["text/event-stream", "application/x-ndjson"]
    assert (orders["filters"], orders["fields"], orders["produce"]) == (False, False, False)
    assert pay["topics"] == ["pay-${params.region}"]
    assert (live["format"], live["history"]) == ("cloudevents", "none")
    assert raw["guarded"] == []
    assert (part["filters"], part["fields"], part["produce"]) == (True, True, False)
    assert (topics["allow"], topics["produce"]) == (["orders", "pay-*"], True)
    assert "hint" not in told
    for name in ("asyncapi", "live", "module", "types"):
        assert (await shop.get(told["links"][name])).status_code == 200, name


def test_parameters_are_those_that_the_route_takes():
    told = describe_streams(loads(SHOP))
    always = ["until", "lastEventId", "wait", "positions", "credit"]
    assert list_parameters(told["/events/orders"]) == ["customer", "from", *always]
    assert list_parameters(told["/pay/{region}"]) == ["region", "card", "from", *always]
    assert list_parameters(told["/live"]) == always, "it has no history to begin in"
    chosen = ["from", "until", "lastEventId", "filter", "fields"]
    assert list_parameters(told["/part"]) == [*chosen, "wait", "positions", "credit"]
    assert "Allowed: orders, pay-*" in told["/topics/{names}"]["parameters"][0]["description"]
    customer, begin, *_ = told["/events/orders"]["parameters"]
    assert "required" not in customer, "one of the two paths does without"
    assert begin["default"] == "live" and "1d back" in begin["description"]
    region, card, begin, *_ = told["/pay/{region}"]["parameters"]
    assert (region["in"], card["in"]) == ("path", "query")
    assert region["required"] and card["required"]
    assert begin["default"] == "earliest"
    only = {each["name"]: each.get("transports") for each in told["/live"]["parameters"]}
    assert (only["wait"], only["credit"], only["until"]) == (["ndjson"], ["websocket"], None)


def test_the_lines_are_words_of_a_shell_whoever_wrote_the_path():
    text = SHOP.replace("/live}", "/li'v&e;$(id)}")
    path = "/li'v&e;$(id)"
    lines = [each["line"] for each in describe_streams(loads(text))[path]["examples"]]
    assert shlex.split(lines[0]) == ["curl", "-N", f"http://gw{path}"]
    assert shlex.split(lines[1])[-2:] == ["Accept: application/x-ndjson", f"http://gw{path}"]
    assert shlex.split(lines[2]) == ["npx", "wscat", "-c", f"ws://gw{path}"]
    lines = [each["line"] for each in describe_streams(loads(SHOP))["/pay/{region}"]["examples"]]
    assert shlex.split(lines[0])[-1] == "http://gw/pay/{region}?card={card}"


async def test_the_address_is_the_one_the_client_came_by():
    app = Starlette(routes=[Mount("/kafka", app=create_app(loads(SHOP)))])
    async with open_client(app, "https://shop.example") as http:
        told = (await http.get("/kafka/")).json()
        line = told["streams"][0]["examples"][0]["line"]
        assert line == "curl -N https://shop.example/kafka/events/orders"
        assert told["links"]["websocket"] == "wss://shop.example/kafka/ws"
        servers = (await http.get("/kafka/asyncapi.json")).json()["servers"]
        where = {"host": "shop.example", "pathname": "/kafka"}
        assert servers["websocket"] == {**where, "protocol": "wss"}


async def test_a_host_that_is_none_is_not_repeated_for_each_stream(shop: httpx.AsyncClient):
    for path in ("/", "/asyncapi.json"):
        answer = await shop.get(path, headers={"host": "a" * 60_000})
        assert answer.status_code == 400
        assert len(answer.content) < 1000


async def test_a_gateway_without_routes_says_so_and_what_to_do():
    async with open_client(create_app(loads(NONE))) as http:
        told = (await http.get("/")).json()
        page = (await http.get("/", headers={"accept": BROWSER})).text
        assert told["streams"] == []
        assert "has no routes; add one" in told["hint"]
        assert "This gateway has no routes; add one" in page
        assert find_faults((await http.get("/asyncapi.json")).json()) == []


SECRETS = """
name: vault
kafka:
  servers: [kafka.covert.example:9092]
  clientId: covert-client
  rack: covert-rack
  security:
    sasl: {mechanism: plain, username: covert-user, password: covert-password}
  topics: [{name: orders}]
routes:
  - when: [{path: /orders}]
    guarded: {jwt0: ["covert:role"]}
    with: {topic: orders, filters: [{key: "${env.KEY}"}]}
guards:
  jwt0:
    type: jwt
    issuer: https://covert.example
    audience: covert-audience
    keys: [{kty: oct, k: covert-key}]
catalogs:
  registry0:
    type: schema-registry
    url: https://covert.example
    username: covert-user
    password: covert-pw
telemetry: {traces: {otlp: "https://covert.example/v1"}}
"""


def test_nothing_is_told_that_a_client_must_not_know():
    settings = loads(SECRETS, environ={"KEY": "covert-value"})
    for told in (
        render_page(settings, "http://gw"),
        discovery.format_json(build_description(settings, "http://gw")),
        discovery.format_json(build_document(settings, "http://gw")),
    ):
        assert "orders" in told
        assert re.findall(r"\S*covert\S*", told, re.IGNORECASE) == []


def test_a_guarded_stream_names_its_guard_and_its_lines_have_a_token():
    settings = loads(SECRETS, environ={"KEY": "covert-value"})
    told = describe_streams(settings)["/orders"]
    assert told["guarded"] == ["jwt0"]
    assert "Authorization: Bearer TOKEN" in told["examples"][0]["line"]
    asyncapi = build_document(settings, "http://gw")
    assert find_faults(asyncapi) == []
    assert asyncapi["operations"]["orders.sse"]["security"]
    assert "sends no token" in render_page(settings, "http://gw")


GUARDS = """
kafka: {servers: [a:1], topics: [{name: orders}]}
listen: {forwarded: [10.0.0.1]}
guards:
  a token:
    type: jwt
    keys: https://covert.example
    credentials:
      headers: {authorization: "Bearer {credentials}"}
      cookies: {access: "{credentials}"}
      query: {t: "{credentials}"}
  ticket: {type: jwt, keys: https://covert.example, credentials: {query: {t: "{credentials}"}}}
  session: {type: http, url: https://covert.example, forward: {query: [once]}}
  machines: {type: x509, forwarded: true}
  dev: {type: inline, users: {ada: {password: covert}}}
routes:
"""


@pytest.mark.parametrize(
    ("guards", "lines", "by_page"),
    [
        (["a token"], ["curl -N -H 'Authorization: Bearer TOKEN' http", "-H 'Auth"], True),
        (["ticket"], ["curl -N 'http://gw/orders?t=TOKEN'", "'ws://gw/orders?t=TOKEN'"], False),
        (["session"], ["curl -N -H 'Cookie: NAME=VALUE' http", "-H 'Cookie"], True),
        (["machines"], ["curl -N --cert client.pem --key client.key http", "--cert"], True),
        (["dev"], ["curl -N -u NAME:PASSWORD http", "wscat --auth NAME:PASSWORD -c ws"], True),
        (
            ["dev", "ticket"],
            ["curl -N -u NAME:PASSWORD 'http://gw/orders?t=TOKEN'", "--auth NAME:PASSWORD"],
            False,
        ),
    ],
)
def test_a_guarded_stream_says_how_to_show_who_one_is(guards, lines, by_page):
    named = ", ".join(f"{name}: []" for name in guards)
    route = f"  - {{when: [{{path: /orders}}], guarded: {{{named}}}, with: {{topic: orders}}}}\n"
    settings = loads(GUARDS + route)
    examples = describe_streams(settings)["/orders"]["examples"]
    assert examples[0]["line"].startswith(lines[0]) and lines[1] in examples[2]["line"]
    asyncapi = build_document(settings, "http://gw")
    assert find_faults(asyncapi) == []
    told = [each["$ref"] for each in asyncapi["operations"]["orders.sse"]["security"]]
    schemes = asyncapi["components"]["securitySchemes"]
    assert {each.rpartition("/")[2] for each in told} == set(schemes)
    assert ("sends no token" not in render_page(settings, "http://gw")) == by_page
    for page in (render_page(settings, "http://gw"), str(asyncapi), str(examples)):
        assert "covert" not in page


@pytest.mark.parametrize(("path", "is_guarded"), [("/orders", False), ("/secret", True)])
def test_a_page_shows_how_scripts_open_a_stream(path: str, is_guarded: bool):
    """It had lines for curl and wscat alone, and its readers write pages."""
    routes: list[dict[str, Any]] = [{"when": [{"path": path}], "with": {"topic": "a"}}]
    guards: dict[str, Any] = {}
    if is_guarded:
        routes[0]["guarded"] = {"login": []}
        guards = {"login": {"type": "jwt", "issuer": "i", "audience": "a", "keys": "https://k"}}
    settings = Settings.model_validate(
        build_config(["localhost:9092"], ["a"], routes, guards=guards)
    )
    page = unescape(render_page(settings, "http://gw"))
    assert 'import { connect } from "http://gw/gateway.js";' in page
    assert 'import { connect } from "gateway.js";' in page
    assert f'("http://gw{path}", {{' in page
    assert ("token: async () =>" in page) is is_guarded


async def test_every_path_of_the_gateway_itself_is_refused_to_routes():
    served = [each for each in create_app(loads(SHOP)).routes if isinstance(each, Route)]
    assert served
    paths = {each.path for each in served if "{" not in each.path}
    assert paths <= RESERVED_PATHS | {"/metrics"}  # by its own option
    assert is_reserved_path(VERSIONED_MODULE_PATH)
    assert not is_reserved_path("/gateway-status")


# AsyncAPI


async def test_the_asyncapi_document_is_one_by_the_standards_own_schema(shop: httpx.AsyncClient):
    told = (await shop.get("/asyncapi.json")).json()
    assert find_faults(told) == []
    assert told["servers"]["http"] == {"host": "gw:8080", "protocol": "http"}
    addresses = {each["address"] for each in told["channels"].values()}
    paths = {path for stream in describe_streams(loads(SHOP)).values() for path in stream["paths"]}
    assert addresses == paths | {"/ws"}
    actions = {name: each["action"] for name, each in told["operations"].items()}
    assert actions["events-orders-customer.sse"] == "send", "the gateway sends"
    assert actions["multiplex.receive"] == "receive"


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (("asyncapi",), "2.6.0"),
        (("channels", "live.http", "adress"), "/live"),
        (("channels", "live.http", "address"), "/live/{region}"),
        (("operations", "live.sse", "action"), "subscribe"),
        (
            ("operations", "live.sse", "messages"),
            [{"$ref": "#/channels/raw.http/messages/sse-gap"}],
        ),
        (("components", "messages", "sse-gap", "payload", "$ref"), "#/components/schemas/gab"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_document_would_be_found(where: tuple[str, ...], what: Any):
    told = json.loads(json.dumps(build_document(loads(SHOP), "http://gw")))
    node = told
    for step in where[:-1]:
        node = node[step]
    node[where[-1]] = what
    assert find_faults(told) != []


@pytest.mark.parametrize(
    ("operation", "schema"),
    [
        ("events-orders", "value-json"),
        ("pay-region", "envelope"),
        ("live", "cloudevents"),
        ("raw", "value-base64"),
        ("part", "value-fields"),
        ("topics-names", "value-text"),
    ],
)
def test_records_have_the_schema_of_their_format(operation: str, schema: str):
    told = build_document(loads(SHOP), "http://gw")
    record = get_messages(told, f"{operation}.sse")["message"]
    assert record["payload"] == {"$ref": f"#/components/schemas/{schema}"}


TP, OTHER = TopicPartition("orders", 1), TopicPartition("orders", 2)
ENTRIES: list[Entry] = [
    Record(TP, 0, 1, 1_000, b"ada", b'{"order": 1, "total": 1.5}', (("a", b"b"), ("c", None))),
    Record(TP, 1, 1, 1_000, b"ada", None),
    Record(TP, 2, 1, -1, None, b'{"order": "\xc3\xa9"}', (("raw", b"\xff"),)),
    Gap(TP, 3, 9, 1, GapReason.RETENTION),
    Ready(TP, 9, 9, 1, is_approximate=True),
    Fault(TP, 9, 9, 1, "not-authorized"),
]
BEGIN = {
    "topics": ["orders"],
    "partitions": {"orders": 12},
    "pending": [{"topic": "orders", "partition": 1}],
    "resume": "exact",
    "view": "changed",
    "changed": True,
}
CHALLENGE = {"guard": "jwt0", "expires": 1_700_000_000.5, "url": "/streams/x/token"}
WIRES: dict[str, list[Wire]] = {
    "sse": [SseWire()],
    "ndjson": [NdjsonWire(), NdjsonWire(positions=True)],
    "websocket.send": [WebSocketWire(), WebSocketWire(labelled=True)],
}


def encode_entries(wire: Wire, format: Format) -> list[tuple[str, Any]]:
    """All that a client hears, by the names that tell it apart."""
    encoder = wire.create_encoder(format)
    entries = [entry._replace(tp=tp) for entry in ENTRIES for tp in (TP, OTHER)]
    entries += ENTRIES  # alone: `ready` and `error` of several partitions are other events
    heads = [(entry.tp, encoder.encode_entry(entry)) for entry in entries]
    events = [ChannelEvent(tp, head, b"AAAA") for tp, head in heads if head is not None]
    events.append(ChannelEvent(TP, encoder.encode_position(), b"AAAB"))
    data = wire.encode_begin(
        Beginning(BEGIN, b"AAA", position_refused=True)
    ) + encoder.encode_events(events, b"AAAAA")
    return decode_entries(wire, data + wire.encode_end(EndReason.UNTIL, b"AAA"))


def decode_entries(wire: Wire, data: bytes) -> list[tuple[str, Any]]:
    if isinstance(wire, SseWire):
        return [(each.event_type, each.data) for each in parse_stream(data)]
    if isinstance(wire, WebSocketWire):
        if wire.labelled:
            data = insert_member(data, encode_label("a"))
        heard = [json.loads(each) for each in frames(data)]
        return [(each["type"], each) for each in heard]
    lines = [json.loads(line) for line in data.splitlines() if line]
    return [(next(iter(line)) if "@" in str(line)[:3] else "record", line) for line in lines]


@pytest.mark.parametrize("kind", WIRES)
@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("events-orders", create_format("value")),
        ("part", create_format("value", fields=["/order"])),
        ("raw", create_format("value", binary="base64")),
        ("pay-region", create_format("envelope")),
        ("live", create_format("cloudevents")),
    ],
    ids=["value", "fields", "base64", "envelope", "cloudevents"],
)
def test_every_wire_sends_what_is_published_of_it(path: str, format: Format, kind: str):
    told = build_document(loads(SHOP), "http://gw")
    known = get_messages(told, f"{path}.{kind}")
    heard = set()
    for wire in WIRES[kind]:
        for name, payload in encode_entries(wire, format):
            text = kind == "sse" and known[name]["contentType"] == "text/plain"
            check_payload(
                told, known[name], json.loads(payload) if kind == "sse" and not text else payload
            )
            heard.add(name)
    assert known.keys() - heard <= {"renewed", "pong", "produced"}


@pytest.mark.parametrize("kind", WIRES)
def test_a_stream_that_asks_for_new_tokens_publishes_how_and_no_other_does(kind: str):
    text = """
      kafka: {servers: [a:9092], topics: [{name: t}]}
      guards: {dev: {type: inline, users: {ada: {token: t0p-secret}}}, app: {type: http, url: "http://a"}}
      routes:
        - {when: [{path: /asks}], guarded: {app: []}, with: {topic: t}}
        - {when: [{path: /dev}], guarded: {dev: []}, with: {topic: t}}
        - {when: [{path: /open}], with: {topic: t}}
    """
    whole = build_document(loads(text), "http://gw")
    name = "@challenge" if kind == "ndjson" else "challenge"
    for wire in WIRES[kind]:
        ((heard, payload),) = decode_entries(wire, wire.encode_event("challenge", CHALLENGE))
        assert heard == name
        known = get_messages(whole, f"asks.{kind}")[name]
        check_payload(whole, known, json.loads(payload) if kind == "sse" else payload)
    for path in ("dev", "open"):
        assert name not in get_messages(whole, f"{path}.{kind}")


@pytest.mark.parametrize("kind", WIRES)
def test_a_stream_that_begins_with_a_snapshot_publishes_its_end_and_no_other_does(kind: str):
    text = """
      kafka: {servers: [a:9092], topics: [{name: t}]}
      routes:
        - {when: [{path: /table}], with: {topic: t, mode: snapshot}}
        - {when: [{path: /live}], with: {topic: t}}
    """
    told = build_document(loads(text), "http://gw")
    name = "@snapshot-end" if kind == "ndjson" else "snapshot-end"
    known = get_messages(told, f"table.{kind}")[name]
    assert name not in get_messages(told, f"live.{kind}")
    for wire in WIRES[kind]:
        encoder = wire.create_encoder(create_format("value"))
        head = encoder.encode_entry(SnapshotEnd(("t",), 3, (TP,)))
        assert head is not None
        data = encoder.encode_events([ChannelEvent(None, head, b"AAAA")], b"AAAAA")
        if isinstance(wire, WebSocketWire) and wire.labelled:
            data = insert_member(data, encode_label("a"))
        if kind == "sse":
            payload = json.loads(parse_stream(data)[0].data)
        else:
            (payload,) = [json.loads(each) for each in (frames(data) if kind[0] == "w" else [data])]
        check_payload(told, known, payload)


def test_what_clients_say_is_published_as_it_is_read():
    told = build_document(loads(SHOP), "http://gw")
    known = get_messages(told, "multiplex.receive")
    for text in (
        '{"type": "subscribe", "id": "a", "path": "/part", "credit": 1, "until": 3}',
        '{"type": "change", "id": "a", "filter": {"key": "ada"}, "fields": ["/order"]}',
        '{"type": "produce", "id": "p", "path": "/part", "value": null, "key": "ada"}',
    ):
        parse_message(text)
        check_payload(told, known[json.loads(text)["type"]], json.loads(text))
    with pytest.raises(AssertionError):
        check_payload(told, known["credit"], {"type": "credit", "id": "a", "n": 0})


def test_a_route_that_may_be_written_to_says_how():
    told = build_document(loads(SHOP), "http://gw")
    produce = told["operations"]["topics-names.websocket.produce"]
    assert produce["action"] == "receive"
    assert [each["$ref"].rpartition("/")[2] for each in produce["reply"]["messages"]] == [
        "websocket-produced",
        "websocket-error",
    ]
    assert "events-orders.websocket.produce" not in told["operations"]


def test_paths_that_read_alike_have_channels_of_their_own():
    alike = "[{path: /e/a}, {path: '/e/{a}'}, {path: /multiplex}]"
    text = SHOP.replace("[{path: /live}]", alike)
    told = build_document(loads(text), "http://gw")
    assert find_faults(told) == []
    assert {"e-a.http", "e-a-2.http", "multiplex-2.http", "multiplex"} <= told["channels"].keys()


# The page


class PageParser(HTMLParser):
    """Its elements, their attributes and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def find_all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_what_an_operator_wrote_is_text_in_the_page():
    odd = """<script>alert(1)</script>"'$name"""
    text = SHOP.replace("name: shop", f"name: {json.dumps(odd)}")
    text = text.replace("/live}", "/li'v&e}")
    page = PageParser(render_page(loads(text), "http://gw"))
    assert odd in page.text
    assert [each.get("src") for each in page.find_all("script")] == ["discovery.js"]
    assert "/li'v&e" in [each["data-path"] for each in page.find_all("article")]
    assert "/li'v&e" in page.text


def test_every_path_has_a_card_with_a_field_for_what_it_needs():
    page = PageParser(render_page(loads(SHOP), "http://gw"))
    paths = [each["data-path"] for each in page.find_all("article")]
    assert paths[:3] == ["/events/orders", "/events/orders/{customer}", "/pay/{region}"]
    required = [each["name"] for each in page.find_all("input") if "required" in each]
    assert required == ["customer", "region", "card", "names"]
    labels = {each["for"] for each in page.find_all("label")}
    fields = [each["id"] for each in page.find_all("input")]
    assert labels == set(fields) and len(labels) == len(fields)


@pytest.mark.parametrize("count", [MIN_STREAMS_FOR_SEARCH - 1, MIN_STREAMS_FOR_SEARCH])
def test_there_is_a_search_where_there_are_many_streams(count: int):
    routes = "".join(
        f"\n  - {{when: [{{path: /e/{n}}}], with: {{topic: orders}}}}" for n in range(count)
    )
    text = SHOP[: SHOP.index("routes:")] + "routes:" + routes
    page = PageParser(render_page(loads(text), "http://gw"))
    search = next(each for each in page.find_all("div") if each.get("role") == "search")
    assert ("hidden" in search) is (count < MIN_STREAMS_FOR_SEARCH)


async def test_the_page_needs_nothing_that_its_policy_forbids(shop: httpx.AsyncClient):
    answer = await shop.get("/", headers={"accept": BROWSER})
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    page = PageParser(answer.text)
    asked = [*page.find_all("link"), *page.find_all("script")]
    wanted = [each.get("href") or each.get("src") for each in asked]
    for path in (each for each in wanted if each and not each.startswith("data:")):
        assert "//" not in path and not path.startswith("/")
        found = await shop.get(f"/{path}")
        assert found.status_code == 200, path
        assert found.headers["x-content-type-options"] == "nosniff"
    assert not [each for _, each in page.elements if "style" in each or "onclick" in each]
    script = (await shop.get("/discovery.js")).text
    assert "innerHTML" not in script and "insertAdjacentHTML" not in script


# The demo


async def test_the_demo_has_its_own_page_and_programs_find_the_streams():
    app = create_app(loads(demo.CONFIG), pages=demo.PAGES)
    async with open_client(app) as http:
        home = await http.get("/", headers={"accept": BROWSER})
        assert home.text == DEMO
        assert home.headers["vary"] == "Accept"
        assert len((await http.get("/")).json()["streams"]) == 4
        page = await http.get(discovery.STREAMS_PATH, headers={"accept": BROWSER})
        assert len(PageParser(page.text).find_all("article")) == 4


async def test_elsewhere_that_path_is_free_for_a_route(shop: httpx.AsyncClient):
    assert (await shop.get(discovery.STREAMS_PATH)).status_code == 404
