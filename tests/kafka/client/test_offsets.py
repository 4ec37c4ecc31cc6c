from __future__ import annotations

import asyncio

from support.fake_broker import FakeBroker
from support.reading import cluster
from support.records import Sent, produce, transaction

from gateway.core.log.record import TopicPartition
from gateway.errors import AccessDenied, AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.client.connections import Connections
from gateway.kafka.client.offsets import (
    EARLIEST,
    LATEST,
    READ_UNCOMMITTED,
    EpochEnd,
    Offset,
    code_of,
    list_offsets,
)


async def test_ends_and_times_are_listed_for_each_partition(kafka, topic):
    name = topic(partitions=2, configs={"retention.ms": "-1"})  # they are old
    sent = [Sent(b"%d" % n, partition=0, timestamp=1_700_000_000_000 + n) for n in range(10)]
    await produce(kafka.bootstrap, name, sent)
    await asyncio.to_thread(kafka.admin.delete_records, name, {0: 2})
    one, two = TopicPartition(name, 0), TopicPartition(name, 1)
    async with cluster(kafka.bootstrap, name) as kafkas:
        assert await kafkas.list_offsets({one: LATEST, two: LATEST}) == {
            one: Offset(10, -1, 0),
            two: Offset(0, -1, 0),
        }
        assert (await kafkas.list_offsets({one: EARLIEST}))[one] == Offset(2, -1, 0)
        by_time = await kafkas.list_offsets({one: 1_700_000_000_004, two: 1_700_000_000_004})
        assert by_time[one] == Offset(4, 1_700_000_000_004, 0)
        assert by_time[two] == Offset(-1, -1, -1)


async def test_latest_is_the_last_stable_offset_unless_told_otherwise(kafka, topic):
    name = topic()
    tp = TopicPartition(name, 0)
    async with transaction(kafka.bootstrap) as open_one, cluster(kafka.bootstrap, name) as kafkas:
        await open_one.write(name, [b"held"])
        assert (await kafkas.list_offsets({tp: LATEST}))[tp] == Offset(0, -1, 0)
        uncommitted = await kafkas.list_offsets({tp: LATEST}, READ_UNCOMMITTED)
        assert uncommitted[tp] == Offset(1, -1, 0)
        await open_one.abort()


async def test_the_end_of_an_epoch_is_told(kafka, topic):
    name = topic()
    await produce(kafka.bootstrap, name, [b"a", b"b"])
    tp = TopicPartition(name, 0)
    async with cluster(kafka.bootstrap, name) as kafkas:
        assert await kafkas.epoch_ends({tp: 0}) == {tp: EpochEnd(0, 2)}
        assert await kafkas.epoch_ends({tp: 5}) == {tp: EpochEnd(-1, -1)}


class Led:
    """A cluster of two brokers: partition 0 on the first, 1 on the second, 2 without leader."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    def leader(self, tp: TopicPartition) -> tuple[int, int] | None:
        return {0: (1, 0), 1: (2, 0)}.get(tp.partition)


async def test_one_bad_broker_costs_only_its_own_partitions():
    good = b"\0" + b"\0\0\0\0" + b"\2\7orders\2" + bytes(4) + bytes(2)
    good += (-1).to_bytes(8, signed=True) + (42).to_bytes(8) + (7).to_bytes(4) + b"\0\0\0"

    async def answer(_: object) -> bytes:
        return good

    async with FakeBroker(answer) as well, FakeBroker(mute=True) as frozen:
        led = Led(Connections(request_timeout=0.2))
        led.connections.know({1: well.address, 2: frozen.address})
        tps = [TopicPartition("orders", partition) for partition in range(3)]
        listed = await list_offsets(led, dict.fromkeys(tps, LATEST))
        assert listed == {tps[0]: Offset(42, -1, 7), tps[1]: 7, tps[2]: 5}
        await led.connections.close()


def test_failures_on_the_way_have_kafkas_codes():
    errors = {
        BrokerUnavailable("", timeout=True): 7,
        BrokerUnavailable(""): 13,
        AuthenticationFailed(""): 58,
        AccessDenied(""): 29,
        KafkaError(""): -1,
    }
    assert {error: code_of(error) for error in errors} == errors


async def test_the_mock_clusters_ends_are_listed(embedded):
    embedded.create_topic("orders")
    await produce(embedded.bootstrap, "orders", [b"a", b"b"])
    tp = TopicPartition("orders", 0)
    async with cluster(embedded.bootstrap, "orders") as kafkas:
        latest = (await kafkas.list_offsets({tp: LATEST}))[tp]
        assert isinstance(latest, Offset) and latest.offset == 2
        earliest = (await kafkas.list_offsets({tp: EARLIEST}))[tp]
        assert isinstance(earliest, Offset) and earliest.offset == 0
        assert isinstance((await kafkas.epoch_ends({tp: 0}))[tp], EpochEnd)
