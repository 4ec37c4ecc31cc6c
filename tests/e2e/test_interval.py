"""interval: of what comes within it a client gets the latest record of each key, in one flush."""

from __future__ import annotations

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
ROUTES = {"50ms": {"format": "envelope", "interval": "50ms"}}


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
