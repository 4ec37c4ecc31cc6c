"""Consume as a member of a group, or from partitions assigned by hand, with true long polls.

    consumer = GroupConsumer(cluster, "billing", ConsumerOptions(auto_offset_reset="earliest"))
    consumer.subscribe(["orders"], listener)
    records = await consumer.poll(5.0)
    await consumer.commit({tp: 7})

Membership (`group_member`) speaks KIP-848 or the classic protocol, and `prefetch_fetcher` fetches
the records. Neither uses a thread: a thousand consumers of librdkafka in one process are four
thousand threads.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

from gateway.core.group.member import MemberState
from gateway.core.group.partition_state import EARLIEST, PartitionState
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, NotOwned, PartitionFailed
from gateway.kafka.client.cluster import Cluster, FetchLimits
from gateway.kafka.protocol.group_messages import OffsetAndMetadata

from .assignment import Assignment, RebalanceListener
from .consumer_options import ConsumerOptions
from .prefetch_fetcher import PrefetchFetcher

__all__ = ["ConsumerOptions", "GroupConsumer", "OffsetAndMetadata", "RebalanceListener"]

log = logging.getLogger(__name__)

SEEK_TIMEOUT_S = 30.0  # for looking up the offset of a seek
# For how long a poll waits beyond its timeout for responses: brokers use the whole timeout.
POLL_GRACE_S = 0.5


class GroupConsumer:
    """One member of a consumer group, or a reader of partitions that are assigned by hand.

    Its creator owns it, calls `subscribe` or `assign`, and calls `close` in the same event loop.
    Only one `poll` runs at a time; other calls may run beside it. Records are returned in offset
    order of each partition, and `position` is the offset after the last returned one. Methods for a
    partition raise NotOwned if it is not this consumer's.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        options: ConsumerOptions | None = None,
        *,
        on_gap: Callable[[TopicPartition, int, int], None] | None = None,
        on_buffered: Callable[[int], None] | None = None,
    ) -> None:
        """Create a consumer without partitions.

        Args:
            group: The name of the group; empty for a reader, which cannot commit.
            on_gap: Called with a partition, the offset that Kafka does not have, and the one from
                which it is read instead; a lower one if the log was truncated.
            on_buffered: Called with about how many bytes are fetched ahead, when that changes.
        """
        self.group = group
        self._options = options = options or ConsumerOptions()
        self._counters = cluster.coordinators.stats
        self._on_gap = on_gap
        reset = options.offset_spec
        self.prefetcher = PrefetchFetcher(
            cluster,
            options,
            EARLIEST if group and reset is not None else reset,
            self._report_gap,
            on_buffered=on_buffered,
        )
        self._assignment = Assignment(cluster, group, options, self.prefetcher)
        self._poll_lock = asyncio.Lock()
        self._raised_failures: dict[TopicPartition, KafkaError] = {}  # the last one of each
        self._closed = False
        self._rotation = 0  # which partition is the first one in the next poll

    # What to read.

    def subscribe(
        self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Subscribe to topics, or to names that match a pattern as a whole, in place of others."""
        self._assignment.subscribe(topics, listener)

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, without being a member of the group.

        They start at the group's committed offset, else as `auto_offset_reset` or `seek` says.
        """
        self._assignment.assign(tps)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.prefetcher.states)

    @property
    def state(self) -> MemberState:
        return self._assignment.state

    @property
    def group_failure(self) -> KafkaError | None:
        return self._assignment.failure

    # Reading.

    async def poll(
        self,
        timeout: float,
        *,
        min_bytes: int = 1,
        max_bytes: int = 16 << 20,
        max_records: int = 500,
    ) -> list[Record]:
        """Return the next records once there are `min_bytes` of them, or after `timeout` seconds.

        The brokers wait, each leader on its own. Records beyond the limits are kept for the next
        poll. If the caller is cancelled the brokers wait no longer, and the next poll fetches
        again. At least one record is returned, however large. Failures of one partition
        (AccessDenied; PartitionFailed if there is no offset to go on from) are raised once while
        the others go on. PartitionFailed is raised again by each poll that has no records. If Kafka
        is away nothing is raised: see `Cluster.is_reachable`.

        Raises:
            GroupFailed: The group cannot be used.
            AccessDenied: The gateway may not read a topic, or use the group.
            PartitionFailed: A partition cannot go on without a seek.
            KafkaError: The consumer is closed, or the group cannot be used for another reason.
        """
        async with self._poll_lock:
            now, is_requested = asyncio.get_running_loop().time, False
            deadline = now() + timeout
            while True:
                self._raise_new_failure()
                # Cleared before the look at the records: what comes from here on sets it again.
                self.prefetcher.changed.clear()
                # A poll with a timeout of 0 asks the brokers once, too, before it is over.
                is_over = is_requested and now() >= deadline
                give_up_at = deadline + POLL_GRACE_S if self.prefetcher.is_busy else deadline
                if self._has_enough(min_bytes, max_records) or (is_over and now() >= give_up_at):
                    records = self._take_records(max_records, max_bytes)
                    for failure in () if records else self.failures.values():
                        if isinstance(failure, PartitionFailed):
                            _raise_again(failure)
                    return records
                next_due = give_up_at
                if not is_over:
                    wait, is_requested = max(0.0, deadline - now()), True
                    next_due = self.prefetcher.start_fetches(
                        FetchLimits(
                            wait,
                            min_bytes,
                            min(max_bytes, self._options.max_fetch_bytes),
                            self._options.isolation_level,
                        )
                    )
                    # Computed again, as a request may be under way only now.
                    give_up_at = deadline + POLL_GRACE_S if self.prefetcher.is_busy else deadline
                await self._wait_for_change(min(next_due, give_up_at))

    def poll_nowait(
        self, *, min_bytes: int, max_bytes: int, max_records: int
    ) -> list[Record] | None:
        """Return the result that `poll` has without waiting; None if it would wait."""
        if self._poll_lock.locked():
            return None
        self._raise_new_failure()
        if not self._has_enough(min_bytes, max_records):
            return None
        return self._take_records(max_records, max_bytes)

    async def _wait_for_change(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self.prefetcher.changed.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.prefetcher.discard_fetches()
            raise

    def _has_enough(self, min_bytes: int, max_records: int) -> bool:
        readable = [state for state in self.prefetcher.states.values() if state.is_readable]
        if sum(state.buffered_bytes for state in readable) >= max(1, min_bytes):
            return True
        return sum(len(state.records) for state in readable) >= max_records

    def _take_records(self, max_records: int, max_bytes: int) -> list[Record]:
        """Take records within the limits, each time from another partition first."""
        states = [
            state
            for state in self.prefetcher.states.values()
            if state.is_readable and state.records
        ]
        taken: list[Record] = []
        if states:
            self._rotation += 1
            first = self._rotation % len(states)
            for state in states[first:] + states[:first]:
                if len(taken) >= max_records or max_bytes <= 0:
                    break
                bytes_before = state.buffered_bytes
                if not taken or bytes_before:
                    taken += state.take(max_records - len(taken), max_bytes)
                max_bytes -= bytes_before - state.buffered_bytes
        if self._options.prefetch:
            self.prefetcher.start_fetches(
                FetchLimits(
                    max_bytes=self._options.max_fetch_bytes,
                    isolation_level=self._options.isolation_level,
                )
            )
        self.prefetcher.report_buffered()
        return taken

    def _raise_new_failure(self) -> None:
        if self._closed:
            raise KafkaError("the consumer is closed")
        if self._assignment.failure is not None:
            _raise_again(self._assignment.failure)
        raised = self._raised_failures
        for tp, failure in self.failures.items():
            if raised.get(tp) is not failure:
                self._raised_failures = {
                    key: raised[key] for key in raised.keys() & self.failures.keys()
                } | {tp: failure}
                _raise_again(failure)

    @property
    def failures(self) -> Mapping[TopicPartition, KafkaError]:
        return self.prefetcher.failures

    def _report_gap(self, tp: TopicPartition, missing: int, next_offset: int) -> None:
        if next_offset > missing:  # the fetcher has logged that a log goes back
            prefix = f"group {self.group}: " if self.group else ""
            lost = next_offset - missing
            self._counters.missing_records[self._counters.get_label(self.group)] += lost
            log.warning(
                "%s%s has no offset %d any more: %d records are lost to it, it goes on at %d",
                prefix,
                tp,
                missing,
                lost,
                next_offset,
            )
        if self._on_gap is not None:
            self._on_gap(tp, missing, next_offset)

    # Positions.

    def position(self, tp: TopicPartition) -> int | None:
        """Return the offset after the last returned record; None while it is being looked up."""
        return self._get_state(tp).position

    def seek(self, tp: TopicPartition, offset: int) -> None:
        state = self._get_state(tp)
        state.seek(offset)
        self._assignment.note_seek(state)
        self.prefetcher.failures.pop(tp, None)
        self.prefetcher.wake()

    def seek_back(self, tp: TopicPartition, offset: int) -> None:
        """Let the next poll return records again, from an offset before the position.

        The leader epoch is kept, so that a log cut off even earlier is noticed (KIP-320).
        """
        state = self._get_state(tp)
        state.seek(offset, state.epoch_before(offset))
        self.prefetcher.wake()

    async def seek_to_specs(self, specs: Mapping[TopicPartition, int]) -> None:
        """Seek to EARLIEST, LATEST, or a time (ms since 1970); returns when positions are known.

        With read_committed, LATEST is the last stable offset. A time after the last record is the
        end.
        """
        # All states first: if a partition is not ours, no other one must be moved.
        resets = [(self._get_state(tp), spec) for tp, spec in specs.items()]
        for state, spec in resets:
            state.reset(spec)
            self._assignment.note_seek(state)
            self.prefetcher.failures.pop(state.tp, None)
        try:
            async with asyncio.timeout(SEEK_TIMEOUT_S):
                await self.prefetcher.wait_for_positions([state for state, _ in resets])
        except TimeoutError:
            message = "the offsets to seek to are not known in time"
            raise BrokerUnavailable(message, timeout=True) from None

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Return no records of partitions until `resume`; they stay assigned."""
        for tp in tps:
            self._get_state(tp).is_paused = True

    def resume(self, tps: Collection[TopicPartition]) -> None:
        paused = [state for state in map(self._get_state, tps) if state.is_paused]
        for state in paused:
            state.is_paused = False
        if paused:
            self.prefetcher.wake()

    def _get_state(self, tp: TopicPartition) -> PartitionState:
        state = self.prefetcher.states.get(tp)
        if state is None:
            raise NotOwned(f"{tp} is not this consumer's (any more); see its assignment")
        return state

    # Offsets.

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commit the next offsets.

        Raises:
            NotOwned: Some of the partitions are not the member's (any more). The others are
                committed.
            UnknownTopic: The coordinator does not know a topic. The others are committed.
            AccessDenied: The group or a topic may not be used.
            GroupFailed: The coordinator refuses for another reason.
            BrokerUnavailable: It did not succeed within 30 seconds.
        """
        await self._assignment.commit(
            {
                tp: offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
                for tp, offset in offsets.items()
            }
        )

    async def close(self, leave: bool = True) -> None:
        """Let the listener give up all partitions, leave the group, and end all tasks.

        Args:
            leave: False sends the coordinator nothing, which then waits for the member until its
                session expires. With True a static member says that it comes back (KIP-848), or
                nothing (classic protocol).
        """
        if self._closed:
            return
        self._closed = True
        await self._assignment.close(leave)
        await self.prefetcher.close()


def _raise_again(failure: KafkaError) -> NoReturn:
    """Raise an error that is kept, without the frames of earlier polls, which would add up."""
    raise failure.with_traceback(None)
