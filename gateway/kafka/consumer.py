"""A consumer as the sidecar needs it: a group's member, or partitions by hand; true long polls.

    consumer = GroupConsumer(cluster, "billing")
    consumer.subscribe(["orders"], listener)
    records = await consumer.poll(5.0)
    await consumer.commit()

What a commit means is what `poll` has *returned*. Membership is our own (`group`), by KIP-848 or
the classic protocol; records come by fetches of our own (`intake`). No thread is in either: a
thousand consumers of librdkafka in one process are four thousand threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Mapping
from typing import Literal, Protocol
from uuid import UUID

from gateway.core.held import EARLIEST, LATEST, Held
from gateway.core.member import Assigned, Lost, State
from gateway.core.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, NotOwned
from gateway.telemetry.about import apart

from . import protocols
from .changes import Change
from .cluster import Cluster
from .commits import Commits
from .group import Group, Ownership
from .group_messages import Committed
from .intake import Appetite, Intake
from .protocols import Protocols

RESETS: Mapping[str, int | None] = {"latest": LATEST, "earliest": EARLIEST, "none": None}
LOCATING = 30.0  # seconds within which a seek by time must know its offset
GRACE = 0.5  # seconds that a poll waits beyond its time for answers that are on their way
PATTERN = 5.0  # seconds between looks for topics that a pattern matches

Offsets = Mapping[TopicPartition, int | Committed]


class Listener(Protocol):
    """Hears of what the member owns. Bounded by the rebalance timeout, each."""

    async def assigned(self, tps: frozenset[TopicPartition]) -> None:
        """They are read from now on; `seek` in here decides from where."""

    async def revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Still ours until this returns: the time to commit. `poll` returns no more of them."""

    async def lost(self, tps: frozenset[TopicPartition]) -> None:
        """Another's already, perhaps: nothing of them can be committed."""


