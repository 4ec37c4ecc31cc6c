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
from support.any_topic import serving
from support.brokers import embedded_kafka
from support.clients.hasty import Hasty
from support.clients.raw import RawClient
from support.clients.wires import Wire, every_wire, over
from support.gateways import Gateway, config_for
from support.heard import GapEvent, heard
from support.latest import known, named, records, written
from support.multiplex import Multiplex
from support.oracle import Oracle
from support.records import Sent, produce
from support.scrape import scraped

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

WITHIN = 60.0
RATE = 40
PAD = {"pad": "x" * 10_000}
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
def gateway(kafka: EmbeddedKafka) -> Iterator[Gateway]:
    with_: dict[str, dict[str, Any]] = {
        "orders": {"topic": "orders"},
        "orders-slow": {"topic": "orders", "maxRate": f"{RATE}/s"},
        "cut": {"topic": "cut", "maxRate": f"{RATE}/s"},
        "hourly": {"topic": "hourly", "maxRate": "5/h"},
        "large": {"topic": "large", "maxRate": "5/h", "slowClient": "skip"},
        "ended": {"topic": "ended", "maxRate": "5/h", "slowClient": "disconnect"},
        "prices": {"topic": "prices", "maxRate": "60/s", "slowClient": "conflate"},
        "past": {"topic": "past", "maxRate": "60/s", "slowClient": "conflate"},
        "page": {"topic": "page", "maxRate": "7/h"},
        "snapshot": {"topic": "table", "maxRate": "20/s", "mode": "snapshot"},
        "interval": {"topic": "table", "maxRate": "20/s", "interval": "50ms"},
    }
    routes = [
        {"when": [{"path": f"/{path}"}], "with": {"format": "envelope", **each}}
        for path, each in with_.items()
    ]
    with serving(config_for(kafka.bootstrap, list(TOPICS), routes)) as gateway:
        yield gateway


@every_wire
async def test_one_gets_all_of_it_and_no_faster_than_it_may(
    gateway: Gateway, oracle: Oracle, wire: Wire
):
    count = 3 * RATE
    url, free = f"{gateway.base_url}/orders-slow", f"{gateway.base_url}/orders"
    async with over(wire, RawClient)(url) as client, over(wire, RawClient)(free) as other:
        for each in (client, other):
            await each.wait(1, WITHIN)
        started = time.monotonic()
        made = await oracle.produce("orders", count)
        await other.wait(lambda events: len(records(events)) == count, WITHIN)
        await client.wait(lambda events: len(records(events)) == count, WITHIN)
        assert time.monotonic() - started > 2, "those of three seconds, in two at least"
        values = {each.value.decode() for each in made if each.value}
        assert {each["value"] for each in records(client.events)} == values
        for each in (client, other):
            oracle.check_events(each.events)
            assert not named(each.events, "gap")


