from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from support.kafka_wire import ApiKey
from support.oracle import StreamOracle
from support.raw_produce import produce_raw
from support.record_sets import BatchRecord, encode_varint
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed
from gateway.kafka.client.offsets import EARLIEST, LATEST
from gateway.kafka.fetch.bounded_read import (
    PartitionRead,
    fetch_log_bounds,
    fetch_offset,
    iter_records_at,
    iter_uncommitted,
    read_committed,
)

T = TopicPartition("t", 0)


async def produce_batches(bootstrap: list[str]) -> None:
    """Write three batches of four records."""
    for number in range(3):
        await produce_records(
            bootstrap, "t", [RecordToSend(b"%d" % (4 * number + n)) for n in range(4)]
        )


async def test_a_range_is_read_to_its_end_and_from_its_start(embedded):
    embedded.create_topic("t")
    await produce_batches(embedded.bootstrap)
    async with open_cluster(embedded.bootstrap, "t") as cluster:
        assert [await fetch_offset(cluster, T, spec) for spec in (EARLIEST, LATEST)] == [0, 12]
        reads = [read async for read in iter_uncommitted(cluster, T, 2, 7)]
        values = [record.value for read in reads for record in read.records]
        assert values == [b"%d" % n for n in range(2, 8)]  # batches are whole
        assert [read.next_offset for read in reads] == [4, 8]


async def test_one_read_says_where_the_next_one_goes_on(embedded):
    embedded.create_topic("t")
    await produce_batches(embedded.bootstrap)
    async with open_cluster(embedded.bootstrap, "t") as cluster:
        assert await fetch_log_bounds(cluster, [T]) == {T: range(12)}
        values, position = [], 2
        while position < 12:
            read = await read_committed(cluster, T, position, max_bytes=1)
            assert read.records and read.lost_until is None
            values += [record.value for record in read.records]
            position = read.next_offset
        assert values == [b"%d" % n for n in range(2, 12)]
        assert await read_committed(cluster, T, 12, max_wait=0.0) == PartitionRead([], 12)


async def test_the_records_at_some_offsets_are_read_a_batch_at_a_time(embedded):
    """Each was read alone: 300 in a batch of 50 MiB, which was decompressed for each, took 47 s."""
    embedded.create_topic("t")
    await produce_batches(embedded.bootstrap)
    async with (
        open_cluster(embedded.bootstrap, "t") as cluster,
        aclosing(
            iter_records_at(cluster, T, [3, 1, 2, 2, 99, 9, 1 << 40], asyncio.Semaphore())
        ) as records,
    ):
        found = [await anext(records)]
        embedded.fail(ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        found += [await anext(records), await anext(records)]
        embedded.forgive(ApiKey.FETCH)
        found += [record async for record in records]
        assert [(record.offset, record.value) for record in found] == [
            (1, b"1"), (2, b"2"), (3, b"3"), (9, b"9"),
        ]  # fmt: skip


async def test_who_reads_many_batches_lets_others_read_in_between(embedded):
    """A body of 6 KB was 60 batches of 5,000 records, and nothing limited how many such read."""
    embedded.create_topic("t")
    await produce_batches(embedded.bootstrap)
    order: list[str] = []
    async with open_cluster(embedded.bootstrap, "t") as cluster:
        reads = asyncio.Semaphore(1)

        async def read(name: str) -> None:
            async with aclosing(iter_records_at(cluster, T, [0, 4, 8], reads)) as records:
                async for _ in records:
                    order.append(name)

        await asyncio.gather(read("a"), read("b"))
    assert order == ["a", "b"] * 3


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
async def test_a_partition_that_its_leader_cannot_read_now_is_to_be_tried_again(embedded, code):
    """A replay ended for good with a disk that failed, while another replica took over."""
    embedded.create_topic("t")
    async with open_cluster(embedded.bootstrap, "t") as cluster:
        embedded.fail(ApiKey.FETCH, code, code)
        with pytest.raises(BrokerUnavailable, match="cannot be read now"):
            [read async for read in iter_uncommitted(cluster, T, 0, 1)]
        with pytest.raises(BrokerUnavailable, match="cannot be read now") as failed:
            await read_committed(cluster, T, 0)
        assert failed.value.retry_after
        nowhere = TopicPartition("t", 7)
        with pytest.raises(BrokerUnavailable, match="no leader"):
            [read async for read in iter_uncommitted(cluster, nowhere, 0, 1)]
        with pytest.raises(BrokerUnavailable, match="no leader"):
            await read_committed(cluster, nowhere, 0)
        embedded.fail(ApiKey.LIST_OFFSETS, ErrorCode.LEADER_NOT_AVAILABLE)
        with pytest.raises(BrokerUnavailable, match="code 5"):
            await fetch_offset(cluster, T, LATEST)


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 12345])
async def test_a_partition_that_cannot_be_read_says_why(embedded, code):
    embedded.create_topic("t")
    async with open_cluster(embedded.bootstrap, "t") as cluster:
        embedded.fail(ApiKey.FETCH, code, code)
        with pytest.raises(PartitionFailed, match=rf"t-0 cannot be read \(code {code}\)") as failed:
            [read async for read in iter_uncommitted(cluster, T, 0, 1)]
        assert failed.value.code == code
        with pytest.raises(PartitionFailed, match=f"code {code}"):
            await read_committed(cluster, T, 0)
        embedded.fail(ApiKey.LIST_OFFSETS, code)
        with pytest.raises(PartitionFailed, match=f"code {code}"):
            await fetch_offset(cluster, T, LATEST)


async def test_a_start_beyond_the_end_fails(embedded):
    """The topic may have been created again. Who waits at that offset would wait for ever."""
    embedded.create_topic("t")
    await produce_batches(embedded.bootstrap)
    async with open_cluster(embedded.bootstrap, "t") as cluster:
        with pytest.raises(PartitionFailed, match="ends at 12, before 99") as failed:
            await read_committed(cluster, T, 99)
        assert failed.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(PartitionFailed) as failed:
            [read async for read in iter_uncommitted(cluster, T, 99, 100)]
        assert failed.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_damaged_record_is_left_out_of_a_lookup_and_fails_a_committed_read(embedded):
    embedded.create_topic("t")
    broken = b"\0\0" + encode_varint(1) + encode_varint(900) + b"short"
    records = [BatchRecord(0, b"a"), BatchRecord(1, encoded_fields=broken), BatchRecord(2, b"c")]
    produce_raw(embedded.bootstrap[0], "t", 0, records)
    async with open_cluster(embedded.bootstrap, "t") as cluster:
        (read,) = [read async for read in iter_uncommitted(cluster, T, 0, 3)]
        assert [record.offset for record in read.records] == [0, 2]
        around = [
            record.offset
            async for record in iter_records_at(cluster, T, [0, 2], asyncio.Semaphore())
        ]
        assert around == [0, 2]
        with pytest.raises(PartitionFailed, match="is damaged from 1 to 2"):
            [record async for record in iter_records_at(cluster, T, [1], asyncio.Semaphore())]
        with pytest.raises(PartitionFailed, match="is damaged from 1 to 2") as failed:
            await read_committed(cluster, T, 0)
        assert failed.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.smoke
async def test_records_of_an_aborted_transaction_are_not_read(kafka, topic):
    name = topic()
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        open_cluster(kafka.bootstrap, name) as cluster,
    ):
        await oracle.produce_transaction(name, 3, commit=False)
        (acked,) = await oracle.produce_records(name, 1)
        read = await read_committed(cluster, TopicPartition(name, 0), 0)
        assert [record.value for record in read.records] == [acked.value]
