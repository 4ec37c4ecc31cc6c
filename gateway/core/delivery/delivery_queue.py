"""Decide which records go to a back end next, and what its answers mean for them.

A queue carries the records of some partitions, one batch at a time, so that records of a partition
are never overtaken. A batch leaves the queue settled (each record is processed, or in the dead
letters) or not at all: the queue waits rather than skips. A back end that is unavailable is tried
again for ever. A suspect batch is tried again `max_retries` times and then halved, down to the
record at fault, which becomes a dead letter only while a probe finds the back end healthy. A back
end that is late with a large batch gets smaller ones, and no record is given up for it.

The stages of a batch:

    SEND --suspect, a single record left--> PROBE --healthy--> DEAD_LETTER --written--> settled
    SEND --some records failed--> DEAD_LETTER
    SEND --all processed--> settled
    PROBE --not healthy, or without dead letters--> SEND

Sans-I/O: time is an argument, in seconds of any monotonic clock. The shell's part:

    step = queue.next_step(now)  # None: idle; WaitUntil: call again then
    SendRecords:        send them, then `queue.on_response(verdict, now)`
    ProbeBackend:       probe it, then `queue.on_probe(is_healthy, now, reason)`
    SendToDeadLetters:  write them, then `queue.on_dead_letters(unwritten, now, reason)`
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias, assert_never

from gateway.core.backoff import BackoffPolicy
from gateway.core.log.record import Record, TopicPartition

from .verdict import BackendUnavailable, BatchResults, RecordResult, SuspectBatch, Verdict


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """The limits and retries of one consumer's deliveries.

    Attributes:
        max_bytes: The largest size of a batch, in bytes of keys, values and headers; a larger
            record is sent alone.
        max_retries: How often a suspect batch, or one that was rolled back, is tried again.
        rollback_percent: The percentage of failed records from which on a batch is rolled back,
            that is, tried again as a whole; None for never. The retries are bounded because
            otherwise one bad record in a batch of three would be retried for ever at 30 percent.
        has_dead_letters: Whether failed records become dead letters; without them they are tried
            again for ever.
        first_delay: The delay before the first retry, in seconds; it doubles with each one.
        random: Draws a number from [0, 1).
    """

    max_records: int = 100
    max_bytes: int = 204_800
    max_retries: int = 3
    rollback_percent: float | None = 30.0
    has_dead_letters: bool = True
    first_delay: float = 1.0
    max_delay: float = 30.0
    random: Callable[[], float] = random.random


class DeadLetterRecord(NamedTuple):
    """A record that is given up, and its ids, where they are not those in its headers."""

    record: Record
    reason: str
    correlation: str = ""
    traceability: str = ""


class SendRecords(NamedTuple):
    records: Sequence[Record]
    attempt: int


class ProbeBackend(NamedTuple):
    reason: str


class SendToDeadLetters(NamedTuple):
    dead_letters: Sequence[DeadLetterRecord]


class WaitUntil(NamedTuple):
    until: float


DeliveryStep: TypeAlias = SendRecords | ProbeBackend | SendToDeadLetters | WaitUntil


class SettledRecords(NamedTuple):
    processed: Sequence[Record]
    dead_letters: Sequence[DeadLetterRecord]
    commit_offsets: dict[TopicPartition, int]


class DeliveryStage(Enum):
    SEND = "send"
    PROBE = "probe"
    DEAD_LETTER = "dead letter"


@dataclass(slots=True, eq=False)
class DeliverySlice:
    """Records that are sent together, and the attempts so far.

    Owned by a `DeliveryQueue`. `dead_letters` are set only in the stage DEAD_LETTER, and
    `unwritten_dead_letters` are those of them that are still to be written.

    Attributes:
        attempts: How often the batch failed by its own fault.
        late_count: How often the back end took it and did not answer in time.
        reason: Why the batch is suspect.
        dropped_partitions: Partitions that were lost while the batch was in flight; their records
            are removed when its answer arrives.
    """

    records: list[Record]
    attempts: int = 0
    send_count: int = 0
    late_count: int = 0
    stage: DeliveryStage = DeliveryStage.SEND
    reason: str = ""
    dead_letters: list[DeadLetterRecord] = field(default_factory=list)
    unwritten_dead_letters: list[DeadLetterRecord] = field(default_factory=list)
    dropped_partitions: set[TopicPartition] = field(default_factory=set)

    def remove_partitions(self, tps: Collection[TopicPartition]) -> None:
        self.records = [record for record in self.records if record.tp not in tps]
        self.dead_letters = [item for item in self.dead_letters if item.record.tp not in tps]
        self.unwritten_dead_letters = [
            item for item in self.unwritten_dead_letters if item.record.tp not in tps
        ]

    def mark_dead(self, dead_letters: Iterable[DeadLetterRecord]) -> None:
        self.stage, self.dead_letters = DeliveryStage.DEAD_LETTER, list(dead_letters)
        self.unwritten_dead_letters = self.dead_letters


@dataclass(slots=True)
class DeliveryQueue:
    """The records of some partitions that wait for a back end or are in flight.

    Created and driven by the sidecar's lane runner. Invariants between calls:

    - At most one step is in flight, and it is always of the first slice. `_is_busy` says whether
      one is.
    - Slices hold earlier records than `_queue`; each partition's records are in offset order across
      both. A second slice exists only after a batch was halved.
    - Offsets are settled in order: `commit_offsets` of a result never pass an unsettled record.

    Attributes:
        is_paused: Nothing is sent while it is set; dead letters are still written.
        held_partitions: No batch is begun with records of these; one that was begun goes on.
        problem: Why the queue does not move on; empty while it does or has nothing to do.
        problem_since: When that began, in seconds of the clock of `next_step`.
    """

    rules: DeliveryRules
    is_paused: bool = False
    held_partitions: Set[TopicPartition] = frozenset()
    problem: str = ""
    problem_since: float = 0.0
    settled_count: int = 0
    _queue: deque[Record] = field(default_factory=deque)
    _bytes: int = 0
    _slices: deque[DeliverySlice] = field(default_factory=deque)
    _is_busy: bool = False
    _retry_at: float = 0.0
    _failures: int = 0  # in a row, of the back end or of the dead letters
    # The largest batch for a back end that was late; 0 to follow the rules.
    _max_records: int = 0
    # Partitions being revoked, with records in flight: these are not tried another time.
    _leaving_partitions: set[TopicPartition] = field(default_factory=set)

    def put(self, records: Iterable[Record]) -> None:
        """Add records behind those that were put before, each partition's in offset order."""
        for record in records:
            self._queue.append(record)
            self._bytes += record.payload_size

    @property
    def is_full(self) -> bool:
        """Return whether a whole batch waits already, so that more would only use memory."""
        count, size = len(self._queue), self._bytes
        if self.held_partitions:
            ready = [each for each in self._queue if each.tp not in self.held_partitions]
            count, size = len(ready), sum(record.payload_size for record in ready)
        return count >= self.rules.max_records or size >= self.rules.max_bytes

    @property
    def unsettled_count(self) -> int:
        return len(self._queue) + sum(len(batch.records) for batch in self._slices)

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    def next_step(self, now: float) -> DeliveryStep | None:
        """Return the step to take now; None if there is nothing to do.

        Any step but `WaitUntil` is in flight until `on_response`, `on_probe` or `on_dead_letters`
        is called with its outcome.
        """
        if self._is_busy:
            return None
        if now < self._retry_at:
            return WaitUntil(self._retry_at)
        if not self._slices and not self.is_paused:
            self._cut_slice()
        batch = self._slices[0] if self._slices else None
        # While paused, dead letters and probes go on: they do not send anything to be processed.
        if batch is None or (self.is_paused and batch.stage is DeliveryStage.SEND):
            return None
        self._is_busy = True
        return self._build_step(batch)

    @staticmethod
    def _build_step(batch: DeliverySlice) -> DeliveryStep:
        match batch.stage:
            case DeliveryStage.SEND:
                batch.send_count += 1
                return SendRecords(batch.records, batch.send_count - 1)
            case DeliveryStage.PROBE:
                return ProbeBackend(batch.reason)
            case DeliveryStage.DEAD_LETTER:
                return SendToDeadLetters(batch.unwritten_dead_letters)
            case _:
                assert_never(batch.stage)

    # The outcomes of steps.

    def on_response(self, verdict: Verdict, now: float) -> SettledRecords | None:
        sent = self._slices[0].records
        batch = self._finish_step()
        if batch is None:
            return None
        match verdict:
            case BatchResults(results):
                # Records of partitions that were lost in the meantime are gone from the batch.
                kept = {id(record) for record in batch.records}
                pairs = [pair for pair in zip(sent, results, strict=True) if id(pair[0]) in kept]
                return self._apply_results(batch, pairs, now)
            case BackendUnavailable():
                self._on_unavailable(batch, verdict, now)
            case SuspectBatch():
                self._on_suspect(batch, verdict, now)
            case _:
                assert_never(verdict)
        return None

    def on_probe(self, is_healthy: bool, now: float, reason: str = "") -> None:
        """Take the outcome of a probe: if healthy, the record becomes a dead letter."""
        batch = self._finish_step()
        if batch is None:
            return
        if is_healthy and self.rules.has_dead_letters:
            batch.mark_dead(DeadLetterRecord(record, batch.reason) for record in batch.records)
        else:
            batch.stage = DeliveryStage.SEND
            reason = batch.reason if is_healthy else f"{batch.reason}; no dead letter: {reason}"
            self._schedule_retry(batch, reason, now)

    def on_dead_letters(
        self, unwritten: Sequence[DeadLetterRecord], now: float, reason: str = ""
    ) -> SettledRecords | None:
        """Take the outcome of a `SendToDeadLetters`, and return the records that it settled."""
        batch = self._finish_step()
        if batch is None:
            return None
        # Those of partitions that were lost meanwhile are gone from the batch.
        batch.unwritten_dead_letters = [
            dead_letter for dead_letter in unwritten if dead_letter in batch.unwritten_dead_letters
        ]
        if not batch.unwritten_dead_letters:
            return self._settle(batch)
        self._schedule_retry(batch, reason, now)
        return None

    # Partitions that are taken away.

    def release_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Prepare to give partitions up: the step in flight is finished, and not tried again."""
        kept = self._slices[0] if self._slices and self._is_in_flight else None
        self._remove_partitions(tps, kept)
        if kept is not None:
            self._leaving_partitions |= {record.tp for record in kept.records} & set(tps)

    def has_unsettled(self, tps: Collection[TopicPartition]) -> bool:
        return any(record.tp in tps for record in self._iter_unsettled())

    def first_unsettled_offset(self, tp: TopicPartition) -> int | None:
        return next((record.offset for record in self._iter_unsettled() if record.tp == tp), None)

    def drop_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop lost partitions: no record of theirs is settled, whatever the answer is."""
        kept = self._slices[0] if self._slices and self._is_busy else None
        self._remove_partitions(tps, kept)
        if kept is not None:
            kept.dropped_partitions |= set(tps)
            self._clear_problem_if_idle()
        self._leaving_partitions -= set(tps)

    @property
    def is_abandoned(self) -> bool:
        return self._is_busy and all(
            record.tp in self._slices[0].dropped_partitions for record in self._slices[0].records
        )

    @property
    def _is_in_flight(self) -> bool:
        """Return whether the first slice is sent, or decided, as in the stage DEAD_LETTER."""
        return self._is_busy or self._slices[0].stage is DeliveryStage.DEAD_LETTER

    def _iter_unsettled(self) -> Iterable[Record]:
        for batch in self._slices:
            yield from (
                record for record in batch.records if record.tp not in batch.dropped_partitions
            )
        yield from self._queue

    def _remove_partitions(
        self, tps: Collection[TopicPartition], kept: DeliverySlice | None
    ) -> None:
        self._queue = deque(record for record in self._queue if record.tp not in tps)
        self._bytes = sum(record.payload_size for record in self._queue)
        first = self._slices[0] if self._slices else None
        for batch in self._slices:
            if batch is not kept:
                batch.remove_partitions(tps)
        self._slices = deque(batch for batch in self._slices if batch.records or batch is kept)
        if first is not None and (not self._slices or self._slices[0] is not first):
            self._retry_at = 0.0  # the delay was that of a batch which is gone
        self._clear_problem_if_idle()

    def _clear_problem_if_idle(self) -> None:
        if next(iter(self._iter_unsettled()), None) is None:
            self.problem = ""

    # What an outcome means.

    def _cut_slice(self) -> None:
        max_records = self._max_records or self.rules.max_records
        bytes_left = self.rules.max_bytes
        records: list[Record] = []
        passed: list[Record] = []  # of partitions that are held
        while self._queue and len(records) < max_records:
            record = self._queue[0]
            if record.tp in self.held_partitions:
                passed.append(self._queue.popleft())
                continue
            size = record.payload_size
            if records and size > bytes_left:
                break
            records.append(self._queue.popleft())
            self._bytes -= size
            bytes_left -= size
        self._queue.extendleft(reversed(passed))
        if records:
            self._slices.append(DeliverySlice(records))

    def _finish_step(self) -> DeliverySlice | None:
        assert self._is_busy, "no step is in flight"
        self._is_busy = False
        batch = self._slices[0]
        batch.remove_partitions(batch.dropped_partitions)
        batch.dropped_partitions.clear()
        if batch.records:
            return batch
        self._slices.popleft()
        return None

    def _apply_results(
        self, batch: DeliverySlice, pairs: Sequence[tuple[Record, RecordResult]], now: float
    ) -> SettledRecords | None:
        failed = [(record, item) for record, item in pairs if not item.is_processed]
        # What has failed for good is no reason to send the batch again.
        retriable_count = sum(not item.is_permanent for _, item in failed)
        if failed and self._should_roll_back(batch, retriable_count, len(pairs)):
            batch.attempts += 1
            reason = f"{len(failed)} of {len(pairs)} records failed: {failed[0][1].reason}"
            self._schedule_retry(batch, reason, now, batch.attempts)
            return None
        # The back end was in time with a reduced batch: let batches grow again.
        if self._max_records:
            doubled = max(self._max_records, len(pairs)) * 2
            self._max_records = doubled if doubled < self.rules.max_records else 0
        self._failures = 0
        if not failed:
            return self._settle(batch)
        batch.mark_dead(DeadLetterRecord(record, item.reason) for record, item in failed)
        return None

    def _should_roll_back(
        self, batch: DeliverySlice, retriable_count: int, record_count: int
    ) -> bool:
        rules = self.rules
        if not rules.has_dead_letters:  # there is nowhere to put what failed
            return True
        if (
            rules.rollback_percent is None
            or not retriable_count
            or batch.attempts >= rules.max_retries
        ):
            return False
        return retriable_count * 100 >= rules.rollback_percent * record_count

    def _on_unavailable(
        self, batch: DeliverySlice, verdict: BackendUnavailable, now: float
    ) -> None:
        batch.late_count += verdict.is_late
        if batch.late_count > self.rules.max_retries and len(batch.records) > 1:
            self._max_records = (len(batch.records) + 1) // 2
            batch = self._halve(batch)
        self._schedule_retry(batch, verdict.reason, now, min_delay=verdict.retry_after)

    def _on_suspect(self, batch: DeliverySlice, verdict: SuspectBatch, now: float) -> None:
        batch.attempts += 1
        batch.reason = verdict.reason
        if batch.attempts <= self.rules.max_retries and not verdict.is_too_large:
            self._schedule_retry(batch, verdict.reason, now, batch.attempts)
            return
        # No delay from here: a half, or a probe, is not the batch that has used up its retries.
        self._set_problem(verdict.reason, now)
        if len(batch.records) > 1:
            self._drop_leaving(self._halve(batch))
        else:
            batch.stage = DeliveryStage.PROBE
            self._drop_leaving(batch)

    def _halve(self, batch: DeliverySlice) -> DeliverySlice:
        """Replace a slice by halves with its counts, so that they are halved at once next time."""
        self._slices.popleft()
        middle = (len(batch.records) + 1) // 2
        halves = [
            DeliverySlice(records, batch.attempts, batch.send_count, batch.late_count)
            for records in (batch.records[:middle], batch.records[middle:])
        ]
        self._slices.extendleft(reversed(halves))
        return halves[0]

    def _schedule_retry(
        self,
        batch: DeliverySlice,
        reason: str,
        now: float,
        attempts: int = 0,
        *,
        min_delay: float = 0.0,
    ) -> None:
        """Set when the next step is due, by exponential backoff with jitter.

        Args:
            attempts: The attempts of the slice, if it is to blame; 0 to count failures in a row of
                the back end or the dead letters instead.
            min_delay: The shortest delay in seconds, such as the back end's Retry-After.
        """
        self._set_problem(reason, now)
        if not attempts:
            self._failures += 1
        rules = self.rules
        policy = BackoffPolicy(rules.first_delay, rules.max_delay)
        delay = policy.compute_delay(attempts or self._failures, rules.random)
        self._retry_at = now + max(min_delay, delay)
        self._drop_leaving(batch)

    def _set_problem(self, reason: str, now: float) -> None:
        if not self.problem:
            self.problem_since = now
        self.problem = reason

    def _drop_leaving(self, batch: DeliverySlice) -> None:
        """Drop records that are to be given up. Dead letters are still written."""
        if batch.stage is not DeliveryStage.DEAD_LETTER and self._leaving_partitions:
            self._remove_partitions(frozenset(self._leaving_partitions), None)

    def _settle(self, batch: DeliverySlice) -> SettledRecords:
        self._slices.popleft()
        self.settled_count += len(batch.records)
        self._failures, self.problem, self._retry_at = 0, "", 0.0
        # The records of a partition are in order, so the last one of each remains.
        commit_offsets = {record.tp: record.next_offset for record in batch.records}
        dead = {id(dead_letter.record) for dead_letter in batch.dead_letters}
        processed = [record for record in batch.records if id(record) not in dead]
        return SettledRecords(processed, batch.dead_letters, commit_offsets)
