"""What the tests' brokers do, and other tests rely on."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import UnknownTopicOrPartitionError
from support.records import RecordToSend, open_transaction, produce_records
from support.requirements import skip_or_fail
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


async def test_gives_back_what_was_produced(kafka, topic):
    name = topic(partitions=3)
    sent = await produce_records(
        kafka.bootstrap, name, [RecordToSend(b"a", partition=1), RecordToSend(b"b", partition=1)]
    )
    assert sent == [(1, 0), (1, 1)]
    assert await read_values(kafka.bootstrap, name, 1, count=2) == [b"a", b"b"]


async def test_an_aborted_transaction_is_never_read(kafka, topic):
    name = topic()
    async with open_transaction(kafka.bootstrap) as first:
        await first.write_records(name, [b"aborted"])
        await first.abort()
    async with open_transaction(kafka.bootstrap) as second:
        await second.write_records(name, [b"committed"])
        await second.commit()
    assert await read_values(kafka.bootstrap, name, count=1) == [b"committed"]


async def test_an_open_transaction_holds_back_what_comes_after_it(kafka, topic):
    name = topic()
    async with open_transaction(kafka.bootstrap) as held:
        await held.write_records(name, [b"in it"])
        await produce_records(kafka.bootstrap, name, [b"after it"])
        reading = asyncio.create_task(read_values(kafka.bootstrap, name, count=2))
        done, _ = await asyncio.wait([reading], timeout=0.5)
        assert not done
        await held.commit()
    assert await reading == [b"in it", b"after it"]


async def test_asking_for_an_unknown_topic_does_not_create_it(kafka):
    if not kafka.has_fast_retention:
        skip_or_fail("somebody else's Kafka may create topics by itself")
    with pytest.raises(UnknownTopicOrPartitionError):
        await produce_records(kafka.bootstrap, "nobody-made-it", [b"x"], request_timeout_ms=500)
    assert not kafka.admin.topic_exists("nobody-made-it")


async def test_deleting_records_moves_the_log_start(kafka, topic):
    name = topic(partitions=2)
    await produce_records(
        kafka.bootstrap, name, [RecordToSend(b"%d" % n, partition=1) for n in range(5)]
    )
    kafka.admin.delete_records(name, {1: 3})
    assert kafka.admin.get_log_start_offset(name, 1) == 3
    assert kafka.admin.get_high_watermark(name, 1) == 5
    assert await read_values(kafka.bootstrap, name, 1, count=2) == [b"3", b"4"]


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


async def test_a_topic_made_again_has_another_id(kafka, topic):
    name = topic()
    first = kafka.admin.get_topic_id(name)
    kafka.admin.delete_topic(name)
    kafka.admin.create_topic(name)
    assert kafka.admin.get_topic_id(name) != first


async def test_topic_configs_can_be_changed(kafka, topic):
    name = topic()
    kafka.admin.alter_configs(name, {"max.message.bytes": "1000"})
    with pytest.raises(Exception, match="MessageSizeTooLarge"):
        await produce_records(kafka.bootstrap, name, [b"x" * 2000])


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
