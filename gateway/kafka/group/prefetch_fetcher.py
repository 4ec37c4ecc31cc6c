"""Fetches for one consumer: what it holds, from whoever leads it, ahead of what it takes.

A fetch goes over a spare connection, because the broker holds it back while it has nothing. What
is under way goes on when nobody waits for it any more (the caller went away), and what it brings is
kept for the next poll: nothing is dropped. A partition that comes while a fetch of its broker is
held back does not wait for that: it gets one of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from gateway.core.group.partition_state import EARLIEST, PartitionState
from gateway.core.log.record import Gap, TopicPartition
from gateway.core.log.recovery import (
    RECOVERY_RULES,
    Backoff,
    Cause,
    RecoveryAction,
    cause_from_code,
)
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import OffsetAndTimestamp, code_from_error
from gateway.kafka.fetch.batches import BULK_SLICE_RECORDS, iter_slices
from gateway.kafka.fetch.decoding import DecodedSlice, RecordSetDecoder
from gateway.kafka.fetch.fetch import fetch_on_connection
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchTarget
from gateway.telemetry.log_context import create_detached_task

log = logging.getLogger(__name__)

OUT_OF_RANGE = 1
REPLICA_LEASE_S = (
    300.0  # seconds that a nearer replica is read from until the leader is asked again
)
MAX_CORRUPT_TRIES = 3  # of a batch that makes no sense
MAX_EXPANSION = 16  # times what one fetch may bring: kept of it, once decompressed
LEADERLESS_RETRY_S = (
    0.25  # seconds until metadata is looked at again for a partition without a leader
)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What the next fetches may bring and take. max_wait in seconds."""

    max_wait: float = 0.5
    min_bytes: int = 1
    max_bytes: int = 16 << 20


