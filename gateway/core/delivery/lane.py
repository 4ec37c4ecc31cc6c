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

from .batch import Bury, Dead, Portion, Probe, Rules, Send, Settled, Stage, Step, Wait, size_of
from .verdict import Answered, Away, Item, Suspect, Verdict


@dataclass(slots=True)
class Lane:
    """held: nothing is sent while it is.

    trouble: why the lane does not move, "" while it does or has nothing to do; since: when that
             began.
    settled: how many records are done with, processed or among the dead letters.
    """

    rules: Rules
    held: bool = False
    trouble: str = ""
    since: float = 0.0
    settled: int = 0
    _queue: deque[Record] = field(default_factory=deque)
    _bytes: int = 0
    _portions: deque[Portion] = field(default_factory=deque)
    _busy: bool = False
    _until: float = 0.0
    _failures: int = 0  # in a row, of the back end or of the dead letters
    _most: int = 0  # records of a batch, for a back end that is late; 0: as many as the rules say
    _leaving: set[TopicPartition] = field(default_factory=set)

    def put(self, records: Iterable[Record]) -> None:
        """Behind those that were put before; of one partition by their offsets."""
        for record in records:
            self._queue.append(record)
            self._bytes += size_of(record)

    @property
    def full(self) -> bool:
        """A batch waits already: more would only use memory."""
        return len(self._queue) >= self.rules.records or self._bytes >= self.rules.bytes

    @property
    def waiting(self) -> int:
        """Records that are not settled."""
        return len(self._queue) + sum(len(each.records) for each in self._portions)

    @property
    def busy(self) -> bool:
        """A step was given, and it is not told what came of it."""
        return self._busy

    def next(self, now: float) -> Step | None:
        """What to do now. It is under way then, until one of the three below tells of it."""
        if self._busy:
            return None
        if now < self._until:
            return Wait(self._until)
        if not self._portions and not self.held:
            self._cut()
        portion = self._portions[0] if self._portions else None
        if portion is None or (self.held and portion.stage is Stage.SEND):
            return None
        self._busy = True
        return self._step(portion)

    @staticmethod
    def _step(portion: Portion) -> Step:
        match portion.stage:
            case Stage.SEND:
                portion.sent += 1
                return Send(portion.records, portion.sent - 1)
            case Stage.PROBE:
                return Probe(portion.why)
            case Stage.BURY:
                return Bury(portion.unburied)

    # what came of it

    def answered(self, verdict: Verdict, now: float) -> Settled | None:
        """To a Send."""
        sent = self._portions[0].records
        portion = self._back()
        if portion is None:
            return None
        match verdict:
            case Answered(items):
                kept = {id(each) for each in portion.records}
                pairs = [pair for pair in zip(sent, items, strict=True) if id(pair[0]) in kept]
                return self._judged(portion, pairs, now)
            case Away():
                self._away(portion, verdict, now)
            case Suspect():
                self._suspect(portion, verdict, now)
        return None

    def probed(self, well: bool, now: float, why: str = "") -> None:
        """To a Probe. why: it is not."""
        portion = self._back()
        if portion is None:
            return
        if well and self.rules.dead_letters:
            portion.bury(Dead(record, portion.why) for record in portion.records)
        else:
            portion.stage = Stage.SEND
            reason = portion.why if well else f"{portion.why}; no dead letter: {why}"
            self._again(portion, reason, now)

    def buried(self, left: Sequence[Dead], now: float, why: str = "") -> Settled | None:
        """To a Bury. left: those that are not written yet, and why."""
        portion = self._back()
        if portion is None:
            return None
        portion.unburied = [each for each in left if each in portion.unburied]
        if not portion.unburied:
            return self._settle(portion)
        self._again(portion, why, now)
        return None

    # partitions that go

    def leave(self, tps: Collection[TopicPartition]) -> None:
        """They are to be given up: only what is under way goes on, and not another time."""
        kept = self._portions[0] if self._portions and self._under_way else None
        self._forget(tps, kept)
        if kept is not None:
            self._leaving |= {each.tp for each in kept.records} & set(tps)

    def carries(self, tps: Collection[TopicPartition]) -> bool:
        """Something of theirs is not settled."""
        return any(each.tp in tps for each in self._all())

    def first(self, tp: TopicPartition) -> int | None:
        """The first offset of its that is not settled; None where all is."""
        return next((each.offset for each in self._all() if each.tp == tp), None)

    def drop(self, tps: Collection[TopicPartition]) -> None:
        """They are gone: nothing of theirs is settled any more, whatever is answered."""
        kept = self._portions[0] if self._portions and self._busy else None
        self._forget(tps, kept)
        if kept is not None:
            kept.dropped |= set(tps)
            self._end_trouble()
        self._leaving -= set(tps)

    @property
    def abandoned(self) -> bool:
        """What is under way is of partitions that went: nobody waits for its answer."""
        return self._busy and all(
            each.tp in self._portions[0].dropped for each in self._portions[0].records
        )

    @property
    def _under_way(self) -> bool:
        return self._busy or self._portions[0].stage is Stage.BURY

    def _all(self) -> Iterable[Record]:
        """What is to be settled yet, of each partition in its order."""
        for portion in self._portions:
            yield from (each for each in portion.records if each.tp not in portion.dropped)
        yield from self._queue

    def _forget(self, tps: Collection[TopicPartition], kept: Portion | None) -> None:
        self._queue = deque(each for each in self._queue if each.tp not in tps)
        self._bytes = sum(map(size_of, self._queue))
        first = self._portions[0] if self._portions else None
        for portion in self._portions:
            if portion is not kept:
                portion.forget(tps)
        self._portions = deque(each for each in self._portions if each.records or each is kept)
        if first is not None and (not self._portions or self._portions[0] is not first):
            self._until = 0.0
        self._end_trouble()

    def _end_trouble(self) -> None:
        """With nothing to settle there is no trouble."""
        if next(iter(self._all()), None) is None:
            self.trouble = ""

    # what it means

    def _cut(self) -> None:
        most, room = self._most or self.rules.records, self.rules.bytes
        records: list[Record] = []
        while self._queue and len(records) < most:
            size = size_of(self._queue[0])
            if records and size > room:
                break
            records.append(self._queue.popleft())
            self._bytes -= size
            room -= size
        if records:
            self._portions.append(Portion(records))

    def _back(self) -> Portion | None:
        """Return what was under way, or None where all of it was dropped meanwhile."""
        assert self._busy, "tell only of what is under way"
        self._busy = False
        portion = self._portions[0]
        portion.forget(portion.dropped)
        portion.dropped.clear()
        if portion.records:
            return portion
        self._portions.popleft()
        return None

    def _judged(
        self, portion: Portion, pairs: Sequence[tuple[Record, Item]], now: float
    ) -> Settled | None:
        failed = [(record, item) for record, item in pairs if not item.processed]
        curable = sum(not item.hopeless for _, item in failed)
        if failed and self._rolls_back(portion, curable, len(pairs)):
            portion.attempts += 1
            what = f"{len(failed)} of {len(pairs)} records failed: {failed[0][1].reason}"
            self._again(portion, what, now, portion.attempts)
            return None
        if self._most:
            doubled = max(self._most, len(pairs)) * 2
            self._most = doubled if doubled < self.rules.records else 0
        self._failures = 0
        if not failed:
            return self._settle(portion)
        portion.bury(Dead(record, item.reason) for record, item in failed)
        return None

    def _rolls_back(self, portion: Portion, curable: int, of: int) -> bool:
        rules = self.rules
        if not rules.dead_letters:
            return True
        if rules.threshold is None or not curable or portion.attempts >= rules.retries:
            return False
        return curable * 100 >= rules.threshold * of

    def _away(self, portion: Portion, away: Away, now: float) -> None:
        portion.late += away.late
        if portion.late > self.rules.retries and len(portion.records) > 1:
            self._most = (len(portion.records) + 1) // 2
            portion = self._halve(portion)
        self._again(portion, away.reason, now, least=away.retry_after)

    def _suspect(self, portion: Portion, suspect: Suspect, now: float) -> None:
        portion.attempts += 1
        portion.why = suspect.reason
        if portion.attempts <= self.rules.retries and not suspect.too_large:
            self._again(portion, suspect.reason, now, portion.attempts)
            return
        self._in_trouble(suspect.reason, now)
        if len(portion.records) > 1:
            self._forsake(self._halve(portion))
        else:
            portion.stage = Stage.PROBE
            self._forsake(portion)

    def _halve(self, portion: Portion) -> Portion:
        """Each half counts as tried as often: the next time that it fails it is halved, too."""
        self._portions.popleft()
        middle = (len(portion.records) + 1) // 2
        halves = [
            Portion(records, portion.attempts, portion.sent, portion.late)
            for records in (portion.records[:middle], portion.records[middle:])
        ]
        self._portions.extendleft(reversed(halves))
        return halves[0]

    def _again(
        self,
        portion: Portion,
        reason: str,
        now: float,
        attempts: int = 0,
        *,
        least: float = 0.0,
    ) -> None:
        """attempts: of the portion, where it is to blame; else what fails in a row counts."""
        self._in_trouble(reason, now)
        if not attempts:
            self._failures += 1
        rules = self.rules
        exponent = min((attempts or self._failures) - 1, 32)  # 2 ** 1024 is no delay at all
        delay = min(rules.ceiling, rules.first * 2**exponent)
        self._until = now + max(least, delay * (0.5 + 0.5 * rules.draw()))
        self._forsake(portion)

    def _in_trouble(self, reason: str, now: float) -> None:
        if not self.trouble:
            self.since = now
        self.trouble = reason

    def _forsake(self, portion: Portion) -> None:
        """What is to be given up is not tried another time."""
        if portion.stage is not Stage.BURY and self._leaving:
            self._forget(frozenset(self._leaving), None)

    def _settle(self, portion: Portion) -> Settled:
        self._portions.popleft()
        self.settled += len(portion.records)
        self._failures, self.trouble, self._until = 0, "", 0.0
        points = {record.tp: record.next for record in portion.records}
        dead = {id(each.record) for each in portion.dead}
        processed = [record for record in portion.records if id(record) not in dead]
        return Settled(processed, portion.dead, points)