class GroupConsumer:
    """One member of one group, or a reader of what it is assigned by hand. Of one event loop.

    Times in seconds. group may be empty for who only reads; such a one cannot commit.

    protocol:           `auto`: KIP-848 where the broker has it, else classic.
    instance_id:        makes it a static member (KIP-345).
    session_timeout, heartbeat_interval: with KIP-848 the broker's word counts; a shorter
                        heartbeat_interval than that makes rebalances faster.
    rebalance_timeout:  that a listener may take to give up what is revoked.
    auto_offset_reset:  latest, earliest, or none: then `poll` raises PartitionFailed.
    isolation:          read_committed or read_uncommitted.
    max_partition_bytes: of one fetch of one partition; what is kept of it is bounded by that and
                        half as much again (as it is on the wire; one batch always comes).
    prefetch:           the next records are fetched while the caller works on the last.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        protocol: protocols.Name = "auto",
        instance_id: str | None = None,
        session_timeout: float = 45.0,
        heartbeat_interval: float | None = None,
        rebalance_timeout: float = 60.0,
        auto_offset_reset: Literal["latest", "earliest", "none"] = "latest",
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        max_partition_bytes: int = 1 << 20,
        prefetch: bool = False,
    ) -> None:
        self.group = group
        self._cluster = cluster
        self._protocols = Protocols(
            protocol, instance_id, session_timeout, heartbeat_interval, rebalance_timeout
        )
        self._intake = Intake(
            cluster, int(isolation == "read_committed"), max_partition_bytes,
            RESETS[auto_offset_reset],
        )  # fmt: skip
        self._prefetch = prefetch
        self._member: Group | None = None
        self._commits = Commits(cluster.coordinators, group)
        self._listener: Listener | None = None
        self._failure: KafkaError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._matching: asyncio.Task[None] | None = None
        self._kept: set[str] = set()  # topics of partitions assigned by hand
        self._unlisten = cluster.metadata.listen(self._changed)
        self._polling = asyncio.Lock()
        self._closed = False
        self._turn = 0

    # what to read

    def subscribe(
        self, topics: Collection[str] | re.Pattern[str], listener: Listener | None = None
    ) -> None:
        """Join the group for these topics, or all that the whole pattern matches."""
        assert not self._kept, "partitions are assigned by hand"
        self._listener = listener
        if self._member is None:
            member = self._member = Group(
                self._cluster,
                self.group,
                self,
                self._protocols,
                rebalance_timeout=self._protocols.rebalance_timeout,
            )
            self._intake.follows = False
            self._commits = Commits(
                self._cluster.coordinators,
                self.group,
                lambda: member.identity,
                lambda: self._intake.held.keys() & member.owned,
                member.hurry,
            )
        if self._matching is not None:
            self._matching.cancel()
            self._matching = None
        if isinstance(topics, re.Pattern):
            self._matching = apart(self._match(self._member, topics))
        else:
            self._member.subscribe(frozenset(topics))

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Read these and no others, in no group's name; from what is committed, if there is a
        group, else from where `auto_offset_reset` says, or a `seek`."""
        assert self._member is None, "it is subscribed"
        for tp in self._intake.held.keys() - set(tps):
            self._intake.drop(tp)
        topics = {tp.topic for tp in tps}
        for topic in topics - self._kept:
            self._cluster.metadata.keep(topic)
        for topic in self._kept - topics:
            self._cluster.metadata.let_go(topic)
        self._kept = topics
        new = [self._intake.hold(tp) for tp in tps if tp not in self._intake.held]
        if new:
            self._begin(new)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What it may read now."""
        return frozenset(self._intake.held)

    @property
    def state(self) -> State:
        """Of the membership; who reads by hand is RUNNING."""
        return self._member.state if self._member is not None else State.RUNNING

    # reading

    async def poll(
        self,
        timeout: float,  # noqa: ASYNC109
        *,
        min_bytes: int = 1,
        max_bytes: int = 16 << 20,
        max_records: int = 500,
    ) -> list[Record]:
        """Records, as soon as there are `min_bytes` of them, or those there are after `timeout`.

        The broker waits, for each leader on its own. What is too much is kept for the next poll;
        so is what comes after the caller was cancelled. At least one record comes, however large.
        Raises AccessDenied, PartitionFailed (no offset to go on from), GroupFailed; not when Kafka
        is away: see `Cluster.reachable`.
        """
        async with self._polling:
            now, asked = asyncio.get_running_loop().time, False
            deadline = now() + timeout
            while True:
                self._raise()
                self._intake.news.clear()
                over = asked and now() >= deadline
                late = deadline + GRACE if self._intake.busy else deadline
                if self._enough(min_bytes, max_records) or (over and now() >= late):
                    return self._take(max_records, max_bytes)
                again = late
                if not over:
                    wait, asked = max(0.0, deadline - now()), True
                    again = self._intake.begin(Appetite(wait, min_bytes, max_bytes))
                    late = deadline + GRACE if self._intake.busy else deadline
                await self._news(min(again, late))

    async def _news(self, until: float) -> None:
        """Until something came, or the time has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._intake.news.wait()

    def _enough(self, min_bytes: int, max_records: int) -> bool:
        readable = [held for held in self._intake.held.values() if held.readable]
        if sum(held.size for held in readable) >= max(1, min_bytes):
            return True
        return sum(len(held.kept) for held in readable) >= max_records

    def _take(self, most: int, size: int) -> list[Record]:
        """In turns: another partition is the first each time, so that none is starved."""
        held = [one for one in self._intake.held.values() if one.readable and one.kept]
        taken: list[Record] = []
        if held:
            self._turn += 1
            at = self._turn % len(held)
            for one in held[at:] + held[:at]:
                if len(taken) >= most or size <= 0:
                    break
                before = one.size
                if not taken or before:
                    taken += one.take(most - len(taken), size)
                size -= before - one.size
        if self._prefetch:
            self._intake.begin(Appetite())
        return taken

    def _raise(self) -> None:
        if self._closed:
            raise KafkaError("the consumer is closed")
        if self._failure is not None:
            raise self._failure
        for failure in self._intake.failures.values():
            raise failure

    # positions

    def position(self, tp: TopicPartition) -> int | None:
        """The offset after what `poll` has returned; None while it is being looked up."""
        return self._held(tp).position

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """The next poll returns records from there on."""
        self._held(tp).seek(offset)
        self._intake.failures.pop(tp, None)
        self._intake.wake()

    async def seek_to_beginning(self, tps: Collection[TopicPartition]) -> None:
        await self._seek(dict.fromkeys(tps, EARLIEST))

    async def seek_to_end(self, tps: Collection[TopicPartition]) -> None:
        """With read_committed: to the last stable offset."""
        await self._seek(dict.fromkeys(tps, LATEST))

    async def seek_to_timestamp(self, timestamps: Mapping[TopicPartition, int]) -> None:
        """To the first record at least as late (milliseconds), or the end where there is none."""
        await self._seek(timestamps)

    async def _seek(self, specs: Mapping[TopicPartition, int]) -> None:
        """Returns when the positions are known. Raises BrokerUnavailable when they cannot be."""
        some = [(self._held(tp), spec) for tp, spec in specs.items()]
        for held, spec in some:
            held.reset(spec)
            self._intake.failures.pop(held.tp, None)
        try:
            async with asyncio.timeout(LOCATING):
                await self._intake.located([held for held, _ in some])
        except TimeoutError:
            message = "the offsets to seek to are not known in time"
            raise BrokerUnavailable(message, timeout=True) from None

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """`poll` returns nothing of them until `resume`; they stay owned."""
        for tp in tps:
            self._held(tp).paused = True

    def resume(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self._held(tp).paused = False
        self._intake.wake()

    def _held(self, tp: TopicPartition) -> Held:
        held = self._intake.held.get(tp)
        if held is None:
            raise NotOwned(f"{tp} is not this consumer's (any more); see its assignment")
        return held

    def _is_held(self, held: Held) -> bool:
        return self._intake.held.get(held.tp) is held

    # offsets

    async def commit(self, offsets: Offsets | None = None) -> None:
        """These, or the positions of all that is owned and not committed as it is.

        Raises NotOwned for partitions that are not the member's (any more), when the rest is
        committed; AccessDenied, GroupFailed, BrokerUnavailable (30 s without success).
        """
        wanted = self._positions() if offsets is None else _committed(offsets)
        if not wanted:
            return
        held = {tp: one for tp in wanted if (one := self._intake.held.get(tp)) is not None}
        try:
            await self._commits.commit(wanted, self._topic_id)
        except NotOwned:
            if offsets is not None:
                raise
            return  # what was lost amid the commit is not the caller's any more
        for tp, one in held.items():
            one.committed = wanted[tp].offset

    async def committed(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What the group has committed; absent where nothing is. Raises as `commit`."""
        return await self._commits.committed(tps)

    def _positions(self) -> dict[TopicPartition, Committed]:
        return {
            tp: Committed(held.position, held.epoch)
            for tp, held in self._intake.held.items()
            if held.position is not None and held.position != held.committed
        }

    def _topic_id(self, topic: str) -> UUID | None:
        """Of the topic that was read: its successor's offsets are others."""
        for held in self._intake.held.values():
            if held.tp.topic == topic:
                return held.topic_id
        return None

    async def close(self, leave: bool = True) -> None:
        """The listener's `revoked` is awaited for all that is owned, then the group is left.

        leave: False: the coordinator is told nothing, and waits for the member until its session
               is over. A static member says that it comes back (KIP-848), or nothing (classic).
        """
        if self._closed:
            return
        self._closed = True
        self._unlisten()
        tasks = [*self._tasks, *([self._matching] if self._matching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._intake.held.values():
            held.giving_up = True
        self._intake.wake()
        if self._member is not None:
            await self._farewell()
            await self._member.close(leave)
        for topic in self._kept:
            self._cluster.metadata.let_go(topic)
        await self._intake.close()

    async def _farewell(self) -> None:
        if self._listener is None or not self._intake.held:
            return
        try:
            async with asyncio.timeout(self._protocols.rebalance_timeout):
                await self._listener.revoked(self.assignment)
        except (TimeoutError, KafkaError):
            pass

    # the owner of a group's partitions

    def owns(self, event: Ownership) -> None:
        if isinstance(event, Assigned):
            for tp in event.tps:
                self._intake.hold(tp)
            return
        for tp in event.tps:
            if isinstance(event, Lost):
                self._intake.drop(tp)
            elif (held := self._intake.held.get(tp)) is not None:
                held.giving_up = True
        self._intake.wake()

    async def follow(self, event: Ownership) -> None:
        listener = self._listener
        if isinstance(event, Assigned):
            held = [one for tp in event.tps if (one := self._intake.held.get(tp)) is not None]
            try:
                if listener is not None:
                    await listener.assigned(event.tps)
            finally:
                self._begin(held)
        elif isinstance(event, Lost):
            if listener is not None:
                await listener.lost(event.tps)
        else:
            try:
                if listener is not None:
                    await listener.revoked(event.tps)
            finally:
                for tp in event.tps:
                    self._intake.drop(tp)

    def failed(self, failure: KafkaError | None) -> None:
        self._failure = failure
        if failure is not None:
            self._intake.wake()

    # where to begin

    def _begin(self, some: Collection[Held]) -> None:
        task = apart(self._resolve(list(some)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve(self, some: list[Held]) -> None:
        """From what is committed; until it is known, nothing is read."""
        while some := [held for held in some if self._is_held(held) and _unplaced(held)]:
            try:
                found = await self._found([held.tp for held in some])
            except KafkaError as exc:
                self.failed(exc if not isinstance(exc, BrokerUnavailable) else None)
                await asyncio.sleep(exc.retry_after or 0.5)
                continue
            for held in filter(_unplaced, some):
                committed = found.get(held.tp)
                if committed is None:
                    self._intake.nowhere(held)
                else:
                    held.seek(committed.offset, committed.epoch)
                    held.committed = committed.offset
            await self._intake.located(some)  # `latest` is the end as of now, not of the first poll
            self._intake.wake()

    async def _found(self, tps: list[TopicPartition]) -> dict[TopicPartition, Committed]:
        return await self._commits.committed(tps) if self.group else {}

    async def _match(self, member: Group, pattern: re.Pattern[str]) -> None:
        """Kafka's own topics (`__...`) are matched by nothing."""
        while True:
            try:
                names = await self._cluster.topics()
                found = {name for name in names if pattern.fullmatch(name)}
                member.subscribe(frozenset(name for name in found if not name.startswith("__")))
            except KafkaError:
                await asyncio.sleep(0.5)
                continue
            await asyncio.sleep(PATTERN)

    def _changed(self, change: Change) -> None:
        if any(tp.topic == change.topic.name for tp in self._intake.held):
            self._intake.wake()


def _unplaced(held: Held) -> bool:
    return held.position is None and held.spec is None and not held.stopped


def _committed(of: Offsets) -> dict[TopicPartition, Committed]:
    return {tp: one if isinstance(one, Committed) else Committed(one) for tp, one in of.items()}