@dataclass(slots=True, eq=False)
class PrefetchFetcher:
    """`held` is what there is to fetch: change it, and `wake`.

    reset:    LATEST or EARLIEST, where a partition without a position begins; None: nowhere.
    gone:     the same where Kafka does not have the offset to go on from.
    on_gap:   called with a partition, the offset that Kafka does not have, and where it goes on.
    follows:  a topic that was made anew is read from its start; otherwise whoever assigns says.
    failures: what the caller must hear of, by partition; forgotten with a seek.
    """

    cluster: Cluster
    isolation: int
    partition_bytes: int
    offset_reset: int | None
    out_of_range_reset: int | None
    on_gap: Callable[[TopicPartition, int, int], None]
    follows_recreated: bool = True
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    failures: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _refresh_task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Something is under way."""
        return bool(self._tasks)

    def add_partition(self, tp: TopicPartition) -> PartitionState:
        """Anew, with no position yet."""
        topic = self.cluster.get_topic(tp.topic)
        backoff = Backoff(max_delay=1.0, random=random.random)
        held = self.states[tp] = PartitionState(tp, backoff, topic.topic_id if topic else None)
        self.failures.pop(tp, None)
        self.changed.set()
        return held

    def remove_partition(self, tp: TopicPartition) -> None:
        self.states.pop(tp, None)
        self.failures.pop(tp, None)

    def wake(self) -> None:
        self.changed.set()

    def reset_position(self, state: PartitionState, spec: int | None) -> None:
        """It has no position: find the one that the spec means, or with None say that there is
        none."""
        if spec is not None:
            state.reset(spec)
        else:
            self._stop_partition(
                state, "has no offset to go on from; seek to one, or set an offset reset"
            )
        self.changed.set()

    def start_fetches(self, limits: FetchLimits | None) -> float:
        """Ask for all that is due, and for nothing twice; None: for positions alone.

        Loop time of the next that will be due.
        """
        now, again = asyncio.get_running_loop().time(), float("inf")
        fetches: dict[int, list[PartitionState]] = {}
        lists: list[PartitionState] = []
        for held in self.states.values():
            if not held.is_readable:
                continue
            if held.in_flight is not None:
                if limits is None or held.min_bytes <= limits.min_bytes:
                    continue
                held.discard_in_flight()  # who asked for so much has gone
            if held.retry_at > now:
                again = min(again, held.retry_at)
            elif (node := self._choose_node(held, now)) is None:
                again = min(again, now + LEADERLESS_RETRY_S)
            elif held.offset_spec is not None:
                lists.append(held)
            elif limits is not None and held.position is not None and self._should_fetch(held):
                fetches.setdefault(node, []).append(held)
        if lists:
            self._start_request(self._list_offsets(lists), lists)
        for node, some in fetches.items():
            assert limits is not None
            # as of now: until the task begins one of them may be sought, and fetched by another
            wants = {held: (self._build_want(held), held.lineage) for held in some}
            self._start_request(self._fetch(node, wants, limits), some, limits.min_bytes)
        return again

    async def wait_for_positions(self, states: Collection[PartitionState]) -> None:
        """Return when each of them has a position, was told of, or is held no more."""
        while any(h.offset_spec is not None and self.states.get(h.tp) is h for h in states):
            self.start_fetches(None)
            if self._tasks:
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait(self._tasks, timeout=LEADERLESS_RETRY_S, return_when=first)
            else:
                await asyncio.sleep(LEADERLESS_RETRY_S)

    async def close(self) -> None:
        self.states.clear()
        tasks = [*self._tasks, *([self._refresh_task] if self._refresh_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _should_fetch(self, state: PartitionState) -> bool:
        return state.buffered_bytes < self.partition_bytes // 2 and not (
            state.is_drained and state.records
        )

    def _choose_node(self, state: PartitionState, now: float) -> int | None:
        """Whom to ask for it now."""
        topic = self.cluster.get_topic(state.tp.topic)
        if topic is None or topic.error:
            return None
        if state.topic_id != topic.topic_id:
            if state.topic_id is not None and not self.follows_recreated:
                return None
            if state.topic_id is not None:
                log.warning("%s was made anew; it is read from its start", state.tp)
                state.reset(EARLIEST)
            state.topic_id = topic.topic_id
        if (
            state.preferred_replica is not None
            and now < state.preferred_replica_until
            and state.offset_spec is None
        ):
            return state.preferred_replica
        leader = self.cluster.leader_for_partition(state.tp)
        return leader[0] if leader is not None else None

    def _start_request(
        self, work: Coroutine[Any, Any, None], states: list[PartitionState], min_bytes: int = 0
    ) -> None:
        task = create_detached_task(work)
        for held in states:
            held.in_flight, held.min_bytes = task, min_bytes
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_request_done(done, states))

    def _on_request_done(self, task: asyncio.Task[None], states: list[PartitionState]) -> None:
        self._tasks.discard(task)
        for held in states:
            if held.in_flight is task:
                held.in_flight = None
        self.changed.set()
        if not task.cancelled() and task.exception() is not None:
            now = asyncio.get_running_loop().time()
            for held in states:
                held.back_off(Cause.UNEXPECTED, now)
            log.error("fetching failed unexpectedly", exc_info=task.exception())

    # where to start

    async def _list_offsets(self, states: list[PartitionState]) -> None:
        asked = {held.tp: (held, held.offset_spec, held.lineage) for held in states}
        specs = {tp: spec for tp, (_, spec, _) in asked.items() if spec is not None}
        answers = await self.cluster.list_offsets(specs, self.isolation)
        ends = [
            tp
            for tp, found in answers.items()
            if isinstance(found, OffsetAndTimestamp) and found.offset < 0
        ]
        if ends:  # no record is that late: the end
            answers |= await self.cluster.list_offsets(dict.fromkeys(ends, -1), self.isolation)
        for tp, found in answers.items():
            held, _, lineage = asked[tp]
            if held.lineage != lineage:
                continue
            if isinstance(found, OffsetAndTimestamp):
                missing = held.missing_offset
                held.seek(found.offset, found.epoch if specs[tp] == -1 else -1)
                if missing is not None:
                    self.on_gap(tp, missing, found.offset)
            else:
                self._delay_partition(held, cause_from_code(found))

    # fetches

    async def _fetch(
        self,
        node: int,
        wants: Mapping[PartitionState, tuple[FetchTarget, int]],
        limits: FetchLimits,
    ) -> None:
        """wants: with the lineage of each."""
        connections = self.cluster.connections
        try:
            async with connections.borrow_spare(node) as link:
                answers = await fetch_on_connection(
                    connections,
                    link,
                    {held.tp: want for held, (want, _) in wants.items()},
                    max_wait=limits.max_wait,
                    min_bytes=limits.min_bytes,
                    max_bytes=limits.max_bytes,
                    isolation=self.isolation,
                    rack=self.cluster.settings.rack,
                )
        except KafkaError as exc:
            self._on_fetch_failed(
                [held for held, (_, asked) in wants.items() if held.lineage == asked], exc
            )
            return
        for held, (_, lineage) in wants.items():
            fetched = answers.get(held.tp)
            if fetched is None or held.lineage != lineage:
                continue
            if self.states.get(held.tp) is held:
                self._on_partition_response(held, fetched, node)

    def _build_want(self, state: PartitionState) -> FetchTarget:
        leader = self.cluster.leader_for_partition(state.tp)
        epoch = leader[1] if leader is not None else -1
        return FetchTarget(
            state.fetch_offset, epoch, state.topic_id, self.partition_bytes, state.fetch_epoch
        )

    def _on_fetch_failed(self, states: list[PartitionState], exc: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        least = exc.retry_after or 0.0 if isinstance(exc, BrokerUnavailable) else 0.0
        for held in states:
            held.back_off(cause_from_code(code_from_error(exc)), now, least)
        self._start_refresh(str(exc))

    def _on_partition_response(
        self, state: PartitionState, fetched: FetchedPartition, node: int
    ) -> None:
        if fetched.current_leader is not None:
            self.cluster.metadata.update_leader(state.tp, *fetched.current_leader)
        if fetched.error_code:
            self._on_partition_error(state, fetched.error_code)
        elif fetched.diverging_epoch is not None:
            epoch, end = fetched.diverging_epoch
            log.warning("%s was truncated to %s by an unclean election", state.tp, end)
            state.seek(min(end, state.fetch_offset), epoch)
        elif fetched.preferred_replica not in (-1, node):
            now = asyncio.get_running_loop().time()
            state.preferred_replica, state.preferred_replica_until = (
                fetched.preferred_replica,
                now + REPLICA_LEASE_S,
            )
        else:
            self._decode_records(state, fetched)

    def _decode_records(self, state: PartitionState, fetched: FetchedPartition) -> None:
        decoding = RecordSetDecoder(
            state.tp,
            fetched.records,
            state.fetch_offset,
            aborted=fetched.aborted_transactions,
            read_committed=self.isolation == 1,
            high_watermark=fetched.high_watermark,
        )
        if not decoding.is_large:
            self._buffer_slice(state, decoding.read_slice(BULK_SLICE_RECORDS))
        if not decoding.is_done:
            self._start_request(self._decode_rest(state, decoding, state.lineage), [state])

    async def _decode_rest(
        self, state: PartitionState, decoding: RecordSetDecoder, lineage: int
    ) -> None:
        """What is too much to be kept is fetched again, once there is room."""
        async with aclosing(
            iter_slices(decoding, self.cluster.inflation, BULK_SLICE_RECORDS)
        ) as some:
            async for got in some:
                if self.states.get(state.tp) is not state or state.lineage != lineage:
                    return
                self._buffer_slice(state, got)
                self.changed.set()
                if state.buffered_bytes >= MAX_EXPANSION * self.partition_bytes:
                    return
                await asyncio.sleep(0)

    def _buffer_slice(self, state: PartitionState, decoded: DecodedSlice) -> None:
        tp, offset = state.tp, state.fetch_offset
        for entry in decoded.entries:
            if isinstance(entry, Gap):
                log.error(
                    "%s is damaged from %s to %s; passed over", tp, entry.offset, entry.next_offset
                )
        if decoded.error is not None and decoded.next_offset == offset:
            state.failures += 1
            state.back_off(Cause.CORRUPT, asyncio.get_running_loop().time())
            if state.failures >= MAX_CORRUPT_TRIES:
                self._stop_partition(state, f"is damaged: {decoded.error}; seek past it", code=2)
            return
        state.add_fetched(decoded.entries, decoded.next_offset, decoded.last_epoch)
        self.failures.pop(tp, None)

    def _on_partition_error(self, state: PartitionState, code: int) -> None:
        if (
            state.preferred_replica is not None
        ):  # a replica's word counts for nothing: ask the leader
            state.preferred_replica = None
        elif code == OUT_OF_RANGE and state.records:
            state.is_drained = True
        elif code == OUT_OF_RANGE:
            missing = state.fetch_offset
            self.reset_position(state, self.out_of_range_reset)
            state.missing_offset = missing
        else:
            self._delay_partition(state, cause_from_code(code))

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
            self._start_refresh(f"{state.tp}: {cause}")

    def _stop_partition(self, state: PartitionState, detail: str, code: int = OUT_OF_RANGE) -> None:
        state.is_stopped = True
        topic, partition = state.tp
        self.failures[state.tp] = PartitionFailed(
            f"{state.tp} {detail}", topic=topic, partition=partition, code=code
        )

    def _start_refresh(self, reason: str) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = create_detached_task(self._refresh_metadata(reason))

    async def _refresh_metadata(self, reason: str) -> None:
        try:
            await self.cluster.metadata.refresh(reason)
        except KafkaError as exc:
            log.debug("metadata refresh failed: %s", exc)
        self.changed.set()
