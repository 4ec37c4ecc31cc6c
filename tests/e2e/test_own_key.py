"""Many clients of one topic, each with records of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.clients.fast_reconnect import FastReconnectClient, cut_at_random
from support.clients.raw import RawClient
from support.gateways import build_config, running_gateway
from support.kafka_proxy import ApiKey, KafkaProxy, SeenRequest
from support.oracle import AckedRecord, StreamOracle, parse_events
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.produce.pending_records import compute_partition

WHO = [f"customer-{n}" for n in range(10)]

Sees = Callable[[str, AckedRecord], bool]


def said(acked: AckedRecord) -> Any:
    return json.loads(acked.value or b"{}")


def is_whose(who: str, acked: AckedRecord) -> bool:
    return said(acked)["who"] == who


VIEWS: Mapping[str, tuple[list[dict[str, Any]], Sees]] = {
    "key": ([{"key": "${params.who}"}], is_whose),
    "field": ([{"value": {"/who": "${params.who}"}}], is_whose),
    "both": (
        [{"key": {"prefix": "customer"}, "value": {"/who": "${params.who}", "/odd": "true"}}],
        lambda who, acked: is_whose(who, acked) and said(acked)["odd"],
    ),
    "either": (
        [{"key": {"in": ["${params.who}", "customer-1"]}}, {"value": {"/n": {"lt": 5}}}],
        lambda who, acked: said(acked)["who"] in (who, "customer-1") or said(acked)["n"] < 5,
    ),
}


def own_routes(topic: str) -> list[dict[str, Any]]:
    """/VIEW/WHO, and all of it."""
    made = [
        {
            "when": [{"path": f"/{name}/{{who}}"}],
            "with": {"topic": topic, "format": "envelope", "filters": filters},
        }
        for name, (filters, _) in VIEWS.items()
    ]
    return [*made, {"when": [{"path": "/all"}], "with": {"topic": topic, "format": "envelope"}}]


async def has_all(
    oracle: StreamOracle, client: RawClient, view: Callable[[AckedRecord], bool]
) -> None:
    with contextlib.suppress(TimeoutError):  # the oracle says better what is missing
        await wait_until(
            lambda: not oracle.list_missing(parse_events(client.events), view),
            timeout_s=WAIT_TIMEOUT_S,
        )


def events_of(client: RawClient, partitions: int) -> list[dict[str, Any]]:
    """Those that came, without what a client of long ids may hear twice."""
    first = {key_of(each): each for each in reversed(client.events)}
    return [each for each in client.events if partitions < 100 or each is first[key_of(each)]]


def key_of(event: Mapping[str, Any]) -> tuple[Any, Any]:
    return event["event"], event["data"]


@pytest.mark.parametrize("partitions", [12, 450])
async def test_each_client_gets_all_of_its_own_records_and_no_other_whatever_is_cut(
    embedded: EmbeddedKafka, partitions: int
):
    """Of 450 partitions ids are too long to go with every event: what came after the last one
    comes again after a cut."""
    embedded.create_topic("orders", partitions)
    random = Random(7)
    config = build_config(embedded.bootstrap, ["orders"], own_routes("orders"))
    async with (
        running_gateway(config) as gateway,
        StreamOracle(",".join(embedded.bootstrap)) as oracle,
        AsyncExitStack() as stack,
    ):
        paths = {f"/{name}/{who}": (sees, who) for name, (_, sees) in VIEWS.items() for who in WHO}
        clients = {path: FastReconnectClient(gateway.base_url + path) for path in [*paths, "/all"]}
        for client in clients.values():
            await stack.enter_async_context(client)
        for client in clients.values():
            await client.wait_for_events(1)
        for n in range(30):
            who = random.choice(WHO)
            fields = {"who": who, "odd": bool(n % 2)}
            await oracle.produce_records(
                "orders", random.randrange(1, 6), key=who.encode(), fields=fields
            )
            if n < 25:
                cut_at_random(random.choice(list(clients.values())), random)
        start = {TopicPartition("orders", p): 0 for p in range(partitions)}
        for path, client in clients.items():
            sees, who = paths.get(path, (lambda who, acked: True, ""))
            view = lambda acked, sees=sees, who=who: sees(who, acked)  # noqa: E731
            await has_all(oracle, client, view)
            oracle.check_events(events_of(client, partitions), start=start, view=view)


class Private:
    """Partitions of which Kafka gave records to the gateway."""

    def __init__(self, proxy: KafkaProxy) -> None:
        self.partitions: set[int] = set()
        proxy.on_response = self._watch

    def _watch(self, request: SeenRequest, answer: dict[str, Any]) -> None:
        if request.api_key == ApiKey.FETCH:
            for topic in answer["topics"] or ():
                told = (each["partition"] for each in topic["partitions"] if each["records"])
                self.partitions.update(told)


async def place(servers: str, topic: str, count: int, turn: str) -> list[AckedRecord]:
    """Records of all customers, placed as the clients of Kafka in Java do."""
    placed: list[AckedRecord] = []

    def note(error: Any, message: Any) -> None:
        assert error is None, error
        tp = TopicPartition(message.topic(), message.partition())
        placed.append(AckedRecord(tp, message.offset(), message.key(), message.value()))

    def write() -> None:
        producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
        for who in WHO:
            for n in range(count):
                text = json.dumps({"who": who, "turn": turn, "n": n})
                producer.produce(topic, text.encode(), who.encode(), on_delivery=note)
        assert producer.flush(WAIT_TIMEOUT_S) == 0

    await asyncio.to_thread(write)
    return placed


async def test_who_asks_for_a_key_has_only_its_partition_read_until_their_number_changes(
    kafka: KafkaCluster,
):
    """Of the history, and of what was missed while the gateway was down."""
    topic, oracle = kafka.create_unique_topic(12), StreamOracle()
    key = WHO[4].encode()
    mine = compute_partition(key, 12)

    def is_mine(acked: AckedRecord) -> bool:
        return acked.key == key

    async def write(turn: str) -> None:
        oracle.add_acked(await place(kafka.bootstrap_servers, topic, 20, turn))
        reads.partitions.clear()

    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy:
        reads = Private(proxy)
        settings = {"name": topic, "partitioner": "murmur2"}
        await write("history")
        assert {acked.tp.partition for acked in oracle.list_acked() if is_mine(acked)} == {mine}
        async with (
            running_gateway(
                build_config(proxy.bootstrap, [settings], own_routes(topic))
            ) as gateway,
            FastReconnectClient(f"{gateway.base_url}/key/{WHO[4]}?from=earliest") as client,
        ):
            await has_all(oracle, client, is_mine)
            assert reads.partitions == {mine}
            await gateway.stop()
            await write("missed")
            await gateway.start()
            await has_all(oracle, client, is_mine)
            assert reads.partitions == {mine}
            await gateway.stop()
            await asyncio.to_thread(kafka.admin.add_partitions, topic, 24)
            await write("missed, and placed anew")
            assert len({acked.tp for acked in oracle.list_acked() if is_mine(acked)}) == 2
            await gateway.start()
            await has_all(oracle, client, is_mine)
            oracle.check_events(client.events, view=is_mine)
            assert reads.partitions > {compute_partition(key, 24)}
