"""maxRate: so many records in a time, for each client by itself; what is beyond comes later, or as
slowClient says, and nothing is lost that is not told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.raw import RawClient
from support.clients.wires import WireName, client_for_wire
from support.gateways import GatewayThread, build_config
from support.latest_values import (
    build_known_table,
    build_written_table,
    get_event_data,
    parse_envelopes,
)
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.records import RecordToSend, produce_records
from support.scrape import fetch_metrics
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

RATE = 40
RING = 150  # of these are more than a ring holds

BEHIND = "gateway_clients_behind", {"route": "/hourly", "state": "max-rate"}
TOPICS = {
    "orders": 3,
    "cut": 2,
    "hourly": 1,
    "large": 1,
    "ended": 1,
    "prices": 2,
    "past": 1,
    "page": 1,
    "table": 2,
}
kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    with_: dict[str, dict[str, Any]] = {
        "orders": {"topic": "orders"},
        "orders-slow": {"topic": "orders", "maxRate": f"{RATE}/s"},
        "cut": {"topic": "cut", "maxRate": f"{RATE}/s"},
        "hourly": {"topic": "hourly", "maxRate": "5/h"},
        "large": {"topic": "large", "maxRate": "5/h", "slowClient": "skip"},
        "ended": {"topic": "ended", "maxRate": "5/h", "slowClient": "disconnect"},
        "prices": {"topic": "prices", "maxRate": "10/s", "slowClient": "conflate"},
        "past": {"topic": "past", "maxRate": "60/s", "slowClient": "conflate"},
        "page": {"topic": "page", "maxRate": "7/h"},
        "snapshot": {"topic": "table", "maxRate": "20/s", "mode": "snapshot"},
        "interval": {"topic": "table", "maxRate": "20/s", "interval": "50ms"},
    }
    routes = [
        {"when": [{"path": f"/{path}"}], "with": {"format": "envelope", **each}}
        for path, each in with_.items()
    ]
    with run_gateway_sync(build_config(kafka.bootstrap, list(TOPICS), routes)) as gateway:
        yield gateway


@pytest.mark.parametrize(
    "wire",
    ["sse", *(pytest.param(wire, marks=pytest.mark.night) for wire in ("ndjson", "websocket"))],
)
async def test_one_gets_all_of_it_and_no_faster_than_it_may(
    gateway: GatewayThread, oracle: StreamOracle, wire: WireName
):
    count = 3 * RATE
    url, free = f"{gateway.base_url}/orders-slow", f"{gateway.base_url}/orders"
    async with (
        client_for_wire(wire, RawClient)(url) as client,
        client_for_wire(wire, RawClient)(free) as other,
    ):
        for each in (client, other):
            await each.wait_for_events(1)
        started = time.monotonic()
        made = await oracle.produce_records("orders", count)
        await other.wait_for_events(lambda events: len(parse_envelopes(events)) == count)
        await client.wait_for_events(lambda events: len(parse_envelopes(events)) == count)
        assert time.monotonic() - started > 2, "those of three seconds, in two at least"
        values = {each.value.decode() for each in made if each.value}
        assert {each["value"] for each in parse_envelopes(client.events)} == values
        for each in (client, other):
            oracle.check_events(each.events)
            assert not get_event_data(each.events, "gap")


async def test_it_is_exact_over_cuts_at_any_byte_and_from_the_beginning(
    gateway: GatewayThread, oracle: StreamOracle
):
    random = Random(7)
    url = f"{gateway.base_url}/cut?from=earliest"
    await oracle.produce_records("cut", 2 * RATE)
    async with FastReconnectClient(url) as client:
        for _ in range(4):
            await client.wait_for_events(1)
            client.cut_after(random.randrange(400, 6000), reset=random.random() < 0.3)
            await oracle.produce_records("cut", RATE // 2)
        await client.wait_for_events(lambda events: len(parse_envelopes(events)) >= 4 * RATE)
        assert client.open_count > 1
        oracle.check_events(client.events)


async def test_no_change_of_what_is_shown_gives_more(gateway: GatewayThread, oracle: StreamOracle):
    async with MultiplexClient(gateway.base_url) as socket:
        await socket.subscribe("a", "/hourly", credit=100)
        await oracle.produce_records("hourly", 20)
        await socket.wait_until(lambda: len(socket.get_records("a")) == 5)
        for n in range(3):
            await socket.change("a", **({"path": "/hourly"} if n % 2 else {"path": "/hourly?_n=1"}))
            await socket.wait_for_pong()
        assert len(socket.get_records("a")) == 5
        await socket.subscribe("b", "/hourly", **{"from": "earliest"})
        await socket.wait_until(lambda: len(socket.get_records("b")) == 5)
        assert len(socket.get_records("a")) == 5, "and each has its own"
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while (await fetch_metrics(gateway))[BEHIND] != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        oracle.check_events(socket.get_events("a"), end={TopicPartition("hourly", 0): 5})


async def test_one_that_may_be_conflated_is_so_while_it_catches_up(
    kafka: EmbeddedKafka, gateway: GatewayThread
):
    """It was sent each record of the past, and lagged further and further where more were written
    than its rate allows."""
    count = 3000  # more than it could be sent before it is waited for no longer
    sent = [RecordToSend(b"%d" % n, b"price-%d" % (n % 3)) for n in range(count)]
    await produce_records(kafka.bootstrap, "past", sent)
    async with RawClient(f"{gateway.base_url}/past?from=earliest") as client:
        await client.wait_for_events(
            lambda events: build_known_table(events) == build_written_table(sent)
        )
        assert len(parse_envelopes(client.events)) < count / 3


async def test_one_may_get_the_latest_of_what_it_was_too_slow_for(
    gateway: GatewayThread, kafka: EmbeddedKafka
):
    sent = [
        RecordToSend(b"%d " % n + b"x" * 10_000, f"k{n % 20}".encode(), n % 2)
        for n in range(4 * RING)
    ]
    async with RawClient(f"{gateway.base_url}/prices") as client:
        await client.wait_for_events(1)
        for start in range(0, len(sent), RING):
            await produce_records(kafka.bootstrap, "prices", sent[start : start + RING])
        await client.wait_for_events(
            lambda events: build_known_table(events) == build_written_table(sent)
        )
        offsets = [(r["partition"], r["offset"]) for r in parse_envelopes(client.events)]
        assert len(set(offsets)) == len(offsets) < len(sent)
        assert not get_event_data(client.events, "gap")


@pytest.mark.night  # each takes three seconds, as the rate says
@pytest.mark.parametrize("path", ["snapshot", "interval"])
async def test_tables_come_so_too_and_whole(
    gateway: GatewayThread, kafka: EmbeddedKafka, path: str
):
    """A flush, or what was read for all, is cut where the rate is used up."""
    keys = [f"{path}-{n}" for n in range(50)]
    rows = [
        RecordToSend(b"%d" % round, key.encode(), n % 2)
        for round in (1, 2)
        for n, key in enumerate(keys)
    ]
    before = rows if path == "snapshot" else rows[:1]
    await produce_records(kafka.bootstrap, "table", before)
    started = time.monotonic()
    async with RawClient(f"{gateway.base_url}/{path}") as client:
        await client.wait_for_events(1)
        await produce_records(kafka.bootstrap, "table", rows[len(before) :])
        await client.wait_for_events(
            lambda events: mine(build_known_table(events), path) == build_written_table(rows),
        )
        assert time.monotonic() - started > 2, "50 in three seconds"
        if path == "snapshot":
            await client.wait_for_events(lambda events: get_event_data(events, "snapshot-end"))
        last = RecordToSend(b"3", keys[0].encode(), 0)
        await produce_records(kafka.bootstrap, "table", [last])
        await client.wait_for_events(lambda events: build_known_table(events).get(keys[0]) == "3")
        offsets = [(r["partition"], r["offset"]) for r in parse_envelopes(client.events)]
        assert len(set(offsets)) == len(offsets)
        assert client.open_count == 1 and not get_event_data(client.events, "gap")


def mine(table: dict[str, str], path: str) -> dict[str, str]:
    return {key: value for key, value in table.items() if key.startswith(path)}


async def test_a_page_has_no_more_than_that_and_the_next_one_goes_on(
    gateway: GatewayThread, oracle: StreamOracle
):
    await oracle.produce_records("page", 20)
    lines: list[str] = []
    path = "/page?from=earliest&wait=0"
    async with httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S) as http:
        for most in (7, 7, 6):
            answer = await http.get(
                gateway.base_url + path, headers={"Accept": "application/x-ndjson"}
            )
            found = [line for line in answer.text.splitlines() if not line.startswith('{"@')]
            assert len(found) == most
            lines += found
            path = answer.links["next"]["url"]
    assert len(set(lines)) == 20
