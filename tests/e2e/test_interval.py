"""interval: of what comes within it a client gets the latest record of each key, in one flush."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.raw import RawClient
from support.clients.wires import WireName, client_for_wire, every_wire
from support.gateways import GatewayThread
from support.latest_values import build_known_table, build_written_table, parse_envelopes
from support.records import RecordToSend, produce_records
from support.topic_gateway import TopicNames, build_topic_config, run_gateway_sync, topic_fixture
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

PARTITIONS = 2
KEYS = 5
ROUNDS = 40


kafka = embedded_kafka()
topic = topic_fixture()
INTERVALS = ("50ms", "1s", "2s", "60s")
ROUTES: dict[str, dict[str, Any]] = {
    "all": {"format": "envelope"},
    **{each: {"format": "envelope", "interval": each} for each in INTERVALS},
}


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka, names: TopicNames) -> Iterator[GatewayThread]:
    with run_gateway_sync(build_topic_config(",".join(kafka.bootstrap), names, ROUTES)) as gateway:
        yield gateway


def row(key: int, value: int) -> RecordToSend:
    return RecordToSend(b"%d" % value, b"k%d" % key, key % PARTITIONS)


async def begun(*clients: RawClient) -> None:
    for client in clients:
        await client.wait_for_events(1)


def has_all(client: RawClient, sent: Sequence[RecordToSend]) -> Any:
    """It knows the latest, and has every record without a key."""
    plain = sum(each.key is None for each in sent)

    def has() -> bool:
        got = {
            (r["partition"], r["offset"])
            for r in parse_envelopes(client.events)
            if r["key"] is None
        }
        return build_known_table(client.events) == build_written_table(sent) and len(got) == plain

    return has


@every_wire
async def test_a_flush_has_the_latest_of_each_key_and_all_without_one(
    kafka: EmbeddedKafka, gateway: GatewayThread, topic: Callable[..., str], wire: WireName
):
    prices = topic(PARTITIONS)
    async with (
        client_for_wire(wire, FastReconnectClient)(f"{gateway.base_url}/1s/{prices}") as client,
        client_for_wire(wire, FastReconnectClient)(f"{gateway.base_url}/all/{prices}") as whole,
    ):
        await begun(client, whole)
        sent = [row(k, n) for n in range(ROUNDS) for k in range(KEYS)]
        sent += [RecordToSend(b"%d" % n, None, n % PARTITIONS) for n in range(ROUNDS)]
        sent += [RecordToSend(None, b"k0", 0)]
        await produce_records(kafka.bootstrap, prices, sent)
        await wait_until(has_all(client, sent), lambda: f"the latest: {client.describe_state()}")
        await wait_until(lambda: len(parse_envelopes(whole.events)) == len(sent), "all of it")
        # What was sent in less than some seconds is some flushes, not one for every record.
        assert len(parse_envelopes(client.events)) - ROUNDS < KEYS * ROUNDS / 2


async def test_only_the_last_event_of_a_flush_has_an_id(
    kafka: EmbeddedKafka, gateway: GatewayThread, topic: Callable[..., str]
):
    prices = topic(PARTITIONS)
    async with (
        RawClient(f"{gateway.base_url}/2s/{prices}") as client,
    ):
        await begun(client)
        sent = [row(k, n) for n in range(3) for k in range(KEYS)]
        await produce_records(kafka.bootstrap, prices, sent)
        await wait_until(has_all(client, sent), "the latest")
        blocks = [b for b in client.body.split(b"\n\n") if b.startswith(b"data:")]
        ids = [b"\nid:" in block for block in blocks]
        assert ids[-1]
        assert not all(ids), "those before it have none"
        assert client.events[0]["event"] == "begin"
        assert json.loads(client.events[0]["data"])["resume"] == "batch"


@every_wire
async def test_one_that_is_cut_anywhere_knows_the_latest_in_the_end(
    kafka: EmbeddedKafka, gateway: GatewayThread, topic: Callable[..., str], wire: WireName
):
    prices = topic(PARTITIONS)
    random = Random(7)
    async with (
        client_for_wire(wire, FastReconnectClient)(f"{gateway.base_url}/50ms/{prices}") as client,
    ):
        await begun(client)
        sent: list[RecordToSend] = []
        for n in range(ROUNDS):
            more = [row(random.randrange(KEYS), n) for _ in range(20)]
            more += [RecordToSend(b"%d" % n, None, n % PARTITIONS)]
            if n % 5 == 0:
                more += [RecordToSend(None, b"k%d" % (n % KEYS), n % KEYS % PARTITIONS)]
            await produce_records(kafka.bootstrap, prices, more)
            sent += more
            if n % 4 == 0:
                client.cut_after(random.randrange(1, 2000), reset=n % 8 == 0)
        client.cut()
        opened = client.open_count
        await wait_until(lambda: client.open_count > opened, "it comes back")
        await wait_until(has_all(client, sent), lambda: f"the latest: {client.describe_state()}")


async def test_clients_of_the_same_topic_with_and_without_an_interval_do_not_disturb_each_other(
    kafka: EmbeddedKafka,
    gateway: GatewayThread,
    topic: Callable[..., str],
):
    """A long interval holds nobody up: not who comes, and not who has none."""
    prices = topic(PARTITIONS)
    async with (
        RawClient(f"{gateway.base_url}/60s/{prices}") as first,
        RawClient(f"{gateway.base_url}/all/{prices}") as whole,
    ):
        await begun(first, whole)
        sent = [row(1, n) for n in range(10)]
        for each in sent:
            await produce_records(kafka.bootstrap, prices, [each])
        await wait_until(lambda: len(parse_envelopes(whole.events)) == 10, "all of it")
        async with RawClient(f"{gateway.base_url}/60s/{prices}") as late:
            await begun(late)
        assert len(parse_envelopes(first.events)) < 10
