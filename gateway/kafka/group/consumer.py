"""A consumer as the sidecar needs it: a group's member, or partitions by hand; true long polls.

    consumer = GroupConsumer(cluster, "billing")
    consumer.subscribe(["orders"], listener)
    records = await consumer.poll(5.0)
    await consumer.commit()

What a commit means is what `poll` has *returned*. Membership is our own (`group_member`), by
KIP-848 or the classic protocol; records come by fetches of our own (`prefetch`). No thread is in
either: a thousand consumers of librdkafka in one process are four thousand threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from gateway.core.group.member import MemberState
from gateway.core.group.partition_state import EARLIEST, LATEST, PartitionState
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, NotOwned, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.protocol.group_messages import OffsetAndMetadata

from . import member_options
from .assignment import Assignment, RebalanceListener
from .member_options import MemberOptions
from .prefetch_fetcher import FetchLimits, PrefetchFetcher

__all__ = ["GroupConsumer", "OffsetAndMetadata", "RebalanceListener"]

log = logging.getLogger(__name__)

OFFSET_RESETS: Mapping[str, int | None] = {"latest": LATEST, "earliest": EARLIEST, "none": None}
SEEK_TIMEOUT_S = 30.0  # seconds within which a seek by time must know its offset
POLL_GRACE_S = 0.5  # seconds that a poll waits beyond its time for answers that are on their way

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class GroupConsumer:
    """One member of one group, or a reader of what it is assigned by hand. Of one event loop.

    Times in seconds. group may be empty for who only reads; such a one cannot commit.

    protocol:           `auto`: KIP-848 where the broker has it, else classic.
    instance_id:        makes it a static member (KIP-345).
    session_timeout, heartbeat_interval: with KIP-848 the broker's word counts; a shorter
                        heartbeat_interval than that makes rebalances faster.
    rebalance_timeout:  that a listener may take to give up what is revoked.
    auto_offset_reset:  where a group that has committed nothing begins: latest, earliest, or none:
                        then `poll` raises PartitionFailed. In a group that has committed anything
                        a new partition is read from its start, and where Kafka does not have the
                        offset to go on from any more, from the first that it has. Without a group
                        it says where to go on from then, too.
    on_gap:             called with a partition, the offset that Kafka does not have, and the one
                        from which it is read instead.
    isolation:          read_committed or read_uncommitted.
    max_partition_bytes: of one fetch of one partition; what is kept of it is bounded by that and
                        half as much again (as it is on the wire; one batch always comes).
    max_fetch_bytes:    of one fetch of one broker.
    prefetch:           the next records are fetched while the caller works on the last.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        protocol: member_options.ProtocolName = "auto",
        instance_id: str | None = None,
        session_timeout: float = 45.0,
        heartbeat_interval: float | None = None,
        rebalance_timeout: float = 60.0,
        auto_offset_reset: Literal["latest", "earliest", "none"] = "latest",
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        max_partition_bytes: int = 1 << 20,
        max_fetch_bytes: int = 16 << 20,
        prefetch: bool = False,
        on_gap: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        self.group = group
        self._counters = cluster.coordinators.stats
        self._on_gap = on_gap
        reset = OFFSET_RESETS[auto_offset_reset]
        self._prefetcher = PrefetchFetcher(
            cluster,
            int(isolation == "read_committed"),
            max_partition_bytes,
            reset,
            EARLIEST if group and reset is not None else reset,
            self._report_gap,
        )
        self._assignment = Assignment(
            cluster,
            group,
            MemberOptions(
                protocol, instance_id, session_timeout, heartbeat_interval, rebalance_timeout
            ),
            self._prefetcher,
        )
        self._prefetch = prefetch
        self._max_fetch_bytes = max_fetch_bytes
        self._poll_lock = asyncio.Lock()
        self._raised_failures: dict[TopicPartition, KafkaError] = {}
        self._closed = False
        self._rotation = 0

    # what to read

    def subscribe(
        self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Be the group's member for these topics, or all whose whole name the pattern matches.

        Raises ValueError where partitions were assigned by hand.
        """
        self._assignment.subscribe(topics, listener)

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Read these and no others, as nobody's member; from what is committed, if there is a
        group, else from where `auto_offset_reset` says, or a `seek`.

        Raises ValueError where it is subscribed.
        """
        self._assignment.assign(tps)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What it may read now."""
        return frozenset(self._prefetcher.states)

    @property
    def state(self) -> MemberState:
        """Of the membership; who reads by hand is RUNNING."""
        return self._assignment.state

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
        Raises GroupFailed. AccessDenied and PartitionFailed (no offset to go on from) are of one
        partition, and the others go on: told once, and PartitionFailed again by each poll that has
        nothing else to give. Kafka being away raises nothing: see `Cluster.reachable`.
        """
        async with self._poll_lock:
            now, asked = asyncio.get_running_loop().time, False
            deadline = now() + timeout
            while True:
                self._raise_new_failure()
                self._prefetcher.changed.clear()
                over = asked and now() >= deadline
                late = deadline + POLL_GRACE_S if self._prefetcher.is_busy else deadline
                if self._has_enough(min_bytes, max_records) or (over and now() >= late):
                    taken = self._take_records(max_records, max_bytes)
                    if not taken:
                        self._raise_lasting_failure()
                    return taken
                again = late
                if not over:
                    wait, asked = max(0.0, deadline - now()), True
                    again = self._prefetcher.start_fetches(
                        FetchLimits(wait, min_bytes, min(max_bytes, self._max_fetch_bytes))
                    )
                    late = deadline + POLL_GRACE_S if self._prefetcher.is_busy else deadline
                await self._wait_for_change(min(again, late))

    def poll_nowait(
        self, *, min_bytes: int, max_bytes: int, max_records: int
    ) -> list[Record] | None:
        """What `poll` would return without waiting; None where it would wait. Raises as `poll`."""
        if self._poll_lock.locked():
            return None
        self._raise_new_failure()
        if not self._has_enough(min_bytes, max_records):
            return None
        return self._take_records(max_records, max_bytes)

    async def _wait_for_change(self, until: float) -> None:
        """Until something came, or the time has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._prefetcher.changed.wait()

    def _has_enough(self, min_bytes: int, max_records: int) -> bool:
        readable = [held for held in self._prefetcher.states.values() if held.is_readable]
        if sum(held.buffered_bytes for held in readable) >= max(1, min_bytes):
            return True
        return sum(len(held.records) for held in readable) >= max_records

    def _take_records(self, max_records: int, max_bytes: int) -> list[Record]:
        """In turns: another partition is the first each time, so that none is starved."""
        held = [one for one in self._prefetcher.states.values() if one.is_readable and one.records]
        taken: list[Record] = []
        if held:
            self._rotation += 1
            at = self._rotation % len(held)
            for one in held[at:] + held[:at]:
                if len(taken) >= max_records or max_bytes <= 0:
                    break
                before = one.buffered_bytes
                if not taken or before:
                    taken += one.take(max_records - len(taken), max_bytes)
                max_bytes -= before - one.buffered_bytes
        if self._prefetch:
            self._prefetcher.start_fetches(FetchLimits(max_bytes=self._max_fetch_bytes))
        return taken

    def _raise_new_failure(self) -> None:
        if self._closed:
            raise KafkaError("the consumer is closed")
        if self._assignment.failure is not None:
            raise self._assignment.failure
        for tp, failure in self._prefetcher.failures.items():
            if self._raised_failures.get(tp) is not failure:
                self._raised_failures[tp] = failure
                raise failure

    def _raise_lasting_failure(self) -> None:
        """Nothing comes: say what needs a seek."""
        for failure in self._prefetcher.failures.values():
            if isinstance(failure, PartitionFailed):
                raise failure

    @property
    def failures(self) -> Mapping[TopicPartition, KafkaError]:
        """Why some partitions are not read now."""
        return self._prefetcher.failures

    def _report_gap(self, tp: TopicPartition, missing: int, found: int) -> None:
        """Say that Kafka does not have an offset any more, and where it goes on."""
        who = f"group {self.group}: " if self.group else ""
        if found > missing:
            self._counters.missing_records[self._counters.get_label(self.group)] += found - missing
            log.warning(
                "%s%s has no offset %d any more: %d records are lost to it, it goes on at %d",
                who, tp, missing, found - missing, found,
            )  # fmt: skip
        else:
            log.warning("%s%s has no offset %d; it goes on at %d", who, tp, missing, found)
        if self._on_gap is not None:
            self._on_gap(tp, missing, found)

    # positions

    def position(self, tp: TopicPartition) -> int | None:
        """The offset after what `poll` has returned; None while it is being looked up."""
        return self._get_state(tp).position

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """The next poll returns records from there on."""
        self._get_state(tp).seek(offset)
        self._prefetcher.failures.pop(tp, None)
        self._prefetcher.wake()

    async def seek_to_beginning(self, tps: Collection[TopicPartition]) -> None:
        await self._seek_to_specs(dict.fromkeys(tps, EARLIEST))

    async def seek_to_end(self, tps: Collection[TopicPartition]) -> None:
        """With read_committed: to the last stable offset."""
        await self._seek_to_specs(dict.fromkeys(tps, LATEST))

    async def seek_to_timestamp(self, timestamps: Mapping[TopicPartition, int]) -> None:
        """To the first record at least as late (milliseconds), or the end where there is none."""
        await self._seek_to_specs(timestamps)

    async def _seek_to_specs(self, specs: Mapping[TopicPartition, int]) -> None:
        """Returns when the positions are known. Raises BrokerUnavailable when they cannot be."""
        some = [(self._get_state(tp), spec) for tp, spec in specs.items()]
        for held, spec in some:
            held.reset(spec)
            self._prefetcher.failures.pop(held.tp, None)
        try:
            async with asyncio.timeout(SEEK_TIMEOUT_S):
                await self._prefetcher.wait_for_positions([held for held, _ in some])
        except TimeoutError:
            message = "the offsets to seek to are not known in time"
            raise BrokerUnavailable(message, timeout=True) from None

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """`poll` returns nothing of them until `resume`; they stay owned."""
        for tp in tps:
            self._get_state(tp).is_paused = True

    def resume(self, tps: Collection[TopicPartition]) -> None:
        paused = [held for held in map(self._get_state, tps) if held.is_paused]
        for held in paused:
            held.is_paused = False
        if paused:
            self._prefetcher.wake()

    def _get_state(self, tp: TopicPartition) -> PartitionState:
        held = self._prefetcher.states.get(tp)
        if held is None:
            raise NotOwned(f"{tp} is not this consumer's (any more); see its assignment")
        return held

    # offsets

    async def commit(self, offsets: Offsets | None = None) -> None:
        """These, or the positions of all that is owned and not committed as it is.

        Raises NotOwned for partitions that are not the member's (any more), when the rest is
        committed; AccessDenied, GroupFailed, BrokerUnavailable (30 s without success).
        """
        wanted = self._collect_positions() if offsets is None else _normalize_offsets(offsets)
        if not wanted:
            return
        try:
            await self._assignment.commit(wanted)
        except NotOwned:
            if offsets is not None:
                raise  # without offsets: what was lost amid the commit is not the caller's any more

    async def committed(
        self, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; absent where nothing is. Raises as `commit`."""
        return await self._assignment.committed(tps)

    def _collect_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: OffsetAndMetadata(held.position, held.epoch)
            for tp, held in self._prefetcher.states.items()
            if held.position is not None and held.position != held.committed
        }

    async def close(self, leave: bool = True) -> None:
        """The listener's `revoked` is awaited for all that is owned, then the group is left.

        leave: False: the coordinator is told nothing, and waits for the member until its session
               is over. A static member says that it comes back (KIP-848), or nothing (classic).
        """
        if self._closed:
            return
        self._closed = True
        await self._assignment.close(leave)
        await self._prefetcher.close()


def _normalize_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        tp: one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
        for tp, one in offsets.items()
    }
