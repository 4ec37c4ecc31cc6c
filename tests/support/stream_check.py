"""Where a client's stream and what Kafka acknowledged differ. Pure: no I/O, no time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from support.received import GapEvent, ReceivedItem, ReceivedRecord

from gateway.core.log.record import TopicPartition

MAX_PRINTED_FINDINGS = 10  # differences printed for each partition


class AckedRecord(NamedTuple):
    """A record that Kafka has acknowledged."""

    tp: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None


AckedLog: TypeAlias = dict[int, AckedRecord]
RecordPredicate: TypeAlias = Callable[[AckedRecord], bool]


class FindingKind(StrEnum):
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
    kind: FindingKind
    offset: int
    text: str


class StreamDiffers(AssertionError):
    """findings: every difference, by partition (None: records without a place)."""

    def __init__(self, findings: Mapping[TopicPartition | None, list[Finding]]) -> None:
        self.findings = findings
        super().__init__(_format_report(findings))

    @property
    def kinds(self) -> set[FindingKind]:
        return {finding.kind for found in self.findings.values() for finding in found}


@dataclass(frozen=True)
class PartitionTruth:
    """What is known of one partition.

    lives:     its logs, one after the other: a new one begins when records vanished from the
               end (truncation) or the topic was made anew. Forward gaps never change the log.
    starts:    the offset at which each life but the first begins to differ from the one before.
    aborted:   values of aborted transactions: must not arrive.
    uncertain: values whose producer got no answer: may arrive, or not.
    """

    logs: Sequence[AckedLog]
    log_starts: Sequence[int] = ()
    aborted_values: frozenset[bytes] = frozenset()
    uncertain_values: frozenset[bytes] = frozenset()


@dataclass
class PartitionCheck:
    """Walks one partition's part of a stream and notes what should not be.

    start:     the first offset that must be heard; None if not known: then the first heard.
    log_start: what Kafka still has begins here; a gap of reason retention may not end later.
    compacted: a record may be missing if its key was written again later.
    """

    truth: PartitionTruth
    start: int | None = None
    view: RecordPredicate = lambda acked: True
    log_start: int | None = None
    is_compacted: bool = False
    findings: list[Finding] = field(default_factory=list)
    _log_index: int = 0
    _seen_offsets: set[int] = field(default_factory=set)
    _reported_gaps: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._position = self.start
        self._offsets_by_log = [sorted(life) for life in self.truth.logs]

    @property
    def log(self) -> AckedLog:
        return self.truth.logs[self._log_index]

    def _get_offsets(self, start: int, end: int) -> list[int]:
        """The offsets of the log's records in [start, end)."""
        offsets = self._offsets_by_log[self._log_index]
        return offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]

    def check_item(self, item: ReceivedItem) -> None:
        if isinstance(item, ReceivedRecord):
            self._check_record(item)
        elif item.end < item.start or item.reason in ("recreated", "truncated"):
            self._check_rewind(item)
        else:
            self._check_gap(item)

    def finish(self, end: int | None) -> None:
        """Nothing more is to come. end: what must have been heard; None: all acknowledged."""
        if self._position is None:
            return
        while self._can_be_next_log():
            self._log_index += 1
        if self._log_index + 1 < len(self.truth.logs):
            self._add_finding(
                FindingKind.LOST, self._position, "it was never told that the log went back"
            )
        else:
            last = max(self.log, default=-1) + 1 if end is None else end
            self._check_complete(last, "the end")

    def _can_be_next_log(self) -> bool:
        """The log went back, but not below this reader: nothing is to be told of that."""
        if self._log_index + 1 == len(self.truth.logs) or self._position is None:
            return False
        return self._position <= self.truth.log_starts[self._log_index]

    def _check_record(self, record: ReceivedRecord) -> None:
        assert record.offset is not None
        offset = record.offset
        while offset not in self._seen_offsets and self._is_of_next_log(record):
            self._check_complete(self.truth.log_starts[self._log_index], f"offset {offset}")
            self._log_index += 1
        if self._check_known(record):
            if self._position is None or offset >= self._position:
                self._check_complete(offset, f"offset {offset}")
                self._position = offset + 1
            else:
                self._note_late(offset)
        self._seen_offsets.add(offset)

    def _is_of_next_log(self, record: ReceivedRecord) -> bool:
        if not self._can_be_next_log() or record.offset is None:
            return False
        here = self.log.get(record.offset)
        return here is None or here.value != record.value

    def _check_known(self, record: ReceivedRecord) -> bool:
        """Whether it is a record of this log; what is wrong with it is noted."""
        assert record.offset is not None
        acked, value = self.log.get(record.offset), record.value
        if acked is None and value in self.truth.uncertain_values:
            return True
        if value is not None and value in self.truth.aborted_values:
            self._add_finding(
                FindingKind.ABORTED, record.offset, f"of an aborted transaction: {value!r:.80}"
            )
        elif acked is None:
            self._add_finding(
                FindingKind.PHANTOM, record.offset, f"never acknowledged: {value!r:.80}"
            )
        elif value != acked.value or (record.key is not None and record.key != acked.key):
            was, key = acked.value, acked.key
            text = f"got {record.key!r}: {value!r:.80}, written {key!r}: {was!r:.80}"
            self._add_finding(FindingKind.ALTERED, record.offset, text)
        elif not self.view(acked):
            self._add_finding(
                FindingKind.OUTSIDE, record.offset, f"key {acked.key!r} {acked.value!r:.80}"
            )
        return acked is not None

    def _note_late(self, offset: int) -> None:
        if offset in self._seen_offsets:
            self._add_finding(FindingKind.DUPLICATE, offset, f"again, at position {self._position}")
        elif told := next((gap for gap in self._reported_gaps if gap[0] <= offset < gap[1]), None):
            self._add_finding(
                FindingKind.ARRIVED,
                offset,
                f"arrived after gap {_format_range(*told)} told it missing",
            )
        else:
            self._add_finding(
                FindingKind.REORDERED, offset, f"after the stream had come to {self._position}"
            )

    def _check_gap(self, gap: GapEvent) -> None:
        told = _format_range(gap.start, gap.end)
        inside = self._get_offsets(gap.start, gap.end)
        if arrived := sorted(self._seen_offsets.intersection(inside)):
            text = f"gap {told} ({gap.reason}) tells of {_format_offsets(arrived)}, which arrived"
            self._add_finding(FindingKind.ARRIVED, gap.start, text)
        if any(gap.start < end and start < gap.end for start, end in self._reported_gaps):
            self._add_finding(
                FindingKind.REPEATED, gap.start, f"gap {told} ({gap.reason}) was told before"
            )
        if not inside:
            self._add_finding(
                FindingKind.EMPTY, gap.start, f"gap {told} ({gap.reason}): no record was there"
            )
        self._check_gap_end(gap)
        self._check_complete(gap.start, f"gap {told}")
        self._position = max(self._position or 0, gap.end)
        self._reported_gaps.append((gap.start, gap.end))

    def _check_gap_end(self, gap: GapEvent) -> None:
        if self.log_start is None or gap.reason != "retention" or gap.end <= self.log_start:
            return
        text = (
            f"gap {_format_range(gap.start, gap.end)} ends after Kafka's log start {self.log_start}"
        )
        self._add_finding(FindingKind.BOUNDS, gap.start, text)

    def _check_rewind(self, gap: GapEvent) -> None:
        """The log was replaced from some offset on. Its lost end is what this gap tells."""
        text = f"gap from {gap.start} to {gap.end} ({gap.reason})"
        if self._log_index + 1 == len(self.truth.logs):
            self._add_finding(FindingKind.BOUNDS, gap.start, f"{text}, but the log never went back")
            return
        expected = self.truth.log_starts[self._log_index]
        # A reader that stood below the point of divergence has nothing to go back for.
        if gap.end != min(expected, gap.start):
            self._add_finding(
                FindingKind.BOUNDS, gap.start, f"{text}, but the logs differ from {expected} on"
            )
        if self._position is not None and gap.start < self._position:
            self._add_finding(
                FindingKind.BOUNDS, gap.start, f"{text}, but the stream is at {self._position}"
            )
        self._check_complete(min(gap.start, expected), text)
        self._log_index += 1
        self._position = gap.end
        self._seen_offsets = {offset for offset in self._seen_offsets if offset < gap.end}
        self._reported_gaps = [(start, end) for start, end in self._reported_gaps if end <= gap.end]

    def _check_complete(self, before: int, description: str) -> None:
        """All of the view from the position up to `before` should have been heard."""
        if self._position is None:
            return
        due = (o for o in self._get_offsets(self._position, before) if self.view(self.log[o]))
        lost = [offset for offset in due if not self._is_rewritten(offset)]
        if lost:
            offsets = _format_offsets(lost)
            text = f"{offsets} before {description}; the stream stood at {self._position}"
            self._add_finding(FindingKind.LOST, lost[0], text)

    def _is_rewritten(self, offset: int) -> bool:
        if not self.is_compacted:
            return False
        key = self.log[offset].key
        return any(later > offset and acked.key == key for later, acked in self.log.items())

    def _add_finding(self, kind: FindingKind, offset: int, text: str) -> None:
        self.findings.append(Finding(kind, offset, text))


def _format_range(start: int, end: int) -> str:
    return f"[{start}, {end})"


def _format_offsets(offsets: Sequence[int]) -> str:
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


def _format_report(findings: Mapping[TopicPartition | None, Iterable[Finding]]) -> str:
    lines = ["what the client heard is not what Kafka acknowledged"]
    for tp, found in sorted(findings.items(), key=lambda each: str(each[0])):
        found = list(found)
        lines.append(f"{tp or 'no partition'}: {len(found)} differences")
        lines += [f"  {each.kind:24} {each.text}" for each in found[:MAX_PRINTED_FINDINGS]]
        if len(found) > MAX_PRINTED_FINDINGS:
            lines.append(f"  and {len(found) - MAX_PRINTED_FINDINGS} more")
    return "\n".join(lines)
