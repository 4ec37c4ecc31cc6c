"""Restart one of three members of a group under load, and measure who is silent for how long.

It leaves, or ends without leaving (as after kill -9), and its replacement joins two seconds later.
Sessions and heartbeats of KIP-848 are the broker's, set for the group.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise

from support.waiting import wait_until

from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer
from gateway.kafka.group.consumer_options import ProtocolName

from .figure import Figure
from .group_reader import Arrival, GroupReader, set_group_timeouts
from .kafka import Kafka
from .producer import Producer

RESTART_TIMEOUT_S = 90.0  # s


@dataclass(frozen=True)
class Case:
    """session, heartbeat: of the broker for KIP-848, else of the member; seconds. often: the
    heartbeat that the member itself asks for."""

    session_timeout_s: float
    heartbeat_interval_s: float
    leaves: bool = True
    member_heartbeat_s: float | None = None
    is_static: bool = False
    protocol: ProtocolName = "consumer"

    @property
    def name(self) -> str:
        kind = "KIP-848" if self.protocol == "consumer" else "classic"
        often = (
            f", heartbeats every {self.member_heartbeat_s:g} s by the member"
            if self.member_heartbeat_s
            else ""
        )
        static = ", static" if self.is_static else ""
        how = "leaves" if self.leaves else "is gone"
        intervals = f"{self.session_timeout_s:g} s, {self.heartbeat_interval_s:g} s"
        return f"{kind}, {intervals}{often}{static}: {how}"


@dataclass(frozen=True)
class Size:
    """rate: records a second in all. before: seconds of quiet life before the restart."""

    cases: tuple[Case, ...] = (
        Case(6, 1),
        Case(6, 1, leaves=False),
        Case(3, 0.2),
        Case(3, 0.2, leaves=False),
        Case(45, 5),
        Case(45, 5, member_heartbeat_s=0.2),
        Case(45, 5, member_heartbeat_s=0.2, is_static=True),
        Case(10, 3, protocol="classic"),
        Case(10, 3, leaves=False, protocol="classic"),
        Case(6, 0.3, protocol="classic"),
    )
    partitions: int = 6
    members: int = 3
    rate: float = 240.0
    quiet_s: float = 2.0
    away_s: float = 2.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    figures: list[Figure] = []
    for case in size.cases:
        figures += await _measure_restart(kafka, size, case)
    return figures


async def _measure_restart(kafka: Kafka, size: Size, case: Case) -> list[Figure]:
    topic, group = kafka.create_topic(size.partitions), f"bench-{uuid.uuid4().hex[:8]}"
    arrived: list[Arrival] = []
    producer = Producer(kafka.bootstrap_servers)
    async with AsyncExitStack() as stack:

        async def start_member(number: int) -> GroupReader:
            settings = ClusterSettings(kafka.bootstrap)
            cluster = await stack.enter_async_context(Cluster(settings))
            if case.protocol == "consumer":
                await set_group_timeouts(
                    cluster, group, case.session_timeout_s, case.heartbeat_interval_s
                )
            made = GroupReader(_create_consumer(cluster, group, number, case), number, arrived)
            stack.push_async_callback(made.stop, True)
            made.start(topic)
            return made

        members = [await start_member(number) for number in range(size.members)]
        await _wait_for_assignments(members, size)
        async with producer.produce_steadily(topic, size.partitions, size.rate):
            await wait_until(
                lambda: {p for _, p, _ in arrived} == set(range(size.partitions)), timeout_s=60
            )
            await asyncio.sleep(size.quiet_s)
            gone, began = members.pop(), time.monotonic()
            hurt = {tp.partition for tp in gone.consumer.assignment}
            await gone.stop(case.leaves)
            await asyncio.sleep(size.away_s)
            members.append(await start_member(size.members - 1))
            await _wait_for_assignments(members, size)
            now = time.monotonic()
            await wait_until(
                lambda: _has_all_since(arrived, now, size.partitions), timeout_s=RESTART_TIMEOUT_S
            )
            await asyncio.sleep(1.0)
    return [
        Figure(
            f"{case.name}: its partitions silent", find_longest_silence(arrived, hurt, began), "s"
        ),
        Figure(
            f"{case.name}: the others silent",
            find_longest_silence(arrived, set(range(size.partitions)) - hurt, began),
            "s",
        ),
    ]


def _create_consumer(cluster: Cluster, group: str, number: int, case: Case) -> GroupConsumer:
    own = case.heartbeat_interval_s if case.protocol == "classic" else case.member_heartbeat_s
    return GroupConsumer(
        cluster,
        group,
        ConsumerOptions(
            protocol=case.protocol,
            instance_id=f"instance-{number}" if case.is_static else None,
            session_timeout=case.session_timeout_s,
            heartbeat_interval=own,
            auto_offset_reset="earliest",
            prefetch=True,
        ),
    )


async def _wait_for_assignments(members: Sequence[GroupReader], size: Size) -> None:
    each = size.partitions // size.members
    await wait_until(
        lambda: all(len(one.consumer.assignment) == each for one in members),
        "even shares",
        RESTART_TIMEOUT_S,
    )


def _has_all_since(arrivals: Sequence[Arrival], since: float, partitions: int) -> bool:
    return {p for at, p, _ in arrivals if at >= since} == set(range(partitions))


def find_longest_silence(arrivals: Sequence[Arrival], partitions: set[int], since: float) -> float:
    """The longest between two arrivals of a partition, from the last one before `since` on."""
    longest = 0.0
    for partition in partitions:
        times = [at for at, p, _ in arrivals if p == partition]
        longest = max(longest, *(b - a for a, b in pairwise(times) if b >= since))
    return longest
