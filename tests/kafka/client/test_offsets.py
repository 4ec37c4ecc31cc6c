from __future__ import annotations

import asyncio

import pytest
from support.fake_broker import BrokerRequest, FakeBroker
from support.records import RecordToSend, open_transaction, produce_records
from support.topic_reads import open_cluster

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.connections import Connections
from gateway.kafka.client.offsets import (
    EARLIEST,
    LATEST,
    READ_UNCOMMITTED,
    EpochEnd,
    OffsetAndTimestamp,
    list_offsets,
)


@pytest.mark.smoke
async def test_ends_and_times_are_listed_for_each_partition(kafka, topic):
    name = topic(partitions=2, configs={"retention.ms": "-1"})  # they are old
    sent = [
        RecordToSend(b"%d" % n, partition=0, timestamp=1_700_000_000_000 + n) for n in range(10)
    ]
    await produce_records(kafka.bootstrap, name, sent)
    await asyncio.to_thread(kafka.admin.delete_records, name, {0: 2})
    one, two = TopicPartition(name, 0), TopicPartition(name, 1)
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        assert await kafkas.list_offsets({one: LATEST, two: LATEST}) == {
            one: OffsetAndTimestamp(10, -1, 0),
            two: OffsetAndTimestamp(0, -1, 0),
        }
        assert (await kafkas.list_offsets({one: EARLIEST}))[one] == OffsetAndTimestamp(2, -1, 0)
        by_time = await kafkas.list_offsets({one: 1_700_000_000_004, two: 1_700_000_000_004})
        assert by_time[one] == OffsetAndTimestamp(4, 1_700_000_000_004, 0)
        assert by_time[two] == OffsetAndTimestamp(-1, -1, -1)


async def test_latest_is_the_last_stable_offset_unless_told_otherwise(kafka, topic):
    name = topic()
    tp = TopicPartition(name, 0)
    async with (
        open_transaction(kafka.bootstrap) as open_one,
        open_cluster(kafka.bootstrap, name) as kafkas,
    ):
        await open_one.write_records(name, [b"held"])
        assert (await kafkas.list_offsets({tp: LATEST}))[tp] == OffsetAndTimestamp(0, -1, 0)
        uncommitted = await kafkas.list_offsets({tp: LATEST}, READ_UNCOMMITTED)
        assert uncommitted[tp] == OffsetAndTimestamp(1, -1, 0)
        await open_one.abort()


async def test_the_end_of_an_epoch_is_told(kafka, topic):
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"a", b"b"])
    tp = TopicPartition(name, 0)
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        assert await kafkas.fetch_epoch_ends({tp: 0}) == {tp: EpochEnd(0, 2)}
        assert await kafkas.fetch_epoch_ends({tp: 5}) == {tp: EpochEnd(-1, -1)}


TIME = 1_700_000_000_004
END_OF_ORDERS = (  # of partition 0: 42, in epoch 7
    b"\0" + b"\0\0\0\0" + b"\2\7orders\2" + bytes(4) + bytes(2)
    + (-1).to_bytes(8, signed=True) + (42).to_bytes(8) + (7).to_bytes(4) + b"\0\0\0"
)  # fmt: skip


async def test_one_bad_broker_costs_only_its_own_partitions():
    async def answer(_: object) -> bytes:
        return END_OF_ORDERS

    async with FakeBroker(answer) as well, FakeBroker(is_mute=True) as frozen:
        connections = Connections(request_timeout=0.2)
        connections.update_addresses({1: well.address, 2: frozen.address})
        tps = [TopicPartition("orders", partition) for partition in range(3)]
        leaders = {tps[0]: (1, 0), tps[1]: (2, 0)}  # the last one has none
        listed = await list_offsets(connections, leaders.get, dict.fromkeys(tps, LATEST))
        assert listed == {tps[0]: OffsetAndTimestamp(42, -1, 7), tps[1]: 7, tps[2]: 5}
        await connections.close()


async def test_a_lookup_by_time_holds_up_no_other_request():
    """Metadata and the ends of new topics waited for it, up to 6 s, on the same connection."""
    request_sent = asyncio.Event()

    async def answer_ends(request: BrokerRequest) -> bytes:
        if TIME.to_bytes(8) in request.body:
            request_sent.set()
            await asyncio.Event().wait()
        return END_OF_ORDERS

    async with FakeBroker(answer_ends) as broker:
        connections = Connections(request_timeout=60.0)
        connections.update_addresses({1: broker.address})
        tp = TopicPartition("orders", 0)

        def find_leader(_: TopicPartition) -> tuple[int, int]:
            return 1, 0

        by_time = asyncio.create_task(list_offsets(connections, find_leader, {tp: TIME}))
        await request_sent.wait()
        ends = await list_offsets(connections, find_leader, {tp: LATEST})
        assert ends == {tp: OffsetAndTimestamp(42, -1, 7)}
        by_time.cancel()
        await connections.close()


async def test_the_mock_clusters_ends_are_listed(embedded):
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [b"a", b"b"])
    tp = TopicPartition("orders", 0)
    async with open_cluster(embedded.bootstrap, "orders") as kafkas:
        latest = (await kafkas.list_offsets({tp: LATEST}))[tp]
        assert isinstance(latest, OffsetAndTimestamp) and latest.offset == 2
        earliest = (await kafkas.list_offsets({tp: EARLIEST}))[tp]
        assert isinstance(earliest, OffsetAndTimestamp) and earliest.offset == 0
        assert isinstance((await kafkas.fetch_epoch_ends({tp: 0}))[tp], EpochEnd)
