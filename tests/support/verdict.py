"""Where a client's stream and what Kafka acknowledged differ. Pure: no I/O, no time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from support.heard import GapEvent, Heard, Received

from gateway.core.log.record import TopicPartition

SHOWN = 10  # differences printed for each partition


class Acked(NamedTuple):
    """A record that Kafka has acknowledged."""

    tp: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None


Log: TypeAlias = dict[int, Acked]
View: TypeAlias = Callable[[Acked], bool]


class Kind(StrEnum):
    LOST = "lost"
    DUPLICATE = "duplicate"
    REORDERED = "reordered"
    PHANTOM = "phantom"
    ABORTED = "aborted"
    ALTERED = "altered"
    OUTSIDE = "outside the view"
    ARRIVED = "gap over what arrived"
    REPEATED = "gap told twice"
    EMPTY = "gap over nothing"
    BOUNDS = "gap with wrong bounds"


class Finding(NamedTuple):
    kind: Kind
    offset: int
    text: str


class StreamDiffers(AssertionError):
    """findings: every difference, by partition (None: records without a place)."""

    def __init__(self, findings: Mapping[TopicPartition | None, list[Finding]]) -> None:
        self.findings = findings
        super().__init__(_report(findings))

    @property
    def kinds(self) -> set[Kind]:
        return {finding.kind for found in self.findings.values() for finding in found}


@dataclass(frozen=True)
class Truth:
    """What is known of one partition.

    lives:     its logs, one after the other: a new one begins when records vanished from the
               end (truncation) or the topic was made anew. Forward gaps never change the log.
    starts:    the offset at which each life but the first begins to differ from the one before.
    aborted:   values of aborted transactions: must not arrive.
    uncertain: values whose producer got no answer: may arrive, or not.
    """

    lives: Sequence[Log]
    starts: Sequence[int] = ()
    aborted: frozenset[bytes] = frozenset()
    uncertain: frozenset[bytes] = frozenset()


@dataclass
class Reading:
    """Walks one partition's part of a stream and notes what should not be.

    start:     the first offset that must be heard; None if not known: then the first heard.
    log_start: what Kafka still has begins here; a gap of reason retention may not end later.
    compacted: a record may be missing if its key was written again later.
    """

    truth: Truth
    start: int | None = None
    view: View = lambda acked: True
    log_start: int | None = None
    compacted: bool = False
    findings: list[Finding] = field(default_factory=list)
    _life: int = 0
    _seen: set[int] = field(default_factory=set)
    _told: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._position = self.start
        self._offsets = [sorted(life) for life in self.truth.lives]

    @property
    def log(self) -> Log:
        return self.truth.lives[self._life]

    def _between(self, start: int, end: int) -> list[int]:
        """The offsets of the log's records in [start, end)."""
        offsets = self._offsets[self._life]
        return offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]

    def hear(self, item: Heard) -> None:
        if isinstance(item, Received):
            self._record(item)
        elif item.end < item.start or item.reason in ("recreated", "truncated"):
            self._went_back(item)
        else:
            self._gap(item)

    def finish(self, end: int | None) -> None:
        """Nothing more is to come. end: what must have been heard; None: all acknowledged."""
        if self._position is None:
            return
        while self._next_life_is_near():
            self._life += 1
        if self._life + 1 < len(self.truth.lives):
            self._note(Kind.LOST, self._position, "it was never told that the log went back")
        else:
            last = max(self.log, default=-1) + 1 if end is None else end
            self._expect(last, "the end")

    def _next_life_is_near(self) -> bool:
        """The log went back, but not below this reader: nothing is to be told of that."""
        if self._life + 1 == len(self.truth.lives) or self._position is None:
            return False
        return self._position <= self.truth.starts[self._life]

    def _record(self, record: Received) -> None:
        assert record.offset is not None
        offset = record.offset
        while offset not in self._seen and self._is_of_next_life(record):
            self._expect(self.truth.starts[self._life], f"offset {offset}")
            self._life += 1
        if self._known(record):
            if self._position is None or offset >= self._position:
                self._expect(offset, f"offset {offset}")
                self._position = offset + 1
            else:
                self._late(offset)
        self._seen.add(offset)

    def _is_of_next_life(self, record: Received) -> bool:
        if not self._next_life_is_near() or record.offset is None:
            return False
        here = self.log.get(record.offset)
        return here is None or here.value != record.value

    def _known(self, record: Received) -> bool:
        """Whether it is a record of this log; what is wrong with it is noted."""
        assert record.offset is not None
        acked, value = self.log.get(record.offset), record.value
        if acked is None and value in self.truth.uncertain:
            return True
        if value is not None and value in self.truth.aborted:
            self._note(Kind.ABORTED, record.offset, f"of an aborted transaction: {value!r:.80}")
        elif acked is None:
            self._note(Kind.PHANTOM, record.offset, f"never acknowledged: {value!r:.80}")
        elif value != acked.value or (record.key is not None and record.key != acked.key):
            was, key = acked.value, acked.key
            text = f"got {record.key!r}: {value!r:.80}, written {key!r}: {was!r:.80}"
            self._note(Kind.ALTERED, record.offset, text)
        elif not self.view(acked):
            self._note(Kind.OUTSIDE, record.offset, f"key {acked.key!r} {acked.value!r:.80}")
        return acked is not None

    def _late(self, offset: int) -> None:
        if offset in self._seen:
            self._note(Kind.DUPLICATE, offset, f"again, at position {self._position}")
        elif told := next((gap for gap in self._told if gap[0] <= offset < gap[1]), None):
            self._note(Kind.ARRIVED, offset, f"arrived after gap {_range(*told)} told it missing")
        else:
            self._note(Kind.REORDERED, offset, f"after the stream had come to {self._position}")

    def _gap(self, gap: GapEvent) -> None:
        told = _range(gap.start, gap.end)
        inside = self._between(gap.start, gap.end)
        if arrived := sorted(self._seen.intersection(inside)):
            text = f"gap {told} ({gap.reason}) tells of {_some(arrived)}, which arrived"
            self._note(Kind.ARRIVED, gap.start, text)
        if any(gap.start < end and start < gap.end for start, end in self._told):
            self._note(Kind.REPEATED, gap.start, f"gap {told} ({gap.reason}) was told before")
        if not inside:
            self._note(Kind.EMPTY, gap.start, f"gap {told} ({gap.reason}): no record was there")
        self._judge_end(gap)
        self._expect(gap.start, f"gap {told}")
        self._position = max(self._position or 0, gap.end)
        self._told.append((gap.start, gap.end))

    def _judge_end(self, gap: GapEvent) -> None:
        if self.log_start is None or gap.reason != "retention" or gap.end <= self.log_start:
            return
        text = f"gap {_range(gap.start, gap.end)} ends after Kafka's log start {self.log_start}"
        self._note(Kind.BOUNDS, gap.start, text)

    def _went_back(self, gap: GapEvent) -> None:
        """The log was replaced from some offset on. Its lost end is what this gap tells."""
        text = f"gap from {gap.start} to {gap.end} ({gap.reason})"
        if self._life + 1 == len(self.truth.lives):
            self._note(Kind.BOUNDS, gap.start, f"{text}, but the log never went back")
            return
        expected = self.truth.starts[self._life]
        # A reader that stood below the point of divergence has nothing to go back for.
        if gap.end != min(expected, gap.start):
            self._note(Kind.BOUNDS, gap.start, f"{text}, but the logs differ from {expected} on")
        if self._position is not None and gap.start < self._position:
            self._note(Kind.BOUNDS, gap.start, f"{text}, but the stream is at {self._position}")
        self._expect(min(gap.start, expected), text)
        self._life += 1
        self._position = gap.end
        self._seen = {offset for offset in self._seen if offset < gap.end}
        self._told = [(start, end) for start, end in self._told if end <= gap.end]

    def _expect(self, before: int, what: str) -> None:
        """All of the view from the position up to `before` should have been heard."""
        if self._position is None:
            return
        due = (o for o in self._between(self._position, before) if self.view(self.log[o]))
        lost = [offset for offset in due if not self._rewritten(offset)]
        if lost:
            text = f"{_some(lost)} before {what}; the stream stood at {self._position}"
            self._note(Kind.LOST, lost[0], text)

    def _rewritten(self, offset: int) -> bool:
        if not self.compacted:
            return False
        key = self.log[offset].key
        return any(later > offset and acked.key == key for later, acked in self.log.items())

    def _note(self, kind: Kind, offset: int, text: str) -> None:
        self.findings.append(Finding(kind, offset, text))


def _range(start: int, end: int) -> str:
    return f"[{start}, {end})"


def _some(offsets: Sequence[int]) -> str:
    """Offsets as runs: `3 records: 4..5, 9`."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    shown = [f"{a}" if a == b else f"{a}..{b}" for a, b in runs[:5]]
    shown += ["..."] if len(runs) > 5 else []
    return f"{len(offsets)} records ({', '.join(shown)})"


def _report(findings: Mapping[TopicPartition | None, Iterable[Finding]]) -> str:
    lines = ["what the client heard is not what Kafka acknowledged"]
    for tp, found in sorted(findings.items(), key=lambda each: str(each[0])):
        found = list(found)
        lines.append(f"{tp or 'no partition'}: {len(found)} differences")
        lines += [f"  {each.kind:24} {each.text}" for each in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN} more")
    return "\n".join(lines)
