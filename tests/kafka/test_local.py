"""What the tests' brokers do, and other tests rely on."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from support.records import RecordToSend, produce_records
from support.waiting import WAIT_TIMEOUT_S, wait_until


def open_consumer(bootstrap, **options):
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        request_timeout_ms=5000,
        metadata_max_age_ms=1000,
        **options,
    )


async def read_values(bootstrap, topic, partition=0, *, count, **options):
    """The values of the first `count` records, from the log start."""
    async with open_consumer(bootstrap, **options) as reader:
        reader.assign([TopicPartition(topic, partition)])
        await reader.seek_to_beginning()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            return [(await reader.getone()).value for _ in range(count)]


@pytest.mark.smoke
async def test_retention_moves_the_log_start(retention_kafka):
    name = retention_kafka.create_unique_topic(
        configs={"retention.ms": "3600000", "segment.ms": "600000"}
    )
    old = round((time.time() - 2 * 3600) * 1000)
    for record in (RecordToSend(b"old", timestamp=old), b"new"):  # a batch each, so a segment each
        await produce_records(retention_kafka.bootstrap, name, [record])
    await wait_until(lambda: retention_kafka.admin.get_log_start_offset(name) == 1, interval_s=0.1)
    assert await read_values(retention_kafka.bootstrap, name, count=1) == [b"new"]


@pytest.mark.smoke
async def test_compaction_keeps_the_last_of_each_key(retention_kafka):
    name = retention_kafka.create_unique_topic(
        configs={
            "cleanup.policy": "compact",
            "segment.ms": "500",
            "min.cleanable.dirty.ratio": "0.01",
        }
    )
    for value in (b"1", b"2"):
        await produce_records(retention_kafka.bootstrap, name, [RecordToSend(value, key=b"k")])
    # The active segment is never compacted: it takes one more record, in a later segment.
    await asyncio.sleep(0.6)
    await produce_records(retention_kafka.bootstrap, name, [RecordToSend(b"3", key=b"other")])
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while await read_values(retention_kafka.bootstrap, name, count=1) == [b"1"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await read_values(retention_kafka.bootstrap, name, count=2) == [b"2", b"3"]


class TestThreeNodes:
    async def test_a_killed_leader_is_replaced_and_comes_back_in_sync(self, kafka3):
        name = kafka3.create_unique_topic(assignment=[[1, 2, 3]])
        await produce_records(kafka3.bootstrap, name, [b"before"])
        kafka3.local_kafka.get_node(1).kill()
        await wait_until(
            lambda: kafka3.admin.get_leaders(name)[0] != 1, timeout_s=30, interval_s=0.1
        )
        await produce_records(kafka3.bootstrap, name, [b"after"])
        await asyncio.to_thread(kafka3.restore)
        assert await read_values(kafka3.bootstrap, name, count=2) == [b"before", b"after"]
        kafka3.admin.elect_leaders(name, [0])
        await wait_until(lambda: kafka3.admin.get_leaders(name)[0] == 1, interval_s=0.1)

    async def test_a_frozen_leader_is_replaced_and_thaws(self, kafka3):
        name = kafka3.create_unique_topic(assignment=[[2, 3, 1]])
        await produce_records(kafka3.bootstrap, name, [b"before"])
        kafka3.local_kafka.get_node(2).freeze()
        others = [kafka3.bootstrap[0], kafka3.bootstrap[2]]
        await wait_until(
            lambda: kafka3.admin.get_leaders(name)[0] != 2, timeout_s=30, interval_s=0.1
        )
        await asyncio.to_thread(kafka3.restore)
        assert not kafka3.local_kafka.get_node(2).is_frozen
        assert await read_values(others, name, count=1) == [b"before"]

    async def test_a_partition_whose_only_replica_is_down_leaves_the_others_readable(self, kafka3):
        name = kafka3.create_unique_topic(assignment=[[1], [2], [3]])
        await produce_records(
            kafka3.bootstrap, name, [RecordToSend(b"%d" % p, partition=p) for p in range(3)]
        )
        node = kafka3.local_kafka.get_node(3)
        address = node.address
        await asyncio.to_thread(node.stop)
        assert node.pid == 0
        await wait_until(
            lambda: set(kafka3.admin.get_leaders(name)) == {0, 1}, timeout_s=30, interval_s=0.1
        )
        assert await read_values(kafka3.bootstrap[:2], name, 1, count=1) == [b"1"]
        await asyncio.to_thread(kafka3.restore)
        assert node.address == address
        assert await read_values(kafka3.bootstrap, name, 2, count=1) == [b"2"]
