"""What a transaction holds is there as a whole or not at all, and its id has one owner."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator

import pytest
from support.brokers import Broker
from support.oracle import read_records
from support.proxy import Api, KafkaProxy, Request

from gateway.core.log.record import TopicPartition
from gateway.errors import AccessDenied, Fenced, PartitionFailed
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.commits import Commits
from gateway.kafka.produce.transactions import Placed, Transactions, Write


@pytest.fixture
async def cluster(kafka: Broker) -> AsyncIterator[Cluster]:
    async with Cluster(ClusterSettings(kafka.bootstrap)) as cluster:
        yield cluster


async def watched(cluster: Cluster, topic: str) -> str:
    cluster.metadata.watch(topic, await cluster.describe(topic))
    return topic


def write(topic: str, value: bytes | None, partition: int = 0, key: bytes | None = b"k") -> Write:
    headers = [("a", b"1"), ("a", None)]
    now = time.time_ns() // 1_000_000
    return Write(TopicPartition(topic, partition), key, value, headers, now)


async def test_what_is_committed_is_there_with_its_offsets(kafka: Broker, cluster: Cluster) -> None:
    topic = await watched(cluster, kafka.topic(partitions=2))
    tp, group = TopicPartition(topic, 0), f"{topic}.group"
    writer = Transactions(cluster, f"{topic}-w")
    await writer.start()

    placed = await writer.commit(
        [write(topic, b"a"), write(topic, None), write(topic, b"c", 1)],
        group=group,
        offsets={tp: 7},
    )
    await writer.commit([write(topic, b"d", key=None)])

    assert placed[tp] == [0, 1]
    found = await read_records(kafka.servers, topic, least=4)
    assert sorted((each.tp.partition, each.value) for each in found if each.value) == [
        (0, b"a"),
        (0, b"d"),
        (1, b"c"),
    ]
    committed = await Commits(cluster.coordinators, group).committed([tp])
    assert committed[tp].offset == 7


async def test_who_had_the_id_before_writes_nothing_more(kafka: Broker, cluster: Cluster) -> None:
    topic = await watched(cluster, kafka.topic())
    first, second = (Transactions(cluster, f"{topic}-w") for _ in range(2))
    await first.start()
    await second.start()

    with pytest.raises(Fenced):
        await first.commit([write(topic, b"first")])
    await second.commit([write(topic, b"second")])

    found = await read_records(kafka.servers, topic, least=1)
    assert [each.value for each in found] == [b"second"]
    assert not first.started


async def test_a_record_that_is_refused_takes_all_others_with_it(
    kafka: Broker, cluster: Cluster
) -> None:
    topic = await watched(cluster, kafka.topic())
    small = await watched(cluster, kafka.topic(configs={"max.message.bytes": "1000"}))
    writer = Transactions(cluster, f"{topic}-w")
    await writer.start()

    with pytest.raises(PartitionFailed) as failed:
        await writer.commit([write(topic, b"fine"), write(small, b"x" * 5000)])
    await writer.start()
    await writer.commit([write(topic, b"after")])

    assert failed.value.code == 10
    found = await read_records(kafka.servers, topic, least=1)
    assert [each.value for each in found] == [b"after"]


async def test_a_topic_that_is_not_known_yet_holds_up_the_others(
    kafka: Broker, cluster: Cluster
) -> None:
    """Kafka says of the others that they were not attempted, which was taken for the reason."""
    topic = await watched(cluster, kafka.topic())
    late = await watched(cluster, kafka.topic())
    kafka.admin.delete_topic(late)
    writer = Transactions(cluster, f"{topic}-w")
    await writer.start()

    commit = asyncio.create_task(writer.commit([write(topic, b"here"), write(late, b"there")]))
    refused = await asyncio.wait([commit], timeout=1.0)
    kafka.create_topic(late)
    await commit

    assert not refused[0]
    for each, value in ((topic, b"here"), (late, b"there")):
        assert [r.value for r in await read_records(kafka.servers, each, least=1)] == [value]


async def test_who_is_fenced_before_a_refusal_is_undone_is_told(kafka: Broker) -> None:
    """The refusal was told alone, as if the id were still the writer's own."""
    name = kafka.topic(configs={"max.message.bytes": "1000"})
    asked = asyncio.Event()

    def hold_end(request: Request) -> bytes | None:
        if request.api_key != Api.END_TXN:
            return None
        asked.set()
        return struct.pack(">ih", 0, 51)  # CONCURRENT_TRANSACTIONS: it is to be asked again

    async with (
        KafkaProxy.around(kafka.servers) as proxy,
        Cluster(ClusterSettings(proxy.bootstrap.split(","))) as behind,
        Cluster(ClusterSettings(kafka.bootstrap)) as cluster,
    ):
        topic = await watched(behind, name)
        first, second = (Transactions(each, f"{topic}-w") for each in (behind, cluster))
        await first.start()
        proxy.on_request = hold_end
        refused = asyncio.create_task(first.commit([write(topic, b"x" * 5000)]))
        async with asyncio.timeout(60):
            await asked.wait()
            await second.start()
        proxy.on_request = None
        with pytest.raises(Fenced):
            await refused
        assert not first.started


async def test_an_id_is_still_ours_when_a_refusal_is_undone(
    kafka: Broker, cluster: Cluster
) -> None:
    topic = await watched(cluster, kafka.topic(configs={"max.message.bytes": "1000"}))
    writer = Transactions(cluster, f"{topic}-w")
    await writer.start()
    for value in (b"a", b"b"):
        with pytest.raises(PartitionFailed):
            await writer.commit([write(topic, b"x" * 5000)])
        assert writer.started
        await writer.commit([write(topic, value)])
    found = await read_records(kafka.servers, topic, least=2)
    assert [each.value for each in found] == [b"a", b"b"]


async def test_an_id_is_still_ours_when_nothing_was_open_to_be_undone(
    kafka: Broker, cluster: Cluster
) -> None:
    """Kafka answers INVALID_TXN_STATE then, which is no fence."""
    topic = await watched(cluster, kafka.topic())
    writer = Transactions(cluster, f"{topic}-w")

    def deny(_: Placed) -> list[Write]:
        raise AccessDenied(f"the gateway may not write to {topic}")

    await writer.start()
    with pytest.raises(AccessDenied):
        await writer.commit(then=deny)
    await writer.commit([write(topic, b"a")])
    with pytest.raises(AccessDenied):
        await writer.commit(then=deny)
    await writer.commit([write(topic, b"b")])
    found = await read_records(kafka.servers, topic, least=2)
    assert [each.value for each in found] == [b"a", b"b"]
