"""Replace one of three members of a consumer group under load, and measure who is silent.

Six partitions get records evenly. One member ends (it leaves, is killed, or is a static member that
comes back), and a new one takes its place two seconds later; or, as in a rolling update that starts
pods first, the new one joins before the old one leaves, at once or after `minReadySeconds`. A run
in which nobody is replaced shows what the machine adds. Members have the heartbeats of a reactive
group of the sidecar. A killed one is ended without a word to the broker, in the same process.

A member of a classic group is REBALANCING, and reads on, until the last one has heard of the
rebalance by its heartbeat. By KIP-848 the broker makes a member's partitions wait that leaves just
when another one has joined (`assignment.interval.ms`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from support.group_members import commit_positions
from support.waiting import wait_until

from gateway.config.sections.sidecar import Group
from gateway.core.group.member import MemberState
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer
from gateway.kafka.group.consumer_options import ProtocolName

from ..feed import KafkaFeed, sending
from ..kafka import Kafka
from ..peers.peer import Participant
from ..results import Cell
from .failover import find_longest_silence

GROUP_TIMEOUT_S = 90.0
HEARTBEAT_INTERVAL_S = float(Group.model_fields["heartbeat_interval"].default)
SESSION_TIMEOUT_S = 6.0  # by KIP-848 the broker's
COMMIT_INTERVAL_S = 0.2
STATE_INTERVAL_S = 0.002  # between two looks at a member's state


@dataclass(frozen=True)
class Case:
    """How a member is replaced.

    ending: how the old one ends; `none` replaces nobody. is_static: members have instance ids.
    ready_s: for how long the new member is ready before the old one ends; None: it joins after.
    """

    protocol: ProtocolName
    ending: Literal["none", "leaves", "killed"] = "leaves"
    is_static: bool = False
    ready_s: float | None = None

    @property
    def name(self) -> str:
        protocol = "KIP-848" if self.protocol == "consumer" else "cooperative"
        if self.ready_s is not None:
            return f"{protocol}, another one is ready for {self.ready_s:g} s"
        ending = "nobody is replaced" if self.ending == "none" else self.ending
        return f"{protocol}, {'static, comes back' if self.is_static else ending}"


def list_cases(protocol: ProtocolName) -> tuple[Case, ...]:
    return (
        Case(protocol, "none"), Case(protocol), Case(protocol, "killed"),
        Case(protocol, is_static=True), Case(protocol, ready_s=0.0), Case(protocol, ready_s=5.0),
    )  # fmt: skip


@dataclass(frozen=True)
class Size:
    """rate: records a second to all partitions."""

    cases: Sequence[Case] = (*list_cases("consumer"), *list_cases("classic"))
    repeats: int = 3
    partitions: int = 6
    members: int = 3
    rate: float = 240.0
    quiet_s: float = 1.0
    away_s: float = 2.0


async def run(kafka: Kafka, peer: Participant, size: Size) -> Cell:
    cell = Cell()
    for case in size.cases:
        rows: list[tuple[float, float, float]] = []
        for _ in range(size.repeats):
            async with AsyncExitStack() as stack:
                rows.append(await _Members(kafka, size, case, stack).measure())
        silent, others, rebalancing = zip(*rows, strict=True)
        cell.add_row(case.name, "its partitions silent", "s", max(silent), n=size.repeats)
        cell.add_row(case.name, "the others silent", "s", max(others), n=size.repeats)
        cell.add_row(case.name, "REBALANCING", "s", max(rebalancing), n=size.repeats)
    cell.add_note("the worst of all repeats; silence is without the producer's interval")
    return cell


@dataclass
class _Member:
    """A member that reads, and commits regularly. arrivals: shared by all, by partition. states:
    when its state changed, and to what."""

    consumer: GroupConsumer
    arrivals: Mapping[int, list[float]]
    states: list[tuple[float, MemberState]] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, topic: str) -> None:
        """Join the group, and read until `stop`."""
        self.consumer.subscribe([topic], self)
        jobs = self._poll_records(), self._commit_regularly(), self._note_states()
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def stop(self, leaves: bool) -> None:
        """Stop reading. Without leaving, the coordinator hears nothing, as after kill -9."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.consumer.close(leaves)

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None: ...

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Commit, so that the next owner reads nothing twice."""
        await commit_positions(self.consumer)

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None: ...

    async def _poll_records(self) -> None:
        while True:
            for record in await self.consumer.poll(1.0):
                self.arrivals[record.tp.partition].append(time.monotonic())

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await commit_positions(self.consumer)

    async def _note_states(self) -> None:
        while True:
            state = self.consumer.state
            if not self.states or self.states[-1][1] is not state:
                self.states.append((time.monotonic(), state))
            await asyncio.sleep(STATE_INTERVAL_S)


class _Members:
    """The group of one run."""

    def __init__(self, kafka: Kafka, size: Size, case: Case, stack: AsyncExitStack) -> None:
        self._kafka, self._size, self._case, self._stack = kafka, size, case, stack
        self._topic = kafka.create_unique_topic(size.partitions)
        self._name = f"bench-{uuid.uuid4().hex[:8]}"
        self._arrivals = defaultdict[int, list[float]](list)
        self._members: list[_Member] = []

    async def measure(self) -> tuple[float, float, float]:
        """For how long its partitions and the others were silent, and others REBALANCING."""
        for number in range(self._size.members):
            await self._add_member(number)
        await self._wait_for_shares()
        feed = KafkaFeed(self._kafka.bootstrap_servers, self._topic, self._size.partitions)
        self._stack.callback(feed.close)
        async with sending(feed, self._size.rate):
            await self._wait_for_records(0.0)
            await asyncio.sleep(self._size.quiet_s)
            return await self._replace_member()

    async def _replace_member(self) -> tuple[float, float, float]:
        began, size, case = time.monotonic(), self._size, self._case
        old, staying, every = self._members[-1], self._members[:-1], set(range(size.partitions))
        hurt = set(every)
        if case.ending == "none":
            await asyncio.sleep(2 * size.away_s)
        else:
            if case.ready_s is not None:
                await self._add_ready_member(size.members)
                await asyncio.sleep(case.ready_s)
            hurt = {tp.partition for tp in old.consumer.assignment}
            self._members.remove(old)
            await old.stop(case.ending == "leaves")
            if case.ready_s is None:
                await asyncio.sleep(size.away_s)
                await self._add_ready_member(size.members - 1)
            await self._wait_for_shares()
            await self._wait_for_records(time.monotonic())
        await asyncio.sleep(1.0)
        interval_s = size.partitions / size.rate
        silent, others = (
            max(0.0, find_longest_silence(self._arrivals, some, began) - interval_s)
            for some in (hurt, every - hurt or hurt)
        )
        rebalancing = [
            end - begin
            for member in staying
            for (begin, state), (end, _) in pairwise(member.states)
            if state is MemberState.REBALANCING and begin >= began
        ]
        return silent, others, max(rebalancing, default=0.0)

    async def _add_member(self, number: int) -> _Member:
        settings = ClusterSettings(self._kafka.bootstrap)
        cluster = await self._stack.enter_async_context(Cluster(settings))
        options = ConsumerOptions(
            protocol=self._case.protocol,
            instance_id=f"instance-{number}" if self._case.is_static else None,
            session_timeout=SESSION_TIMEOUT_S,
            heartbeat_interval=HEARTBEAT_INTERVAL_S,
            auto_offset_reset="earliest",
            prefetch=True,
        )
        member = _Member(GroupConsumer(cluster, self._name, options), self._arrivals)
        self._members.append(member)
        self._stack.push_async_callback(member.stop, True)
        member.start(self._topic)
        return member

    async def _add_ready_member(self, number: int) -> None:
        new = await self._add_member(number)
        await wait_until(lambda: new.consumer.assignment, "the new member's share", GROUP_TIMEOUT_S)

    async def _wait_for_records(self, since: float) -> None:
        """Wait until every partition has brought a record since then."""
        await wait_until(
            lambda: all(self._arrivals[p][-1:] > [since] for p in range(self._size.partitions)),
            "records of every partition",
            GROUP_TIMEOUT_S,
        )

    async def _wait_for_shares(self) -> None:
        share = self._size.partitions // self._size.members
        await wait_until(
            lambda: all(
                len(each.consumer.assignment) == share
                and each.consumer.state is MemberState.RUNNING
                for each in self._members
            ),
            "even shares",
            GROUP_TIMEOUT_S,
        )
