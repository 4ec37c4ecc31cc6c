"""mode: snapshot. First the latest record of each key, then live, and nothing twice or missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.brokers import KafkaCluster
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.raw import RawClient
from support.clients.wires import WireName, client_for_wire, every_wire
from support.gateways import GatewayThread, build_config, create_http_client, running_gateway
from support.latest_values import (
    build_known_table,
    build_written_table,
    get_event_data,
    parse_envelopes,
)
from support.ndjson_parser import NdjsonParser
from support.oracle import read_records
from support.records import RecordToSend, produce_records
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

PARTITIONS = 3


def keyed(number: int, value: str | None) -> RecordToSend:
    return RecordToSend(
        None if value is None else value.encode(), b"k%d" % number, number % PARTITIONS
    )


HISTORY = [
    *(keyed(n, f"first-{n}") for n in range(30)),
    *(keyed(n, f"second-{n}") for n in range(0, 30, 2)),
    *(keyed(n, None) for n in range(0, 30, 5)),
    RecordToSend(b"no key", None, 0),
]
LATER = [
    keyed(1, "later"),
    keyed(2, None),
    keyed(99, "new"),
    RecordToSend(b"no key either", None, 1),
]


@asynccontextmanager
async def serving(
    servers: str | Sequence[str], *topics: str | dict[str, Any], **options: Any
) -> AsyncIterator[GatewayThread]:
    names = [each if isinstance(each, str) else each["name"] for each in topics]
    target = {"topics": names, "format": "envelope", "mode": "snapshot", **options}
    routes = [{"when": [{"path": "/table"}], "with": target}]
    async with running_gateway(build_config(servers, topics, routes)) as gateway:
        yield gateway


async def ended(client: RawClient, times: int = 1) -> None:
    await wait_until(
        lambda: len(get_event_data(client.events, "snapshot-end")) >= times,
        lambda: f"the end of the snapshot: {client.describe_state()}",
    )


async def knows(client: RawClient, table: dict[str, str]) -> None:
    await wait_until(
        lambda: build_known_table(client.events) == table,
        lambda: f"{table} by {client.describe_state()}",
    )


@every_wire
async def test_a_client_gets_the_latest_of_each_key_then_the_end_then_what_is_live(
    embedded: EmbeddedKafka, wire: WireName
):
    embedded.create_topic("prices", PARTITIONS)
    await produce_records(embedded.bootstrap, "prices", HISTORY)
    async with (
        serving(embedded.bootstrap, "prices") as gateway,
        client_for_wire(wire, FastReconnectClient)(f"{gateway.base_url}/table") as client,
    ):
        await ended(client)
        await produce_records(embedded.bootstrap, "prices", LATER)
        await knows(client, build_written_table(HISTORY + LATER))
        await wait_until(
            lambda: sum(r["key"] is None for r in parse_envelopes(client.events)) == 2,
            "both",
        )
        (end,) = get_event_data(client.events, "snapshot-end")
        at = next(n for n, e in enumerate(client.events) if e["event"] == "snapshot-end")
        first, then = parse_envelopes(client.events[:at]), parse_envelopes(client.events[at:])
        assert end == {"topics": ["prices"], "records": len(build_written_table(HISTORY)) + 1}
        assert len(first) == end["records"]
        assert {r["key"]: r["value"] for r in first if r["key"]} == build_written_table(HISTORY)
        for p in range(PARTITIONS):
            offsets = [r["offset"] for r in first if r["partition"] == p]
            assert offsets == sorted(offsets)
        assert len(then) == len(LATER), "each once, the tombstone too"
        assert get_event_data(client.events, "begin")[0]["resume"] == "batch"


@every_wire
async def test_one_that_is_cut_again_and_again_knows_it_all_in_the_end(
    embedded: EmbeddedKafka, wire: WireName
):
    """And hears of what was deleted while it was away: what it has must not stay."""
    embedded.create_topic("prices", PARTITIONS)
    pad = "x" * 500
    history = [keyed(n, f"{n} {pad}") for n in range(600)]
    await produce_records(embedded.bootstrap, "prices", history)
    deletes = [keyed(n, None) for n in range(0, 600, 7)]
    async with serving(embedded.bootstrap, "prices") as gateway:
        client = client_for_wire(wire, FastReconnectClient)(f"{gateway.base_url}/table")
        client.cut_after(120_000)
        async with client:
            await wait_until(lambda: client.open_count == 2, "a cut")
            client.cut_after(100_000)
            history += deletes
            await produce_records(embedded.bootstrap, "prices", deletes)
            await ended(client)
            await knows(client, build_written_table(history))
            second = [n for n, e in enumerate(client.events) if e["event"] == "begin"][1]
            assert not get_event_data(client.events[:second], "snapshot-end"), "it was cut within"
            before, ends = client.open_count, len(get_event_data(client.events, "snapshot-end"))
            client.cut()
            await wait_until(lambda: client.open_count > before, "it comes back")
            await ended(client, ends + 1)
            await produce_records(embedded.bootstrap, "prices", LATER)
            await knows(client, build_written_table(history + LATER))
        assert not get_event_data(client.events, "gap")


async def test_who_says_where_to_begin_gets_no_snapshot(embedded: EmbeddedKafka):
    embedded.create_topic("prices", PARTITIONS)
    await produce_records(embedded.bootstrap, "prices", HISTORY)
    async with (
        serving(embedded.bootstrap, "prices") as gateway,
        RawClient(f"{gateway.base_url}/table?from=earliest") as client,
    ):
        await wait_until(lambda: len(parse_envelopes(client.events)) == len(HISTORY), "all of it")
        assert not get_event_data(client.events, "snapshot-end")


async def test_until_latest_is_the_snapshot_and_its_end(embedded: EmbeddedKafka):
    embedded.create_topic("prices", PARTITIONS)
    embedded.create_topic("empty", 1)
    await produce_records(embedded.bootstrap, "prices", HISTORY)
    async with (
        serving(embedded.bootstrap, "prices", "empty") as gateway,
        create_http_client(gateway) as http,
    ):
        answer = await http.get(
            "/table?until=latest&positions", headers={"Accept": "application/x-ndjson"}
        )
        events = [
            {"event": e.event_type, "data": e.data} for e in NdjsonParser().feed(answer.content)
        ]
        assert build_known_table(events) == build_written_table(HISTORY)
        names = [e["event"] for e in events if e["event"] != "message"]
        assert names == ["begin", "snapshot-end", "end"]


OWNED = [
    RecordToSend(b'{"owner": "ada", "n": 1}', b"k1"),
    RecordToSend(b'{"owner": "bob", "n": 2}', b"k1"),
    RecordToSend(b'{"owner": "ada", "n": 3}', b"k2"),
    RecordToSend(b'{"owner": "ada", "n": 4}', b"k2"),
    RecordToSend(b'{"owner": "ada", "n": 5}', b"k3"),
    RecordToSend(b'{"owner": "bob", "n": 6}', b"k3"),
    RecordToSend(None, b"k3"),
    RecordToSend(b'{"owner": "bob", "n": 7}', b"k4"),
]
OF_ADA = {"filters": [{"value": {"/owner": "ada"}}], "format": "value"}


@pytest.mark.parametrize("cache", ["64MiB", "1KiB"], ids=["held", "spilled"])
async def test_what_a_view_does_not_show_replaces_nothing_in_its_snapshot(
    embedded: EmbeddedKafka, cache: str, caplog: pytest.LogCaptureFixture
):
    """Tables were made before filters looked: whoever came after k1 went to another owner was not
    shown the last record of it that it may see, and a live client had it. A tombstone removes its
    key for all."""
    embedded.create_topic("prices", 1)
    padding = [RecordToSend(b"x" * 400, b"p%d" % n) for n in range(4)]
    await produce_records(embedded.bootstrap, "prices", [*OWNED[:4], *padding, *OWNED[4:]])
    topic = {"name": "prices", "cache": {"bytes": cache}}
    async with serving(embedded.bootstrap, topic, **OF_ADA) as gateway:
        for _ in range(2):
            async with RawClient(f"{gateway.base_url}/table") as client:
                await ended(client)
                shown = [json.loads(e["data"])["n"] for e in client.events if is_record(e)]
                assert shown == [1, 4]
        assert ("raise cache.bytes of the topic" in caplog.text) == (cache == "1KiB")
        more = [
            OWNED[0],
            RecordToSend(b'{"owner": "bob", "n": 8}', b"k2"),
            RecordToSend(None, b"k1"),
        ]
        await produce_records(embedded.bootstrap, "prices", more)
        async with RawClient(f"{gateway.base_url}/table") as client:
            await ended(client)
            assert [json.loads(e["data"])["n"] for e in client.events if is_record(e)] == [4]


def is_record(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "message")


async def test_a_topic_that_kafka_has_compacted_is_whole_and_another_is_warned_of(
    retention_kafka: KafkaCluster, topic: Callable[..., str], caplog: pytest.LogCaptureFixture
):
    """With the holes of compaction among the offsets; none of them is a gap."""
    configs = {
        "cleanup.policy": "compact", "segment.ms": "200", "max.compaction.lag.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
    }  # fmt: skip
    compacted, plain = topic(partitions=1, configs=configs), topic(partitions=1)
    servers = retention_kafka.bootstrap_servers
    history = [RecordToSend(b"%d" % n, b"k%d" % (n % 7)) for n in range(70)]
    await produce_records(retention_kafka.bootstrap, compacted, history)
    await produce_records(retention_kafka.bootstrap, plain, [RecordToSend(b"v", b"plain")])
    for n in range(600):  # the segment that is written to is not compacted
        history.append(RecordToSend(b"%d" % n, b"roll"))
        await produce_records(retention_kafka.bootstrap, compacted, history[-1:])
        if len(await read_records(servers, compacted)) < 70:
            break
        await asyncio.sleep(0.1)
    async with serving(servers, compacted, plain) as gateway:
        async with RawClient(f"{gateway.base_url}/table") as client:
            await ended(client)
            assert build_known_table(client.events) == {
                **build_written_table(history),
                "plain": "v",
            }
            assert len(parse_envelopes(client.events)) == len(build_written_table(history)) + 1
            assert not get_event_data(client.events, "gap")
        await wait_until(
            lambda: f"{plain} has cleanup.policy=delete" in caplog.text,
            "the warning",
        )
        assert f"{compacted} has cleanup.policy" not in caplog.text