async def test_it_is_exact_over_cuts_at_any_byte_and_from_the_beginning(
    gateway: Gateway, oracle: Oracle
):
    random = Random(7)
    url = f"{gateway.base_url}/cut?from=earliest"
    await oracle.produce("cut", 2 * RATE)
    async with Hasty(url) as client:
        for _ in range(4):
            await client.wait(1, WITHIN)
            client.cut_after(random.randrange(400, 6000), reset=random.random() < 0.3)
            await oracle.produce("cut", RATE // 2)
        await client.wait(lambda events: len(records(events)) >= 4 * RATE, WITHIN)
        assert client.opened > 1
        oracle.check_events(client.events)


async def test_no_change_of_what_is_shown_gives_more(gateway: Gateway, oracle: Oracle):
    async with Multiplex(gateway.base_url) as socket:
        await socket.subscribe("a", "/hourly", credit=100)
        await oracle.produce("hourly", 20)
        await socket.wait(lambda: len(socket.records("a")) == 5)
        for n in range(3):
            await socket.change("a", **({"path": "/hourly"} if n % 2 else {"path": "/hourly?n=1"}))
            await socket.answers()
        assert len(socket.records("a")) == 5
        await socket.subscribe("b", "/hourly", **{"from": "earliest"})
        await socket.wait(lambda: len(socket.records("b")) == 5)
        assert len(socket.records("a")) == 5, "and each has its own"
        async with asyncio.timeout(WITHIN):
            while (await scraped(gateway))[BEHIND] != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        oracle.check_events(socket.events("a"), end={TopicPartition("hourly", 0): 5})


async def test_one_that_may_skip_is_told_what_it_did_not_get(gateway: Gateway, oracle: Oracle):
    async with RawClient(f"{gateway.base_url}/large") as client:
        await client.wait(1, WITHIN)
        for _ in range(2):
            await oracle.produce("large", RING, fields=PAD)
        await client.wait(lambda events: named(events, "gap"), WITHIN)
        assert len(records(client.events)) == 5
        gaps = [each for each in heard(client.events) if isinstance(each, GapEvent)]
        assert {gap.reason for gap in gaps} == {"skipped"}
        assert all(gap.start >= 5 for gap in gaps)


async def test_one_that_may_be_conflated_is_so_while_it_catches_up(
    kafka: EmbeddedKafka, gateway: Gateway
):
    """It was sent each record of the past, and lagged further and further where more were written
    than its rate allows."""
    count = 3000  # more than it could be sent before it is waited for no longer
    sent = [Sent(b"%d" % n, b"price-%d" % (n % 3)) for n in range(count)]
    await produce(kafka.bootstrap, "past", sent)
    async with RawClient(f"{gateway.base_url}/past?from=earliest") as client:
        await client.wait(lambda events: known(events) == written(sent), WITHIN)
        assert len(records(client.events)) < count / 3


async def test_one_that_may_not_be_slow_is_ended(gateway: Gateway, oracle: Oracle):
    async with Multiplex(gateway.base_url) as socket:
        await socket.subscribe("a", "/ended")
        for _ in range(2):
            await oracle.produce("ended", RING, fields=PAD)
        assert (await socket.next("a", "end"))["reason"] == "slow"
        assert len(socket.records("a")) == 5
        oracle.check_events(socket.events("a")[:-1], end={TopicPartition("ended", 0): 5})


async def test_one_may_get_the_latest_of_what_it_was_too_slow_for(
    gateway: Gateway, kafka: EmbeddedKafka
):
    sent = [Sent(b"%d " % n + b"x" * 10_000, f"k{n % 20}".encode(), n % 2) for n in range(4 * RING)]
    async with RawClient(f"{gateway.base_url}/prices") as client:
        await client.wait(1, WITHIN)
        for start in range(0, len(sent), RING):
            await produce(kafka.bootstrap, "prices", sent[start : start + RING])
        await client.wait(lambda events: known(events) == written(sent), WITHIN)
        offsets = [(r["partition"], r["offset"]) for r in records(client.events)]
        assert len(set(offsets)) == len(offsets) < len(sent)
        assert not named(client.events, "gap")


@pytest.mark.parametrize("path", ["snapshot", "interval"])
async def test_tables_come_so_too_and_whole(gateway: Gateway, kafka: EmbeddedKafka, path: str):
    """A flush, or what was read for all, is cut where the rate is used up."""
    keys = [f"{path}-{n}" for n in range(50)]
    rows = [
        Sent(b"%d" % round, key.encode(), n % 2) for round in (1, 2) for n, key in enumerate(keys)
    ]
    before = rows if path == "snapshot" else rows[:1]
    await produce(kafka.bootstrap, "table", before)
    started = time.monotonic()
    async with RawClient(f"{gateway.base_url}/{path}") as client:
        await client.wait(1, WITHIN)
        await produce(kafka.bootstrap, "table", rows[len(before) :])
        await client.wait(lambda events: mine(known(events), path) == written(rows), WITHIN)
        assert time.monotonic() - started > 2, "50 in three seconds"
        if path == "snapshot":
            await client.wait(lambda events: named(events, "snapshot-end"), WITHIN)
        last = Sent(b"3", keys[0].encode(), 0)
        await produce(kafka.bootstrap, "table", [last])
        await client.wait(lambda events: known(events).get(keys[0]) == "3", WITHIN)
        offsets = [(r["partition"], r["offset"]) for r in records(client.events)]
        assert len(set(offsets)) == len(offsets)
        assert client.opened == 1 and not named(client.events, "gap")


def mine(table: dict[str, str], path: str) -> dict[str, str]:
    return {key: value for key, value in table.items() if key.startswith(path)}


async def test_a_page_has_no_more_than_that_and_the_next_one_goes_on(
    gateway: Gateway, oracle: Oracle
):
    await oracle.produce("page", 20)
    lines: list[str] = []
    path = "/page?from=earliest&wait=0"
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN) as http:
        for most in (7, 7, 6):
            answer = await http.get(
                gateway.base_url + path, headers={"Accept": "application/x-ndjson"}
            )
            found = [line for line in answer.text.splitlines() if not line.startswith('{"@')]
            assert len(found) == most
            lines += found
            path = answer.links["next"]["url"]
    assert len(set(lines)) == 20
