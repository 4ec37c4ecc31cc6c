"""Where a group begins to read, over a simulated Kafka in virtual time."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Literal, cast
from uuid import UUID

import pytest
from support.simulated_kafka import SimulatedCluster, SimulatedKafka
from support.virtual_time import run_in_virtual_time
from support.waiting import wait_until

from gateway.core.log.record import Record, TopicPartition
from gateway.kafka.admin import set_offsets
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer, OffsetAndMetadata

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
FORMER_ID = UUID(int=99)


def create_kafka() -> SimulatedKafka:
    """Create a Kafka with a topic of 100 records in each of two partitions."""
    kafka = SimulatedKafka(random.Random(1), is_classic=True)
    create_topic(kafka)
    return kafka


def create_topic(kafka: SimulatedKafka) -> None:
    """Create the topic, or create it again."""
    kafka.create_topic("orders", 2)
    for tp in (ZERO, ONE):
        kafka.append_records(tp, [b"%d" % number for number in range(100)])


def store_offset(kafka: SimulatedKafka, tp: TopicPartition, offset: int, metadata: str) -> None:
    """Let the group have committed an offset."""
    committed = OffsetAndMetadata(offset, 0, metadata)
    kafka.committed[kafka.topics[tp.topic].id, tp.partition] = committed


def connect_without_metadata(kafka: SimulatedKafka) -> SimulatedCluster:
    """Return a cluster whose metadata does not know the topic yet."""
    cluster = SimulatedCluster(kafka)
    cluster.forget_topic("orders")
    return cluster


def create_consumer(
    cluster: SimulatedCluster, reset: Literal["latest", "earliest"] = "earliest"
) -> GroupConsumer:
    options = ConsumerOptions(
        auto_offset_reset=reset, protocol="classic", hidden_topics=frozenset({"orders-hidden"})
    )
    return GroupConsumer(cast(Cluster, cluster), "billing", options)


@pytest.mark.parametrize("is_recreated", [True, False])
def test_an_offset_of_a_former_topic_is_noticed_if_metadata_comes_after_it(is_recreated: bool):
    """Its mark was compared with nothing then, and the first 50 records of the new topic were
    skipped."""

    async def play() -> None:
        kafka = create_kafka()
        marked_id = FORMER_ID if is_recreated else kafka.topics["orders"].id
        store_offset(kafka, ZERO, 50, f"topic-id={marked_id}")
        cluster = connect_without_metadata(kafka)
        consumer = create_consumer(cluster)
        consumer.assign([ZERO])
        await wait_until(lambda: consumer.position(ZERO) == 50)
        cluster.update_topic("orders")
        records = await consumer.poll(1.0)
        assert records[0].offset == (0 if is_recreated else 50)
        await consumer.close()

    run_in_virtual_time(play())


def test_a_member_notices_an_offset_of_a_former_topic_if_metadata_comes_after_its_assignment():
    """A member that does not lead its group is assigned partitions by name, whatever its metadata
    knows. It skipped what the mark would have told it to read."""

    async def play() -> None:
        kafka = create_kafka()
        expiry = asyncio.create_task(kafka.run_expiry())
        leader = create_consumer(SimulatedCluster(kafka))
        leader.subscribe(["orders"])
        await wait_until(lambda: len(kafka.committed) == 2)
        for tp in (ZERO, ONE):
            store_offset(kafka, tp, 50, f"topic-id={FORMER_ID}")
        cluster = connect_without_metadata(kafka)
        follower = create_consumer(cluster)
        follower.subscribe(["orders"])
        await wait_until(lambda: follower.assignment)
        (tp,) = follower.assignment
        await wait_until(lambda: follower.position(tp) == 50)
        cluster.update_topic("orders")
        records = await follower.poll(1.0)
        assert records[0].offset == 0
        await follower.close()
        await leader.close()
        expiry.cancel()

    run_in_virtual_time(play())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_group_goes_on_at_an_offset_that_was_copied_from_another_cluster(is_late: bool):
    """After a failover to a cluster that MirrorMaker 2 had filled, every topic counted as created
    again, and was read from its start."""

    async def play() -> None:
        kafka = create_kafka()
        store_offset(kafka, ZERO, 50, f"topic-id={FORMER_ID},cluster-id=elsewhere")
        cluster = connect_without_metadata(kafka) if is_late else SimulatedCluster(kafka)
        consumer = create_consumer(cluster)
        consumer.assign([ZERO])
        await wait_until(lambda: consumer.position(ZERO) == 50)
        cluster.update_topic("orders")
        records = await consumer.poll(1.0)
        assert records[0].offset == 50
        await consumer.close()

    run_in_virtual_time(play())


@pytest.mark.parametrize("is_set_by_admin", [False, True])
def test_a_partition_begins_at_the_end_unless_it_was_added_after_the_group_had_begun(
    is_set_by_admin,
):
    """`latest` meant the start of the log for each partition without a commit beside others with
    one: all records of a partition in which nothing had come yet, when another member got it.
    It meant the end for those that were added, if an operator had set an offset."""

    async def play() -> None:
        kafka = create_kafka()
        topic_id = kafka.topics["orders"].id
        store_offset(kafka, ZERO, 40, f"topic-id={topic_id},partitions=2")
        if is_set_by_admin:
            await set_offsets(cast(Cluster, SimulatedCluster(kafka)), "billing", {ZERO: 50})
        kafka.add_partitions("orders", 1)
        added = TopicPartition("orders", 2)
        kafka.append_records(added, [b"0"] * 5)
        consumer = create_consumer(SimulatedCluster(kafka), "latest")
        consumer.assign([ONE, added])
        await wait_until(lambda: len(kafka.committed) == 3)
        assert (consumer.position(ONE), consumer.position(added)) == (100, 0)
        marks = {kafka.committed[topic_id, p].metadata for p in range(3)}
        assert len(marks) == 2 and all("partitions=2" in mark for mark in marks)
        await consumer.close()

    run_in_virtual_time(play())


def test_a_topic_that_is_created_while_a_pattern_is_read_is_read_from_its_start():
    """Its first records came before it was found, and `latest` passed over them."""

    async def play() -> None:
        kafka = create_kafka()
        expiry = asyncio.create_task(kafka.run_expiry())
        consumer = create_consumer(SimulatedCluster(kafka), "latest")
        consumer.subscribe(re.compile("orders.*"))
        await wait_until(lambda: len(kafka.committed) == 2)
        kafka.create_topic("orders-hidden", 1)
        kafka.append_records(TopicPartition("orders-hidden", 0), [b"hidden"])
        kafka.create_topic("orders-new", 1)
        kafka.append_records(TopicPartition("orders-new", 0), [b"first"])
        records: list[Record] = []
        while not records:
            records = await consumer.poll(1.0)
        assert [record.value for record in records] == [b"first"]
        assert {tp.topic for tp in consumer.assignment} == {"orders", "orders-new"}
        await consumer.close()
        expiry.cancel()

    run_in_virtual_time(play())


@pytest.mark.parametrize("is_subscribed", [False, True])
def test_nothing_is_returned_before_the_group_has_an_offset_of_where_it_began(is_subscribed):
    """A poll returned records, the client failed, and the group began behind them."""

    async def play() -> None:
        kafka = create_kafka()
        expiry = asyncio.create_task(kafka.run_expiry())
        kafka.holds_commits = True
        consumer = create_consumer(SimulatedCluster(kafka), "latest")
        if is_subscribed:
            consumer.subscribe(["orders"])
        else:
            consumer.assign([ZERO, ONE])
        await wait_until(lambda: consumer.assignment and consumer.position(ZERO) == 100)
        kafka.append_records(ZERO, [b"new"])
        assert not await consumer.poll(5.0)
        kafka.holds_commits = False
        assert [record.value for record in await consumer.poll(60.0)] == [b"new"]
        assert kafka.committed[kafka.topics["orders"].id, 0].offset == 100
        await consumer.close()
        expiry.cancel()

    run_in_virtual_time(play())


def test_where_a_paused_partition_begins_is_kept():
    """It was looked up when the pause was over, so what came during the pause was passed over."""

    async def play() -> None:
        kafka = create_kafka()
        cluster = SimulatedCluster(kafka)
        cluster.failure_mode = "refused"
        consumer = create_consumer(cluster, "latest")
        consumer.assign([ZERO])
        consumer.pause([ZERO])
        cluster.failure_mode = ""
        await wait_until(lambda: kafka.committed)
        assert kafka.committed[kafka.topics["orders"].id, 0].offset == 100
        await consumer.close()

    run_in_virtual_time(play())


def test_a_seek_before_the_group_has_an_offset_is_where_it_begins():
    """The group had none of a partition that was sought, and would have begun elsewhere."""

    async def play() -> None:
        kafka = create_kafka()
        expiry = asyncio.create_task(kafka.run_expiry())
        kafka.holds_commits = True
        consumer = create_consumer(SimulatedCluster(kafka), "latest")
        consumer.subscribe(["orders"])
        await wait_until(lambda: consumer.assignment and consumer.position(ZERO) == 100)
        consumer.seek(ZERO, 20)
        kafka.holds_commits = False
        assert (await consumer.poll(60.0))[0].offset == 20
        assert kafka.committed[kafka.topics["orders"].id, 0].offset == 20
        await consumer.close()
        expiry.cancel()

    run_in_virtual_time(play())
