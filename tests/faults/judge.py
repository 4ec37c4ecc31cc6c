"""Compares what each client got with what Kafka has and had. Pure: no I/O, no time.

`views` states what is allowed. Streams are compared by `support.oracle`, tables here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from support.oracle import StreamOracle
from support.received import GapEvent, ReceivedRecord
from support.stream_check import AckedRecord, Finding, FindingKind, PartitionTruth, StreamDiffers

from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import parse_token

from .clients import ClientLog, Connection
from .views import Rule, View

MAX_FINDINGS_PER_CLIENT = 50
# In place of the number of a client.
KAFKA, GROUP, JOB = -1, -2, -3
_NAMES = {KAFKA: "Kafka", GROUP: "the reactive group", JOB: "the Spark job"}


class Trouble(StrEnum):
    """What is wrong beside differences of records."""

    STALLED = "stalled"
    GAVE_UP = "gave up"
    LOST_BY_KAFKA = "lost by Kafka"
    RESUME_MODE = "resume mode"


@dataclass(frozen=True, slots=True)
class ClientFinding:
    """Something that should not be, of one client, or of Kafka, the group or the job."""

    client: int
    view: str
    wire: str
    kind: str
    tp: TopicPartition | None
    offset: int
    text: str

    def __str__(self) -> str:
        place = "" if self.tp is None else f" {self.tp.topic}-{self.tp.partition}"
        client = f"client {self.client} ({self.view}, {self.wire})"
        who = _NAMES.get(self.client, client)
        return f"{self.kind}:{place} {self.text}; {who}"


class Truth:
    """What Kafka has at the end, and what it had before.

    Args:
        oracle: Knows every record that was committed, by partition and life of its log.
        partitions: The partitions of each topic at the end.
        log_starts: The first offset that each partition still has.
        read_records: What Kafka has at the end.
        whole_topics: The topics of which nothing may be gone.
    """

    def __init__(
        self,
        oracle: StreamOracle,
        partitions: Mapping[str, Sequence[TopicPartition]],
        log_starts: Mapping[TopicPartition, int] | None = None,
        read_records: Sequence[AckedRecord] = (),
        whole_topics: Collection[str] = (),
    ) -> None:
        self.oracle = oracle
        self.partitions = partitions
        self.log_starts = dict(log_starts or {})
        self.read_records = read_records
        self.whole_topics = whole_topics
        self._last_records: dict[View, Mapping[TopicPartition, AckedRecord]] = {}
        self._tables: dict[View, Mapping[tuple[TopicPartition, bytes | None], AckedRecord]] = {}

    @cached_property
    def truths(self) -> Mapping[TopicPartition, PartitionTruth]:
        """Return what is known of each partition."""
        every = [tp for tps in self.partitions.values() for tp in tps]
        return {tp: self.oracle.get_truth(tp) for tp in every}

    def get_last_records(self, view: View) -> Mapping[TopicPartition, AckedRecord]:
        """Return the last record of a view in each partition that has one."""
        if view not in self._last_records:
            self._last_records[view] = {record.tp: record for record in self._list_visible(view)}
        return self._last_records[view]

    def get_table(self, view: View) -> Mapping[tuple[TopicPartition, bytes | None], AckedRecord]:
        """Return the last record of each key of a view, tombstones too."""
        if view not in self._tables:
            self._tables[view] = {
                (record.tp, record.key): record for record in self._list_visible(view)
            }
        return self._tables[view]

    def _list_visible(self, view: View) -> Iterable[AckedRecord]:
        for tp in self.partitions[view.topic]:
            yield from filter(view.is_visible, self.oracle.list_acked(tp))


def describe_lack(log: ClientLog, truth: Truth) -> str:
    """Return what a client has yet to get; nothing if it has come to the end."""
    view = log.plan.view
    if view.rule is Rule.TABLE:
        return next((f"{record} of its table" for record in _list_outdated(log, truth)), "")
    for tp, last in truth.get_last_records(view).items():
        latest = log.latest.get(tp)
        if latest is not None and (latest.offset, latest.value) == (last.offset, last.value):
            continue
        if any(gap.tp == tp and gap.start <= last.offset < gap.end for gap in log.gaps):
            continue
        at = "nothing" if latest is None else f"offset {latest.offset}"
        return f"{tp.topic}-{tp.partition} up to offset {last.offset}; it has {at}"
    return ""


def judge_client(log: ClientLog, truth: Truth) -> list[ClientFinding]:
    """Return what is wrong with what a client got, which is expected to be all that it gets."""
    plan = log.plan
    if plan.view.rule is Rule.TABLE:
        found: Iterable[tuple[TopicPartition | None, Finding]] = _check_table(log, truth)
    else:
        found = _check_stream(log, truth)
    findings = [
        ClientFinding(plan.number, plan.view.name, plan.wire, each.kind, tp, each.offset, each.text)
        for tp, each in found
    ]
    wanted = "exact" if plan.view.rule is Rule.STREAM else None
    modes = {each.resume_mode for each in log.connections if each.resume_mode}
    if wanted and modes - {wanted}:
        findings.append(
            ClientFinding(
                plan.number, plan.view.name, plan.wire, Trouble.RESUME_MODE, None, -1,
                f"begin said {modes}",
            )
        )  # fmt: skip
    return findings[:MAX_FINDINGS_PER_CLIENT]


def _check_stream(log: ClientLog, truth: Truth) -> list[tuple[TopicPartition | None, Finding]]:
    view = log.plan.view
    try:
        truth.oracle.check_items(
            log.items,
            start=dict.fromkeys(truth.partitions[view.topic], 0),
            view=view.is_visible,
            log_start=truth.log_starts,
        )
    except StreamDiffers as differs:
        return [(tp, each) for tp, found in differs.findings.items() for each in found]
    return []


def _list_outdated(log: ClientLog, truth: Truth) -> list[AckedRecord]:
    """Return the latest records of keys of which a client knows another one, or none."""
    outdated = []
    for place, last in truth.get_table(log.plan.view).items():
        known = log.table.get(place)
        is_known = known is not None and known.value is not None
        # A snapshot has no tombstones: of a key that was deleted, a client may never have heard.
        if (last.value is None and is_known) or (
            last.value is not None and (known is None or known.offset != last.offset)
        ):
            outdated.append(last)
    return outdated


def _check_table(log: ClientLog, truth: Truth) -> list[tuple[TopicPartition | None, Finding]]:
    found: list[tuple[TopicPartition | None, Finding]] = []
    for connection, items in _split_by_connection(log):
        floors = _read_positions(connection.token, log.plan.view.topic)
        newest: dict[tuple[TopicPartition, bytes | None], int] = {}
        for item in items:
            if isinstance(item, GapEvent):
                text = f"gap [{item.start}, {item.end}) ({item.reason}), but nothing is gone"
                found.append((item.tp, Finding(FindingKind.EMPTY, item.start, text)))
                continue
            assert item.tp is not None and item.offset is not None
            if finding := _check_known(item, truth, log.plan.view):
                found.append((item.tp, finding))
            place, floor = (item.tp, item.key), floors.get(item.tp, 0)
            if item.offset < floor:
                text = f"again; the client came back with position {floor}"
                found.append((item.tp, Finding(FindingKind.DUPLICATE, item.offset, text)))
            if item.offset <= newest.get(place, -1):
                kind = (
                    FindingKind.DUPLICATE if item.offset == newest[place] else FindingKind.REORDERED
                )
                text = f"key {item.key!r} at {item.offset} after {newest[place]}"
                found.append((item.tp, Finding(kind, item.offset, text)))
            newest[place] = max(newest.get(place, -1), item.offset)
    for record in _list_outdated(log, truth):
        known = log.table.get((record.tp, record.key))
        text = f"the latest of key {record.key!r} is {record.offset}, known is {known}"
        found.append((record.tp, Finding(FindingKind.LOST, record.offset, text)))
    return found


def _check_known(record: ReceivedRecord, truth: Truth, view: View) -> Finding | None:
    """Return what is wrong with a record of a table by itself."""
    assert record.tp is not None and record.offset is not None
    known = truth.truths[record.tp]
    acked, value = known.logs[-1].get(record.offset), record.value
    if acked is None:
        if value is not None and value in known.aborted_values:
            text = f"of an aborted transaction: {value!r:.80}"
            return Finding(FindingKind.ABORTED, record.offset, text)
        # What nobody has an answer for may have been compacted before the log was read, and so may
        # the first of two copies, which a producer wrote since the answer to the first one was
        # lost; that a tombstone is one of those is not told by its value.
        if value is None or value in known.uncertain_values or _has_copy(record, known):
            return None
        return Finding(FindingKind.PHANTOM, record.offset, f"never acknowledged: {value!r:.80}")
    if (acked.key, acked.value) != (record.key, value):
        text = f"got {record.key!r}: {value!r:.80}, written {acked.key!r}: {acked.value!r:.80}"
        return Finding(FindingKind.ALTERED, record.offset, text)
    if not view.is_visible(acked):
        return Finding(FindingKind.OUTSIDE, record.offset, f"key {acked.key!r}")
    return None


def _has_copy(record: ReceivedRecord, known: PartitionTruth) -> bool:
    """Return whether a later record has the same key and value; no two are written alike."""
    return any(
        (each.key, each.value) == (record.key, record.value) and offset > (record.offset or 0)
        for offset, each in known.logs[-1].items()
    )


def _split_by_connection(
    log: ClientLog,
) -> Iterable[tuple[Connection, Sequence[ReceivedRecord | GapEvent]]]:
    for index, connection in enumerate(log.connections):
        is_last = index + 1 == len(log.connections)
        end = len(log.items) if is_last else log.connections[index + 1].first_item
        yield connection, log.items[connection.first_item : end]


def _read_positions(token: str, topic: str) -> dict[TopicPartition, int]:
    """Return the next offsets that a position names."""
    if not token:
        return {}
    named = parse_token(token).match_topics((topic,))
    return {
        TopicPartition(topic, number): offset
        for number, offset in enumerate(named[topic].offsets if topic in named else ())
        if offset is not None
    }
