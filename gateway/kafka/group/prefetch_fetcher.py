"""Fetch the partitions of one consumer ahead of its polls.

A fetch goes over a spare connection, because the broker holds it back while it has no records. It
goes on when its poll returns, for the next one, and ends when its poll is cancelled, or when it
counts for no partition any more. A partition that is added while a fetch from its broker is held
back gets a fetch of its own.

The module shares only requests and decoder with the two other ways to fetch. The `Fetcher` fetches
unasked, over connections that all its kind share: with Kafka 4.3 and 12 partitions, 50 of them
without new records held each other up until requests timed out, where 50 consumers that nobody
polls send next to nothing. `read_committed` reads one partition per request, so a poll that waits
would hold a connection for each partition, not for each broker, and brokers could not wait for
`min_bytes` of all.

A response is used only if the partition's `lineage` is still the one of the request: a seek, or
another assignment of the partition, makes it useless.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, assert_never

from gateway.background_tasks import BackgroundTasks
from gateway.core.error_code import ErrorCode, code_from_error
from gateway.core.group.partition_state import (
    EARLIEST,
    LATEST,
    OffsetRange,
    PartitionState,
    locate_offset,
)
from gateway.core.log.record import NO_EPOCH, Gap, TopicPartition
from gateway.core.log.recovery import (
    RECOVERY_RULES,
    Backoff,
    Cause,
    RecoveryAction,
    cause_from_code,
    find_divergence,
)
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import (
    MAX_CORRUPT_ATTEMPTS,
    REPLICA_LEASE_S,
    Cluster,
    FetchLimits,
    fetch,
)
from gateway.kafka.client.offsets import READ_COMMITTED, OffsetAndTimestamp
from gateway.kafka.fetch.bounded_read import build_partition_failed, fetch_log_bounds
from gateway.kafka.fetch.decoding import (
    BULK_SLICE_RECORDS,
    DecodedSlice,
    RecordSetDecoder,
    describe_unreadable,
    iter_slices,
)
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchTarget

from .consumer_options import ConsumerOptions

log = logging.getLogger(__name__)

# What is kept of one fetch once it is decompressed: this many times `max_partition_bytes`.
MAX_EXPANSION = 16
# How often a leader is asked again whose epoch is lower than that of the record before an offset.
MAX_FORMER_LEADER_ATTEMPTS = 10  # with the delays of NOT_LEADER, a second or two
RECORD_OBJECT_BYTES = 200  # of one in memory, beside what counts for `max_partition_bytes`
LEADERLESS_RETRY_S = 0.25  # seconds between looks at metadata for a partition without a leader
MAX_HELD_S = 30.0  # for which a broker holds a fetch back, also if nobody polls any more


@dataclass(slots=True, eq=False)
class PrefetchFetcher:
    """The fetches of one consumer, which creates and owns it.

    `states` are the partitions that may be read: after changing a state, call `wake`. At most one
    request counts for each partition: its task is the state's `in_flight`. One that counts for none
    is cancelled before others start. The next fetch is sent once less than half of
    `max_partition_bytes` is buffered.

    Attributes:
        out_of_range_reset: Where to go on if retention has deleted the next offset: LATEST or
            EARLIEST. A log that was cut off below it is read from the cut in both cases. None stops
            the partition with a failure in either case.
        on_gap: Called with a partition, the offset that Kafka does not have, and the offset to go
            on from: a lower one where the log was cut off.
        follows_recreated: Read a topic that was created again from its start. False leaves that to
            `Assignment`, which learns of it by a new assignment.
        on_buffered: Called with about how many bytes the records take that were fetched ahead.
        topics: Of all partitions since the beginning, also of those that were removed.
        failures: The failures that a poll must raise. A seek removes them.
        changed: Set when a waiting poll must look at the states again.
    """

    cluster: Cluster
    options: ConsumerOptions
    out_of_range_reset: int | None
    on_gap: Callable[[TopicPartition, int, int], None]
    follows_recreated: bool = True
    on_buffered: Callable[[int], None] | None = None
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    failures: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(log))

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    def add_partition(self, tp: TopicPartition) -> PartitionState:
        topic = self.cluster.get_topic(tp.topic)
        backoff = Backoff(max_delay=1.0, random=random.random)
        state = self.states[tp] = PartitionState(tp, backoff, topic.topic_id if topic else None)
        self.topics.add(tp.topic)
        self.failures.pop(tp, None)
        self.changed.set()
        return state

    def remove_partition(self, tp: TopicPartition) -> None:
        self.states.pop(tp, None)
        self.failures.pop(tp, None)

    def wake(self) -> None:
        self.changed.set()

    def reset_position(self, state: PartitionState, spec: int | None) -> None:
        """Look up where to go on: at LATEST, EARLIEST or a time (ms); None stops the partition."""
        if spec is not None:
            state.reset(spec)
        else:
            self._stop_partition(
                state, "has no offset to go on from; seek to one, or set an offset reset"
            )
        self.changed.set()

    def start_fetches(self, limits: FetchLimits | None) -> float:
        """Send the requests that are due, and return the loop time at which more become due.

        Without limits, only positions are looked up.
        """
        now, next_due = asyncio.get_running_loop().time(), float("inf")
        fetches: dict[int, list[PartitionState]] = {}
        lists: list[PartitionState] = []
        for state in self.states.values():
            # Where a paused partition begins is looked up: `latest` means the end as of now.
            if not (state.is_readable or (state.offset_spec is not None and state.is_paused)):
                continue
            if state.in_flight is not None:
                if limits is None or state.min_bytes <= limits.min_bytes:
                    continue
                # The broker waits for more bytes than this poll wants: an earlier poll asked for
                # more. That response is ignored, and the fetch is repeated with the lower limit.
                state.discard_in_flight()
            if state.retry_at > now:
                next_due = min(next_due, state.retry_at)
            elif (node := self._choose_node(state, now)) is None:
                next_due = min(next_due, now + LEADERLESS_RETRY_S)
            elif state.offset_spec is not None:
                lists.append(state)
            elif limits is not None and self._should_fetch(state):
                fetches.setdefault(node, []).append(state)
        if lists or fetches:
            self._cancel_unused()
        if lists:
            self._start_request(self._list_offsets(lists), lists)
        for node, states in fetches.items():
            assert limits is not None
            # Built now and not in the task: before that starts, a seek may change a position, and
            # another task may then fetch the partition.
            wants = {state: (self._build_want(state), state.lineage) for state in states}
            self._start_request(self._fetch(node, wants, limits), states, limits.min_bytes)
        return next_due

    async def wait_for_positions(self, states: Collection[PartitionState]) -> None:
        while any(
            state.offset_spec is not None and self.states.get(state.tp) is state for state in states
        ):
            await self.look_up_positions()

    async def look_up_positions(self) -> None:
        """Look up positions that are due, and wait until a request has ended, or for a moment."""
        self.start_fetches(None)
        if self._tasks:
            await self._tasks.wait(LEADERLESS_RETRY_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(LEADERLESS_RETRY_S)

    def report_buffered(self) -> None:
        if self.on_buffered is not None:
            self.on_buffered(
                sum(
                    state.buffered_bytes + RECORD_OBJECT_BYTES * len(state.records)
                    for state in self.states.values()
                )
            )

    def drop_buffered(self) -> None:
        """Forget all records that were fetched ahead; the next polls fetch them again."""
        for state in self.states.values():
            state.drop_fetched()
        self.wake()

    def discard_fetches(self) -> None:
        """End the fetches that brokers hold back, as nobody waits for their records any more."""
        for state in self.states.values():
            if state.min_bytes:
                state.discard_in_flight()
        self._cancel_unused()

    def _cancel_unused(self) -> None:
        self._tasks.cancel(keep={state.in_flight for state in self.states.values()})

    async def close(self) -> None:
        self.states.clear()
        self.report_buffered()
        await self._tasks.close()

    def _should_fetch(self, state: PartitionState) -> bool:
        return (
            state.position is not None
            and not state.is_starting
            and state.buffered_bytes < self.options.max_partition_bytes // 2
            and not (state.is_cut_off and state.records)
        )

    def _choose_node(self, state: PartitionState, now: float) -> int | None:
        """Return the broker to ask about a partition, if any.

        This is where a topic that was created again is noticed.
        """
        topic = self.cluster.get_topic(state.tp.topic)
        if topic is None or topic.error:
            return None
        if state.topic_id != topic.topic_id:
            if state.topic_id is not None and not self.follows_recreated:
                return None
            if state.update_topic(topic.topic_id):
                log.warning("%s was created again; it is read from its start", state.tp)
        if (
            state.preferred_replica is not None
            and now < state.preferred_replica_until
            and state.offset_spec is None
        ):
            return state.preferred_replica
        leader = self.cluster.leader_for_partition(state.tp)
        return leader[0] if leader is not None else None

    def _start_request(
        self, request: Coroutine[Any, Any, None], states: list[PartitionState], min_bytes: int = 0
    ) -> None:
        task = self._tasks.start(request, "a fetch of a consumer", context=Context())
        for state in states:
            state.in_flight, state.min_bytes = task, min_bytes
        task.add_done_callback(lambda done: self._on_request_done(done, states))

    def _on_request_done(self, task: asyncio.Task[None], states: list[PartitionState]) -> None:
        for state in states:
            if state.in_flight is task:
                state.in_flight = None
        self.changed.set()
        self.report_buffered()
        if not task.cancelled() and task.exception() is not None:
            now = asyncio.get_running_loop().time()
            for state in states:
                state.back_off(Cause.UNEXPECTED, now)

    # Where to start.

    async def _list_offsets(self, states: list[PartitionState]) -> None:
        lookups = {state.tp: (state, state.offset_spec, state.lineage) for state in states}
        specs = {tp: spec for tp, (_, spec, _) in lookups.items() if spec is not None}
        results = await self.cluster.list_offsets(specs, self.options.isolation_level)
        ends = [
            tp
            for tp, result in results.items()
            if isinstance(result, OffsetAndTimestamp) and result.offset < 0
        ]
        if ends:  # no record is as young as the timestamp: start at the end
            results |= await self.cluster.list_offsets(
                dict.fromkeys(ends, LATEST), self.options.isolation_level
            )
        for tp, result in results.items():
            state, _, lineage = lookups[tp]
            if state.lineage != lineage:
                continue
            if isinstance(result, OffsetAndTimestamp):
                missing = state.missing_offset  # read before `seek` clears it
                # Only at the end of the log the epoch is that of the record before the position,
                # which the next fetch lets the leader compare.
                state.seek(result.offset, result.epoch if specs[tp] == LATEST else -1)
                if missing is not None:
                    self.on_gap(tp, missing, result.offset)
            else:
                self._delay_partition(state, cause_from_code(result))

    # Fetches.

    async def _fetch(
        self,
        node: int,
        wants: Mapping[PartitionState, tuple[FetchTarget, int]],
        limits: FetchLimits,
    ) -> None:
        connections = self.cluster.connections
        try:
            async with connections.borrow_spare(node) as connection:
                responses = await fetch(
                    connections,
                    connection,
                    {state.tp: want for state, (want, _) in wants.items()},
                    limits._replace(max_wait=min(limits.max_wait, MAX_HELD_S)),
                    self.cluster.settings.rack,
                )
        except KafkaError as exc:
            self._on_fetch_failed(
                [state for state, (_, lineage) in wants.items() if state.lineage == lineage], exc
            )
            return
        for state, (_, lineage) in wants.items():
            fetched = responses.get(state.tp)
            if fetched is None or state.lineage != lineage:
                continue
            if self.states.get(state.tp) is state:
                self._on_partition_response(state, fetched, node)

    def _build_want(self, state: PartitionState) -> FetchTarget:
        leader = self.cluster.leader_for_partition(state.tp)
        epoch = leader[1] if leader is not None else -1
        return FetchTarget(
            state.fetch_offset,
            epoch,
            state.topic_id,
            self.options.max_partition_bytes,
            state.fetch_epoch,
        )

    def _on_fetch_failed(self, states: list[PartitionState], exc: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        min_delay = exc.retry_after or 0.0 if isinstance(exc, BrokerUnavailable) else 0.0
        for state in states:
            state.back_off(cause_from_code(code_from_error(exc)), now, min_delay)
        self.cluster.metadata.request_refresh(str(exc))

    def _on_partition_response(
        self, state: PartitionState, fetched: FetchedPartition, node: int
    ) -> None:
        if fetched.current_leader is not None:  # comes with NOT_LEADER (KIP-951)
            self.cluster.metadata.update_leader(state.tp, *fetched.current_leader, fetched.topic_id)
        if fetched.error_code:
            self._on_partition_error(state, fetched.error_code)
        elif fetched.diverging_epoch is not None:
            epoch, end = fetched.diverging_epoch
            self._truncate(state, end, epoch)
        elif fetched.preferred_replica not in (-1, node):
            # The leader names a nearer replica and sends no records (KIP-392).
            now = asyncio.get_running_loop().time()
            state.preferred_replica = fetched.preferred_replica
            state.preferred_replica_until = now + REPLICA_LEASE_S
        else:
            self._decode_records(state, fetched)

    def _decode_records(self, state: PartitionState, fetched: FetchedPartition) -> None:
        decoding = RecordSetDecoder(
            state.tp,
            fetched.records,
            state.fetch_offset,
            aborted=fetched.aborted_transactions,
            read_committed=self.options.isolation_level == READ_COMMITTED,
            high_watermark=fetched.high_watermark,
        )
        gap = None
        if not decoding.is_large:
            gap = self._buffer_slice(state, decoding.read_slice(BULK_SLICE_RECORDS))
        if not decoding.is_done and gap is None:
            self._start_request(self._decode_rest(state, decoding, state.lineage), [state])

    async def _decode_rest(
        self, state: PartitionState, decoding: RecordSetDecoder, lineage: int
    ) -> None:
        """Decode the rest of a response, up to MAX_EXPANSION times `max_partition_bytes`."""
        async with aclosing(
            iter_slices(decoding, self.cluster.decompression_slot, BULK_SLICE_RECORDS)
        ) as slices:
            async for decoded in slices:
                if not self._is_current(state, lineage):
                    return
                gap = self._buffer_slice(state, decoded)
                self.changed.set()
                if (
                    gap is not None
                    or state.buffered_bytes >= MAX_EXPANSION * self.options.max_partition_bytes
                ):
                    return
                await asyncio.sleep(0)

    def _buffer_slice(self, state: PartitionState, decoded: DecodedSlice) -> Gap | None:
        """Keep the records of a slice, at most up to a gap, where the partition stops."""
        entries, next_offset, epoch, _, error = decoded
        gap = decoded.find_gap()
        if gap is not None:
            entries = entries[: entries.index(gap)]
            next_offset = entries[-1].next_offset if entries else state.fetch_offset
            epoch = entries[-1].epoch if entries else NO_EPOCH
        if next_offset > state.fetch_offset or (gap is None and error is None):
            state.add_fetched(entries, next_offset, epoch)
            state.is_cut_off = gap is not None
            self.failures.pop(state.tp, None)
        elif state.records:
            state.is_cut_off = True
        elif gap is not None:
            detail = f"{describe_unreadable(gap)}; seek to {gap.next_offset} to go on"
            self._stop_partition(state, detail, ErrorCode.CORRUPT_MESSAGE)
        else:  # the length of the first batch makes no sense: it may be damaged on its way
            state.failures += 1
            state.back_off(Cause.CORRUPT, asyncio.get_running_loop().time())
            if state.failures >= MAX_CORRUPT_ATTEMPTS:
                detail = f"is damaged: {error}; seek past it"
                self._stop_partition(state, detail, ErrorCode.CORRUPT_MESSAGE)
        return gap

    def _on_partition_error(self, state: PartitionState, code: int) -> None:
        # A follower may be behind, so its errors prove nothing: ask the leader first.
        if state.preferred_replica is not None:
            state.preferred_replica = None
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE and state.records:
            # A reset would drop the buffered records: first let polls return them.
            state.is_cut_off = True
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start_request(self.resolve_out_of_range(state, state.lineage), [state])
        else:
            self._delay_partition(state, cause_from_code(code))

    # Where to go on.

    async def resolve_out_of_range(self, state: PartitionState, lineage: int) -> None:
        """Find where to go on from an offset that Kafka does not have.

        If the leader cannot say it now, the next fetch is delayed, and begins this anew.
        """
        try:
            log_bounds = (await fetch_log_bounds(self.cluster, [state.tp]))[state.tp]
        except KafkaError as exc:
            if self._is_current(state, lineage):
                self._on_fetch_failed([state], exc)
            return
        if not self._is_current(state, lineage):
            return
        leader = self.cluster.leader_for_partition(state.tp)
        match locate_offset(
            state.fetch_offset,
            state.fetch_epoch,
            log_start=log_bounds.start,
            log_end=log_bounds.stop,
            leader_epoch=leader[1] if leader is not None else NO_EPOCH,
        ):
            case OffsetRange.BELOW_LOG:
                self._reset_from(state, self.out_of_range_reset)
            case OffsetRange.IN_LOG:
                self._delay_partition(state, Cause.OUT_OF_RANGE)
            case OffsetRange.OTHER_LOG if state.failures < MAX_FORMER_LEADER_ATTEMPTS:
                # It may also be a former leader, which does not know yet that it was replaced.
                state.failures += 1
                self._delay_partition(state, Cause.NOT_LEADER)
            case OffsetRange.OTHER_LOG:
                log.warning(
                    "%s: offset %s is of a later leader epoch than any that it has had; either the "
                    "topic was created again, or another program committed it",
                    state.tp,
                    state.fetch_offset,
                )
                self._reset_from(state, None if self.out_of_range_reset is None else EARLIEST)
            case OffsetRange.ABOVE_LOG:
                await self._resolve_truncation(state, lineage, log_bounds.stop)
            case other:
                assert_never(other)

    def _reset_from(self, state: PartitionState, spec: int | None) -> None:
        """Look up where to go on, and report a gap once that is known; None stops the partition."""
        missing = state.fetch_offset  # read before `reset` clears it
        self.reset_position(state, spec)
        state.missing_offset = missing

    async def _resolve_truncation(self, state: PartitionState, lineage: int, log_end: int) -> None:
        """Go on where the log was cut off, which is its end if the epoch is not known."""
        epoch, epoch_end = NO_EPOCH, -1
        if state.fetch_epoch != NO_EPOCH:
            answer = (await self.cluster.fetch_epoch_ends({state.tp: state.fetch_epoch}))[state.tp]
            if not self._is_current(state, lineage):
                return
            if isinstance(answer, int):
                self._delay_partition(state, cause_from_code(answer))
                return
            epoch, epoch_end = answer
        divergence = find_divergence(state.fetch_offset, epoch_end, log_end)
        if divergence is None:  # the log has changed between the two answers
            self._delay_partition(state, Cause.OUT_OF_RANGE)
        else:
            self._truncate(state, divergence, epoch)

    def _truncate(self, state: PartitionState, end: int, epoch: int) -> None:
        """Go on where the log was cut off; without a reset, stop the partition.

        With NO_EPOCH the offset may also have been wrong from the start, in a seek or a commit.
        """
        missing = state.fetch_offset
        detail = (
            f"has no offset {missing}: it ends at {end}"
            if epoch == NO_EPOCH
            else f"was truncated to {end} by an unclean election"
        )
        if self.out_of_range_reset is None:
            self._stop_partition(state, f"{detail}; seek to an offset that it has")
        else:
            log.warning("%s %s; it goes on there", state.tp, detail)
            state.truncate(end, epoch)
            self.on_gap(state.tp, missing, state.fetch_offset)
        self.changed.set()

    def _is_current(self, state: PartitionState, lineage: int) -> bool:
        return self.states.get(state.tp) is state and state.lineage == lineage

    def _delay_partition(self, state: PartitionState, cause: Cause) -> None:
        state.back_off(cause, asyncio.get_running_loop().time())
        if RECOVERY_RULES[cause].action is RecoveryAction.REPORT:
            self.failures[state.tp] = AccessDenied(
                f"the gateway may not read {state.tp.topic}; allow it READ", topic=state.tp.topic
            )
        elif RECOVERY_RULES[cause].action in (
            RecoveryAction.REFRESH,
            RecoveryAction.WATCH_METADATA,
            RecoveryAction.RECONNECT,
        ):
            self.cluster.metadata.request_refresh(f"{state.tp}: {cause}")

    def _stop_partition(
        self, state: PartitionState, detail: str, code: int = ErrorCode.OFFSET_OUT_OF_RANGE
    ) -> None:
        """Read nothing more of a partition until a seek; polls raise the failure."""
        state.is_stopped = True
        self.failures[state.tp] = build_partition_failed(state.tp, detail, code)
