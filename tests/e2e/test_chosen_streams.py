"""Streams that a client chooses over the socket: topics, filters, fields; and what it may not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest
import websockets
from support.clients.raw import RawClient
from support.gateways import GatewayThread, build_config, create_http_client
from support.multiplex import MultiplexClient
from support.records import RecordToSend, produce_records
from support.sse import SseEvent, parse_stream
from support.topic_gateway import run_gateway_sync

from gateway.kafka.embedded import EmbeddedKafka

CARD = b'"card": "4711"'
RECORDS = [
    RecordToSend(
        b'{"amount": 5, "region": "eu", %s}' % CARD, b"ada-1", headers=(("kind", b"new"),)
    ),
    RecordToSend(b'{"amount": 15.50, "region": "us", "email": "a@b", %s}' % CARD, b"ada-2"),
    RecordToSend(b'{"amount": 18446744073709551617, "region": "eu", %s}' % CARD, b"bob-1"),
    RecordToSend(b"no json", b"bob-2", headers=(("kind", b"old"),)),
    RecordToSend(None, b"ada-1"),
]
ROUTES = [
    ("/any/{t}", {"topics": ["${params.t}"], "allow": ["orders", "pay-*"], "clientFilters": True}),
    ("/new/{t}", {"topics": ["${params.t}"], "allow": ["new-*"], "clientFilters": True}),
    ("/one/{t}", {"topic": "${params.t}"}),
    ("/some", {"topic": "orders", "filters": [
        {"key": {"prefix": "ada-"}, "value": {"/amount": {"gte": "${query.min}"}}},
        {"headers": {"kind": {"in": ["old", "older"]}}, "value": {"/amount": {"exists": False}}},
    ]}),
    ("/free", {"topic": "orders", "clientFilters": True, "clientFields": True}),
    ("/shown", {"topic": "orders", "fields": ["/amount", "/email"], "clientFilters": True,
                "clientFields": True, "format": "value"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        for name in ("orders", "stock", "pay-eu", "pay-us", "hr-pay", "new-eu", "new-us"):
            kafka.create_topic(name)
        yield kafka


@pytest.fixture(scope="module")
def gateway(broker: EmbeddedKafka) -> Iterator[GatewayThread]:
    async def fill() -> None:
        await produce_records(broker.bootstrap, "orders", RECORDS)
        for name in ("stock", "pay-eu", "pay-us", "hr-pay"):
            await produce_records(broker.bootstrap, name, [name.encode()])

    asyncio.run(fill())
    made = [
        {"when": [{"path": path}], "with": {"format": "envelope", **options}}
        for path, options in ROUTES
    ]
    with run_gateway_sync(build_config(broker.bootstrap, ["orders", "stock"], made)) as gateway:
        yield gateway


async def get(gateway: GatewayThread, path: str, **query: Any) -> httpx.Response:
    asked = {"from": "earliest", "until": "latest", **query}
    async with create_http_client(gateway) as http:
        return await http.get(path, params=asked)


async def events(gateway: GatewayThread, path: str, **query: Any) -> list[SseEvent]:
    answer = await get(gateway, path, **query)
    assert answer.status_code == 200, answer.text
    return parse_stream(answer.content)


def records(found: Sequence[SseEvent]) -> list[SseEvent]:
    return [event for event in found if event.event_type in ("message", "delete")]


async def told(gateway: GatewayThread, path: str, **query: Any) -> list[tuple[str, int]]:
    """Topic and offset of every record, tombstones too."""
    found = [each.parse_json() for each in records(await events(gateway, path, **query))]
    return sorted((each["topic"], each["offset"]) for each in found)


async def problem(gateway: GatewayThread, path: str, **query: Any) -> Mapping[str, Any]:
    answer = await get(gateway, path, **query)
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    told: Mapping[str, Any] = answer.json()
    assert told["status"] == answer.status_code
    return told


# Topics


async def test_a_list_is_one_stream_of_all_its_topics(gateway: GatewayThread):
    found = await told(gateway, "/any/pay-us,pay-eu")
    assert found == [("pay-eu", 0), ("pay-us", 0)]
    begin = (await events(gateway, "/any/orders,pay-eu"))[0].parse_json()
    assert sorted(begin["topics"]) == ["orders", "pay-eu"]


async def test_a_pattern_is_a_stream_of_all_that_it_may_mean(gateway: GatewayThread):
    assert await told(gateway, "/any/pay-*") == [("pay-eu", 0), ("pay-us", 0)]
    assert {topic for topic, _ in await told(gateway, "/any/*")} == {"orders", "pay-eu", "pay-us"}
    assert await told(gateway, "/any/*-eu,pay-us") == [("pay-eu", 0), ("pay-us", 0)]


@pytest.mark.parametrize("path", ["/any/hr-pay", "/any/stock", "/any/orders,hr-pay", "/any/hr-*",
                                  "/any/__consumer_offsets", "/any/pay-none", "/any/orders,",
                                  "/one/pay-eu", "/one/orders,stock", "/one/o*"])  # fmt: skip
async def test_what_is_not_opened_is_not_there(gateway: GatewayThread, path: str):
    assert (await problem(gateway, path))["status"] == 404


async def test_a_topic_made_meanwhile_is_there_by_its_name_at_once(
    gateway: GatewayThread, broker: EmbeddedKafka
):
    await get(gateway, "/new/*")
    broker.create_topic("new-asia")
    await produce_records(broker.bootstrap, "new-asia", [b"1"])
    assert await told(gateway, "/new/new-asia") == [("new-asia", 0)]


async def test_a_pattern_hears_live_what_its_topics_get(
    gateway: GatewayThread, broker: EmbeddedKafka
):
    def messages(events: Sequence[Mapping[str, Any]]) -> list[str]:
        return sorted(each["data"] for each in events if each["event"] == "message")

    async with RawClient(f"{gateway.base_url}/new/*?filter=/live=yes") as client:
        await client.wait_for_events(lambda events: bool(events))
        for name in ("new-us", "new-eu"):
            await produce_records(broker.bootstrap, name, [b'{"live": "no"}', b'{"live": "yes"}'])
        await client.wait_for_events(lambda events: len(messages(events)) == 2)
        eu, us = messages(client.events)
        assert '"new-eu"' in eu and '"new-us"' in us
        assert r"\"yes\"" in eu and r"\"yes\"" in us


# Fields


async def test_only_the_fields_that_a_route_shows_leave_the_house(gateway: GatewayThread):
    answer = await get(gateway, "/shown")
    assert b"4711" not in answer.content and b"region" not in answer.content
    found = records(parse_stream(answer.content))
    assert [each.raw_data for each in found] == [
        b'{"amount":5}',
        b'{"amount":15.50,"email":"a@b"}',
        b'{"amount":18446744073709551617}',
        b'{"key":"ada-1"}',
    ]
    assert b"value-not-json" in answer.content
    assert found[-1].event_type == "delete"


# On a WebSocket


async def test_a_message_chooses_as_a_query_does(gateway: GatewayThread):
    """Also what a query cannot say: an integer of more than 64 bits, a name with a comma."""
    exact = {"value": {"/amount": {"gt": 18446744073709551616}}}
    url = f"ws://127.0.0.1:{gateway.port}/ws"
    async with asyncio.timeout(60), websockets.connect(url, proxy=None) as socket:
        more = {"from": "earliest", "until": "latest"}
        asked = [
            {"id": "list", "path": "/any/pay-*,orders?filter=!/card&filter=!header.kind"},
            {"id": "exact", "path": "/free", "filter": exact},
            {"id": "fields", "path": "/free?filter=key=bob-1", "fields": ["/region", "/a,b"]},
            {"id": "hidden", "path": "/shown", "filter": {"value": {"/card": "4711"}}},
        ]
        for each in asked:
            await socket.send(json.dumps({"type": "subscribe", **each, **more}))
        heard: dict[str, list[Any]] = {each["id"]: [] for each in asked}
        errors: dict[str, str] = {}
        left = set(heard)
        while left:
            message = json.loads(await socket.recv())
            label = message["id"]
            if message["type"] in ("records", "delete"):
                heard[label] += message.get("records") or [message["record"]]
            elif message["type"] == "error":
                errors[label] = message["message"]
            if message["type"] in ("end", "error"):
                left.discard(label)
        assert sorted((each["topic"], each["offset"]) for each in heard["list"]) == [
            ("orders", 4), ("pay-eu", 0), ("pay-us", 0),
        ]  # fmt: skip
        assert [each["offset"] for each in heard["exact"]] == [2]
        assert [each["value"] for each in heard["fields"]] == ['{"region":"eu"}']
        assert errors.keys() == {"hidden"} and "/card" in errors["hidden"]


async def test_all_streams_of_an_address_are_of_one_client_also_when_they_change(
    gateway: GatewayThread,
):
    """Or their private reads would not take turns with those of other clients."""
    hub = gateway.app.gateway.hubs.get_hub("")

    async def list_keys() -> list[str]:
        return [client.subscription.client_key for client in hub.clients]

    url = f"{gateway.base_url}/one/orders"
    async with RawClient(url) as client, MultiplexClient(gateway.base_url) as socket:
        await client.wait_for_events(1)
        await socket.subscribe("kept", "/one/orders")
        await socket.subscribe("changed", "/one/orders")
        await socket.change("changed", path="/one/stock")
        keys = await gateway.run(list_keys())
        assert len(keys) >= 3 and set(keys) == {"127.0.0.1"}
