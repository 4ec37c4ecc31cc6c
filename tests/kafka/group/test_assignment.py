"""Where a group begins to read, over a simulated Kafka in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import cast
from uuid import UUID

import pytest
from support.simulated_kafka import SimulatedCluster, SimulatedKafka
from support.virtual_time import run_in_virtual_time
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
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


def create_consumer(cluster: SimulatedCluster) -> GroupConsumer:
    options = ConsumerOptions(auto_offset_reset="earliest", protocol="classic")
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
        for tp in (ZERO, ONE):
            store_offset(kafka, tp, 50, f"topic-id={FORMER_ID}")
        leader = create_consumer(SimulatedCluster(kafka))
        leader.subscribe(["orders"])
        await wait_until(lambda: len(leader.assignment) == 2)
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
