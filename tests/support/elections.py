"""An unclean leader election: partition 0 of a topic loses what was written in between.

name = kafka3.create_unique_topic(configs=UNCLEAN_CONFIGS, assignment=[[1, 2]])
await kill_follower(kafka3, name)
...                                  # what is written now is lost
await elect_follower(kafka3, name)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException
from support.brokers import KafkaCluster

UNCLEAN_CONFIGS = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
LEADER, FOLLOWER = 1, 2  # the nodes with replicas of partition 0
ELECTION_TIMEOUT_S = 60.0


async def kill_follower(kafka: KafkaCluster, topic: str) -> None:
    """Kill the follower; returns when its leader alone is in sync."""
    assert kafka.local_kafka is not None
    await asyncio.to_thread(kafka.local_kafka.get_node(FOLLOWER).kill)
    await _wait_for_partition(kafka, topic, lambda _, in_sync: in_sync == [LEADER])


async def elect_follower(kafka: KafkaCluster, topic: str) -> None:
    """Kill the leader and start the follower; returns when that leads."""
    assert kafka.local_kafka is not None
    await asyncio.to_thread(kafka.local_kafka.get_node(LEADER).kill)
    await asyncio.to_thread(kafka.local_kafka.get_node(FOLLOWER).start)
    await _wait_for_partition(kafka, topic, lambda node, _: node == FOLLOWER, elects=True)


async def _wait_for_partition(
    kafka: KafkaCluster,
    topic: str,
    condition: Callable[[int, Sequence[int]], bool],
    *,
    elects: bool = False,
) -> None:
    """Wait until leader and in-sync replicas of partition 0 meet a condition."""

    def describe() -> tuple[int, Sequence[int]]:
        found = kafka.admin.client.list_topics(topic, timeout=5).topics[topic].partitions[0]
        return found.leader, found.isrs

    deadline = time.monotonic() + ELECTION_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            if condition(*await asyncio.to_thread(describe)):
                return
            if elects:
                await asyncio.to_thread(kafka.admin.elect_leaders, topic, [0], is_unclean=True)
        await asyncio.sleep(0.1)
    raise TimeoutError("the election")
