"""Records on their way to a back end: which go next, and what becomes of them by its answer.

A lane carries some partitions, one batch at a time, so that records of a partition are never
overtaken. A batch leaves it settled (each record processed, or in the dead letters) or not at
all: a lane would rather stand still than skip. A back end that is away is tried for ever. A
suspect batch is tried `retries` times, then halved down to the record at fault, which becomes a
dead letter only while a probe finds the back end well. One that is late with a large batch gets
smaller ones, and never loses a record by it.

Sans-I/O: time is an argument, in seconds of any monotonic clock. The shell's part:

    step = lane.next(now)      # Send, Probe, Bury: do it, and tell; Wait: until then; None: idle
    settled = lane.answered(verdict, now) | lane.probed(well, now) | lane.buried(left, now)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.core.log.record import Record, TopicPartition

from .batch import (
    DeadLetterRecord,
    DeliveryRules,
    DeliverySlice,
    DeliveryStage,
    DeliveryStep,
    ProbeBackend,
    SendRecords,
    SendToDeadLetters,
    SettledRecords,
    WaitUntil,
    payload_size,
)
from .verdict import BackendUnavailable, BatchResults, RecordResult, SuspectBatch, Verdict


@dataclass(slots=True)
class DeliveryQueue:
    """held: nothing is sent while it is.

    trouble: why the lane does not move, "" while it does or has nothing to do; since: when that
             began.
    settled: how many records are done with, processed or among the dead letters.
    """

    rules: DeliveryRules
    is_paused: bool = False
    problem: str = ""
    problem_since: float = 0.0
    settled_count: int = 0
    _queue: deque[Record] = field(default_factory=deque)
    _bytes: int = 0
    _slices: deque[DeliverySlice] = field(default_factory=deque)
    _is_busy: bool = False
    _retry_at: float = 0.0
    _failures: int = 0  # in a row, of the back end or of the dead letters
    _max_records: int = (
        0  # records of a batch, for a back end that is late; 0: as many as the rules say
    )
    _leaving_partitions: set[TopicPartition] = field(default_factory=set)

    def put(self, records: Iterable[Record]) -> None:
        """Behind those that were put before; of one partition by their offsets."""
        for record in records:
            self._queue.append(record)
            self._bytes += payload_size(record)

    @property
    def is_full(self) -> bool:
        """A batch waits already: more would only use memory."""
        return len(self._queue) >= self.rules.max_records or self._bytes >= self.rules.max_bytes

    @property
    def unsettled_count(self) -> int:
        """Records that are not settled."""
        return len(self._queue) + sum(len(each.records) for each in self._slices)

    @property
    def is_busy(self) -> bool:
        """A step was given, and it is not told what came of it."""
        return self._is_busy

    def next_step(self, now: float) -> DeliveryStep | None:
        """What to do now. It is under way then, until one of the three below tells of it."""
        if self._is_busy:
            return None
        if now < self._retry_at:
            return WaitUntil(self._retry_at)
        if not self._slices and not self.is_paused:
            self._cut_slice()
        portion = self._slices[0] if self._slices else None
        if portion is None or (self.is_paused and portion.stage is DeliveryStage.SEND):
            return None
        self._is_busy = True
        return self._build_step(portion)

    @staticmethod
    def _build_step(portion: DeliverySlice) -> DeliveryStep:
        match portion.stage:
            case DeliveryStage.SEND:
                portion.send_count += 1
                return SendRecords(portion.records, portion.send_count - 1)
            case DeliveryStage.PROBE:
                return ProbeBackend(portion.reason)
            case DeliveryStage.DEAD_LETTER:
                return SendToDeadLetters(portion.unwritten_dead_letters)

    # what came of it

    def on_response(self, verdict: Verdict, now: float) -> SettledRecords | None:
        """To a Send."""
        sent = self._slices[0].records
        portion = self._finish_step()
        if portion is None:
            return None
        match verdict:
            case BatchResults(items):
                kept = {id(each) for each in portion.records}
                pairs = [pair for pair in zip(sent, items, strict=True) if id(pair[0]) in kept]
                return self._apply_results(portion, pairs, now)
            case BackendUnavailable():
                self._on_unavailable(portion, verdict, now)
            case SuspectBatch():
                self._on_suspect(portion, verdict, now)
        return None

    def on_probe(self, is_healthy: bool, now: float, reason: str = "") -> None:
        """To a Probe. why: it is not."""
        portion = self._finish_step()
        if portion is None:
            return
        if is_healthy and self.rules.has_dead_letters:
            portion.mark_dead(
                DeadLetterRecord(record, portion.reason) for record in portion.records
            )
        else:
            portion.stage = DeliveryStage.SEND
            reason = portion.reason if is_healthy else f"{portion.reason}; no dead letter: {reason}"
            self._schedule_retry(portion, reason, now)

    def on_dead_letters(
        self, unwritten: Sequence[DeadLetterRecord], now: float, reason: str = ""
    ) -> SettledRecords | None:
        """To a Bury. left: those that are not written yet, and why."""
        portion = self._finish_step()
        if portion is None:
            return None
        portion.unwritten_dead_letters = [
            each for each in unwritten if each in portion.unwritten_dead_letters
        ]
        if not portion.unwritten_dead_letters:
            return self._settle(portion)
        self._schedule_retry(portion, reason, now)
        return None

    # partitions that go

    def release_partitions(self, tps: Collection[TopicPartition]) -> None:
        """They are to be given up: only what is under way goes on, and not another time."""
        kept = self._slices[0] if self._slices and self._is_in_flight else None
        self._remove_partitions(tps, kept)
        if kept is not None:
            self._leaving_partitions |= {each.tp for each in kept.records} & set(tps)

    def has_unsettled(self, tps: Collection[TopicPartition]) -> bool:
        """Something of theirs is not settled."""
        return any(each.tp in tps for each in self._iter_unsettled())

    def first_unsettled_offset(self, tp: TopicPartition) -> int | None:
        """The first offset of its that is not settled; None where all is."""
        return next((each.offset for each in self._iter_unsettled() if each.tp == tp), None)

    def drop_partitions(self, tps: Collection[TopicPartition]) -> None:
        """They are gone: nothing of theirs is settled any more, whatever is answered."""
        kept = self._slices[0] if self._slices and self._is_busy else None
        self._remove_partitions(tps, kept)
        if kept is not None:
            kept.dropped_partitions |= set(tps)
            self._clear_problem_if_idle()
        self._leaving_partitions -= set(tps)

    @property
    def is_abandoned(self) -> bool:
        """What is under way is of partitions that went: nobody waits for its answer."""
        return self._is_busy and all(
            each.tp in self._slices[0].dropped_partitions for each in self._slices[0].records
        )

    @property
    def _is_in_flight(self) -> bool:
        return self._is_busy or self._slices[0].stage is DeliveryStage.DEAD_LETTER

    def _iter_unsettled(self) -> Iterable[Record]:
        """What is to be settled yet, of each partition in its order."""
        for portion in self._slices:
            yield from (
                each for each in portion.records if each.tp not in portion.dropped_partitions
            )
        yield from self._queue

    def _remove_partitions(
        self, tps: Collection[TopicPartition], kept: DeliverySlice | None
    ) -> None:
        self._queue = deque(each for each in self._queue if each.tp not in tps)
        self._bytes = sum(map(payload_size, self._queue))
        first = self._slices[0] if self._slices else None
        for portion in self._slices:
            if portion is not kept:
                portion.remove_partitions(tps)
        self._slices = deque(each for each in self._slices if each.records or each is kept)
        if first is not None and (not self._slices or self._slices[0] is not first):
            self._retry_at = 0.0
        self._clear_problem_if_idle()

    def _clear_problem_if_idle(self) -> None:
        """With nothing to settle there is no trouble."""
        if next(iter(self._iter_unsettled()), None) is None:
            self.problem = ""

    # what it means

    def _cut_slice(self) -> None:
        most, room = self._max_records or self.rules.max_records, self.rules.max_bytes
        records: list[Record] = []
        while self._queue and len(records) < most:
            size = payload_size(self._queue[0])
            if records and size > room:
                break
            records.append(self._queue.popleft())
            self._bytes -= size
            room -= size
        if records:
            self._slices.append(DeliverySlice(records))

    def _finish_step(self) -> DeliverySlice | None:
        """Return what was under way, or None where all of it was dropped meanwhile."""
        assert self._is_busy, "tell only of what is under way"
        self._is_busy = False
        portion = self._slices[0]
        portion.remove_partitions(portion.dropped_partitions)
        portion.dropped_partitions.clear()
        if portion.records:
            return portion
        self._slices.popleft()
        return None

    def _apply_results(
        self, portion: DeliverySlice, pairs: Sequence[tuple[Record, RecordResult]], now: float
    ) -> SettledRecords | None:
        failed = [(record, item) for record, item in pairs if not item.is_processed]
        curable = sum(not item.is_permanent for _, item in failed)
        if failed and self._should_roll_back(portion, curable, len(pairs)):
            portion.attempts += 1
            what = f"{len(failed)} of {len(pairs)} records failed: {failed[0][1].reason}"
            self._schedule_retry(portion, what, now, portion.attempts)
            return None
        if self._max_records:
            doubled = max(self._max_records, len(pairs)) * 2
            self._max_records = doubled if doubled < self.rules.max_records else 0
        self._failures = 0
        if not failed:
            return self._settle(portion)
        portion.mark_dead(DeadLetterRecord(record, item.reason) for record, item in failed)
        return None

    def _should_roll_back(self, portion: DeliverySlice, curable: int, of: int) -> bool:
        rules = self.rules
        if not rules.has_dead_letters:
            return True
        if rules.rollback_percent is None or not curable or portion.attempts >= rules.max_retries:
            return False
        return curable * 100 >= rules.rollback_percent * of

    def _on_unavailable(self, portion: DeliverySlice, away: BackendUnavailable, now: float) -> None:
        portion.late_count += away.is_late
        if portion.late_count > self.rules.max_retries and len(portion.records) > 1:
            self._max_records = (len(portion.records) + 1) // 2
            portion = self._halve(portion)
        self._schedule_retry(portion, away.reason, now, min_delay=away.retry_after)

    def _on_suspect(self, portion: DeliverySlice, suspect: SuspectBatch, now: float) -> None:
        portion.attempts += 1
        portion.reason = suspect.reason
        if portion.attempts <= self.rules.max_retries and not suspect.is_too_large:
            self._schedule_retry(portion, suspect.reason, now, portion.attempts)
            return
        self._set_problem(suspect.reason, now)
        if len(portion.records) > 1:
            self._drop_leaving(self._halve(portion))
        else:
            portion.stage = DeliveryStage.PROBE
            self._drop_leaving(portion)

    def _halve(self, portion: DeliverySlice) -> DeliverySlice:
        """Each half counts as tried as often: the next time that it fails it is halved, too."""
        self._slices.popleft()
        middle = (len(portion.records) + 1) // 2
        halves = [
            DeliverySlice(records, portion.attempts, portion.send_count, portion.late_count)
            for records in (portion.records[:middle], portion.records[middle:])
        ]
        self._slices.extendleft(reversed(halves))
        return halves[0]

    def _schedule_retry(
        self,
        portion: DeliverySlice,
        reason: str,
        now: float,
        attempts: int = 0,
        *,
        min_delay: float = 0.0,
    ) -> None:
        """attempts: of the portion, where it is to blame; else what fails in a row counts."""
        self._set_problem(reason, now)
        if not attempts:
            self._failures += 1
        rules = self.rules
        exponent = min((attempts or self._failures) - 1, 32)  # 2 ** 1024 is no delay at all
        delay = min(rules.max_delay, rules.first_delay * 2**exponent)
        self._retry_at = now + max(min_delay, delay * (0.5 + 0.5 * rules.random()))
        self._drop_leaving(portion)

    def _set_problem(self, reason: str, now: float) -> None:
        if not self.problem:
            self.problem_since = now
        self.problem = reason

    def _drop_leaving(self, portion: DeliverySlice) -> None:
        """What is to be given up is not tried another time."""
        if portion.stage is not DeliveryStage.DEAD_LETTER and self._leaving_partitions:
            self._remove_partitions(frozenset(self._leaving_partitions), None)

    def _settle(self, portion: DeliverySlice) -> SettledRecords:
        self._slices.popleft()
        self.settled_count += len(portion.records)
        self._failures, self.problem, self._retry_at = 0, "", 0.0
        points = {record.tp: record.next_offset for record in portion.records}
        dead = {id(each.record) for each in portion.dead_letters}
        processed = [record for record in portion.records if id(record) not in dead]
        return SettledRecords(processed, portion.dead_letters, points)
