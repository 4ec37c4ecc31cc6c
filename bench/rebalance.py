"""One of three members of a group is restarted under load: who is silent, and for how long.

It leaves, or is gone without a word (as after kill -9), and its replacement joins two seconds
later. Sessions and heartbeats of KIP-848 are the broker's, set for the group.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise

from support.until import until

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.connections import Role
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.group.protocols import Name
from gateway.kafka.protocol.codec import Reader, Writer
from gateway.kafka.protocol.requests import Request, Versions

from .figure import Figure
from .kafka import Kafka
from .producer import Producer

PATIENCE = 90.0  # s
COMMITS = 0.2  # s between commits


@dataclass(frozen=True)
class Case:
    """session, heartbeat: of the broker for KIP-848, else of the member; seconds. often: the
    heartbeat that the member itself asks for."""

    session: float
    heartbeat: float
    leave: bool = True
    often: float | None = None
    static: bool = False
    protocol: Name = "consumer"

    @property
    def name(self) -> str:
        kind = "KIP-848" if self.protocol == "consumer" else "classic"
        often = f", heartbeats every {self.often:g} s by the member" if self.often else ""
        static = ", static" if self.static else ""
        how = "leaves" if self.leave else "is gone"
        return f"{kind}, {self.session:g} s, {self.heartbeat:g} s{often}{static}: {how}"


@dataclass(frozen=True)
class Size:
    """rate: records a second in all. before: seconds of quiet life before the restart."""

    cases: tuple[Case, ...] = (
        Case(6, 1),
        Case(6, 1, leave=False),
        Case(3, 0.2),
        Case(3, 0.2, leave=False),
        Case(45, 5),
        Case(45, 5, often=0.2),
        Case(45, 5, often=0.2, static=True),
        Case(10, 3, protocol="classic"),
        Case(10, 3, leave=False, protocol="classic"),
        Case(6, 0.3, protocol="classic"),
    )
    partitions: int = 6
    members: int = 3
    rate: float = 240.0
    before: float = 2.0
    away: float = 2.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    figures: list[Figure] = []
    for case in size.cases:
        figures += await _restart(kafka, size, case)
    return figures


@dataclass
class _Member:
    """arrived: when a record of a partition came."""

    consumer: GroupConsumer
    arrived: list[tuple[float, int]]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def begin(self, topic: str) -> None:
        self.consumer.subscribe([topic], self)
        self.tasks = [asyncio.create_task(self._poll()), asyncio.create_task(self._commit())]

    async def end(self, leave: bool) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.consumer.close(leave)

    async def _poll(self) -> None:
        while True:
            for record in await self.consumer.poll(1.0):
                self.arrived.append((time.monotonic(), record.tp.partition))

    async def _commit(self) -> None:
        while True:
            await asyncio.sleep(COMMITS)
            await self.consumer.commit()

    async def assigned(self, tps: frozenset[TopicPartition]) -> None:
        pass

    async def revoked(self, tps: frozenset[TopicPartition]) -> None:
        await self.consumer.commit()

    async def lost(self, tps: frozenset[TopicPartition]) -> None:
        pass


async def _restart(kafka: Kafka, size: Size, case: Case) -> list[Figure]:
    topic, group = kafka.topic(size.partitions), f"bench-{uuid.uuid4().hex[:8]}"
    arrived: list[tuple[float, int]] = []
    producer = Producer(kafka.servers)
    async with AsyncExitStack() as stack:

        async def member(number: int) -> _Member:
            settings = ClusterSettings(kafka.bootstrap)
            cluster = await stack.enter_async_context(Cluster(settings))
            if case.protocol == "consumer":
                await _configure(cluster, group, case)
            made = _Member(_consumer(cluster, group, number, case), arrived)
            stack.push_async_callback(made.end, True)
            made.begin(topic)
            return made

        members = [await member(number) for number in range(size.members)]
        await _shared(members, size)
        async with producer.steadily(topic, size.partitions, size.rate):
            await until(lambda: {p for _, p in arrived} == set(range(size.partitions)), within=60)
            await asyncio.sleep(size.before)
            gone, began = members.pop(), time.monotonic()
            hurt = {tp.partition for tp in gone.consumer.assignment}
            await gone.end(case.leave)
            await asyncio.sleep(size.away)
            members.append(await member(size.members - 1))
            await _shared(members, size)
            now = time.monotonic()
            await until(lambda: _all_since(arrived, now, size.partitions), within=PATIENCE)
            await asyncio.sleep(1.0)
    return [
        Figure(f"{case.name}: its partitions silent", _silence(arrived, hurt, began), "s"),
        Figure(
            f"{case.name}: the others silent",
            _silence(arrived, set(range(size.partitions)) - hurt, began),
            "s",
        ),
    ]


def _consumer(cluster: Cluster, group: str, number: int, case: Case) -> GroupConsumer:
    own = case.heartbeat if case.protocol == "classic" else case.often
    return GroupConsumer(
        cluster,
        group,
        protocol=case.protocol,
        instance_id=f"instance-{number}" if case.static else None,
        session_timeout=case.session,
        heartbeat_interval=own,
        auto_offset_reset="earliest",
        prefetch=True,
    )


async def _shared(members: Sequence[_Member], size: Size) -> None:
    each = size.partitions // size.members
    await until(
        lambda: all(len(one.consumer.assignment) == each for one in members),
        "even shares",
        PATIENCE,
    )


def _all_since(arrived: Sequence[tuple[float, int]], since: float, partitions: int) -> bool:
    return {p for at, p in arrived if at >= since} == set(range(partitions))


def _silence(arrived: Sequence[tuple[float, int]], of: set[int], since: float) -> float:
    """The longest between two arrivals of a partition, from the last one before `since` on."""
    longest = 0.0
    for partition in of:
        times = [at for at, p in arrived if p == partition]
        longest = max(longest, *(b - a for a, b in pairwise(times) if b >= since))
    return longest


async def _configure(cluster: Cluster, group: str, case: Case) -> None:
    await cluster.metadata.refresh("bench")
    node = min(cluster.metadata.brokers)
    values = {
        "consumer.session.timeout.ms": f"{case.session * 1000:.0f}",
        "consumer.heartbeat.interval.ms": f"{case.heartbeat * 1000:.0f}",
    }
    errors = await cluster.connections.send(node, Role.CONTROL, _Configs(group, values))
    assert not any(errors), f"the group's timeouts cannot be set: {errors}"


@dataclass
class _Configs(Request[tuple[int, ...]]):
    """IncrementalAlterConfigs of a group, a resource that librdkafka does not know (KIP-848)."""

    API = 44
    NAME = "IncrementalAlterConfigs"
    SPOKEN = Versions(0, 1, 1)

    group: str
    values: dict[str, str]

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        out.array(1)
        out.i8(32)  # a group
        out.string(self.group)
        out.array(len(self.values))
        for name, value in self.values.items():
            out.string(name)
            out.i8(0)  # set
            out.string(value)
            out.tags()
        out.tags()
        out.i8(0)  # not only to validate
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> tuple[int, ...]:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        read.i32()
        return tuple(read.i16() for _ in range(read.array()))
