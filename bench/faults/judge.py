"""Compares what each client got with what Kafka has and had. Pure: no I/O, no time.

`views` states what is allowed. Streams are compared by `support.oracle`, tables here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from support.received import GapEvent, ReceivedRecord
from support.stream_check import AckedRecord, Finding, FindingKind, PartitionTruth, StreamDiffers

from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import parse_token

from .clients import ClientLog, Connection, read_partition
from .truth import Truth
from .views import GAP_REASONS, TYPED, Rule, View

MAX_FINDINGS_PER_CLIENT = 50
# What a partition may say for a while whose leader is gone, or is back, or answers by errors.
ELECTION_ERRORS, ELECTION_S = {"no-leader", "not-leader", "storage"}, 10.0
# In place of the number of a client.
KAFKA, GROUP, JOB, GATEWAYS = -1, -2, -3, -4
_NAMES = {
    KAFKA: "Kafka", GROUP: "the reactive group", JOB: "the Spark job", GATEWAYS: "the gateways",
}  # fmt: skip
_ASYNCIO_ERROR = re.compile(r" ERROR (worker \d+ )?asyncio: ")
_LOG_LINE = re.compile(r"gateway \d+: \d{4}-\d\d-\d\d ")  # the first line of a message


class Trouble(StrEnum):
    """What is wrong beside differences of records."""

    STALLED = "stalled"
    GAVE_UP = "gave up"
    LOST_BY_KAFKA = "lost by Kafka"
    RESUME_MODE = "resume mode"
    PROTOCOL = "protocol"
    GAP_REASON = "gap with wrong reason"
    STILL_PENDING = "still pending"
    POSITION_AHEAD = "position ahead"
    POSITION_BEHIND = "position behind"
    NOTHING_WRITTEN = "nothing written"
    UNEXPECTED_ERROR = "unexpected error in a log"


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


def judge_logs(lines: Iterable[str]) -> list[ClientFinding]:
    """Return the messages of the gateways that nobody expected.

    These have a traceback, or asyncio says in them what was neither closed nor awaited.

    Args:
        lines: As `World.read_logs` returns them.
    """
    found: dict[str, None] = {}
    message = ""
    for line in lines:
        if _LOG_LINE.match(line):
            message = line
            if _ASYNCIO_ERROR.search(line):
                found[line] = None
        elif line.startswith("gateway") and "Traceback (most recent call last)" in line:
            found[message or line] = None
    return [
        ClientFinding(GATEWAYS, "", "", Trouble.UNEXPECTED_ERROR, None, -1, text)
        for text in list(found)[:MAX_FINDINGS_PER_CLIENT]
    ]


def judge_client(
    log: ClientLog, truth: Truth, broker_faults: Sequence[tuple[float, float]] = ()
) -> list[ClientFinding]:
    """Return what is wrong with what a client got, which is expected to be all that it gets.

    Args:
        log: What the client got.
        truth: What Kafka has.
        broker_faults: From when to when each fault of a broker lasted, by `time.monotonic`.
    """
    plan = log.plan
    if plan.view.rule is Rule.TABLE:
        found: Iterable[tuple[TopicPartition | None, Finding]] = _check_table(log, truth)
    else:
        found = _check_stream(log, truth)
    findings = [
        ClientFinding(plan.number, plan.view.name, plan.wire, each.kind, tp, each.offset, each.text)
        for tp, each in (
            *found,
            *_check_protocol(log, truth),
            *_check_errors(log, broker_faults),
            *_check_positions(log, truth),
        )
    ]
    return findings[:MAX_FINDINGS_PER_CLIENT]


def _check_protocol(
    log: ClientLog, truth: Truth
) -> Iterable[tuple[TopicPartition | None, Finding]]:
    """Find what is wrong with events by themselves."""
    topic = log.plan.view.topic
    for error in log.protocol_errors:
        yield error.tp, Finding(Trouble.PROTOCOL, error.offset, error.text)
    modes = {each.resume_mode for each in log.connections if each.resume_mode}
    if log.plan.view.rule is Rule.STREAM and modes - {"exact"}:
        yield None, Finding(Trouble.RESUME_MODE, -1, f"begin said {modes}")
    for tp in log.pending:
        yield tp, Finding(Trouble.STILL_PENDING, -1, "no `ready` came, but its last records did")
    for item, at in zip(log.items, log.times, strict=True):
        assert item.tp is not None
        if isinstance(item, GapEvent):
            if item.reason != GAP_REASONS.get(item.tp.topic):
                yield item.tp, Finding(Trouble.GAP_REASON, item.start, f"{item}")
            latest = truth.get_latest_log_start(item.tp, at)
            if item.reason == "retention" and latest is not None and item.end > latest:
                text = f"{item}, but Kafka's log began at {latest} at most then"
                yield item.tp, Finding(FindingKind.BOUNDS, item.start, text)
        if item.tp.topic != topic:
            yield item.tp, Finding(FindingKind.OUTSIDE, -1, f"the stream is of {topic}: {item}")


def _check_errors(
    log: ClientLog, broker_faults: Sequence[tuple[float, float]]
) -> Iterable[tuple[TopicPartition | None, Finding]]:
    """Find errors that no fault of the bench leads to."""
    view = log.plan.view
    # What a broker that has just started, or a topic that begins anew, may lead to for a while.
    expected = {"unknown-topic", "kafka-unavailable", "connection", "timeout"}
    if view.topic == TYPED:
        expected.add("schema-registry")
    if view.user:
        expected.add("guard-unavailable")
    for at, data in log.errors:
        is_led_anew = any(start <= at <= end + ELECTION_S for start, end in broker_faults)
        if data["code"] not in expected | (ELECTION_ERRORS if is_led_anew else set()):
            tp = read_partition(data) if "topic" in data else None
            yield tp, Finding(Trouble.PROTOCOL, -1, f"error {data}, without such a fault")


def _check_positions(
    log: ClientLog, truth: Truth
) -> Iterable[tuple[TopicPartition | None, Finding]]:
    """Find positions with which a client would lose records, or get them again.

    It is a stroke of luck if a client is cut off at a wrong position: the next one is right again.
    Logs that went back are left out: a position does not say of which of them it is.
    """
    view, count = log.plan.view, 0
    came: dict[TopicPartition, int] = {}  # where each partition stands after what came
    table: dict[tuple[TopicPartition, bytes | None], int] = {}
    checked: dict[TopicPartition, int] = {}
    for position in log.positions:
        for item in log.items[count : position.item_count]:
            assert item.tp is not None
            if isinstance(item, ReceivedRecord):
                assert item.offset is not None
                came[item.tp] = item.offset + 1
                table[item.tp, item.key] = item.offset
            else:
                came[item.tp] = item.end
        count = position.item_count
        for tp, offset in _read_positions(position.token, view.topic).items():
            if tp not in truth.truths or len(truth.truths[tp].logs) > 1:
                continue
            if view.rule is Rule.STREAM:
                found = _check_position(view, truth, tp, came.get(tp, 0), offset)
            else:
                found = _check_table_position(view, truth, tp, checked.get(tp, 0), offset, table)
                checked[tp] = offset
            if found is not None:
                yield tp, found


def _check_position(
    view: View, truth: Truth, tp: TopicPartition, came: int, offset: int
) -> Finding | None:
    """Return what is wrong with a position of a stream that stands at `came`."""
    if offset < came:
        text = f"the position {offset} would bring again what came up to {came - 1}"
        return Finding(Trouble.POSITION_BEHIND, offset, text)
    for record in truth.get_due_records(view, tp, came, offset):
        text = f"the position {offset} would skip {record.offset}; the stream stands at {came}"
        return Finding(Trouble.POSITION_AHEAD, record.offset, text)
    return None


def _check_table_position(
    view: View,
    truth: Truth,
    tp: TopicPartition,
    checked: int,
    offset: int,
    table: Mapping[tuple[TopicPartition, bytes | None], int],
) -> Finding | None:
    """Return the latest record of a key that a position has passed without it.

    Args:
        view: The view.
        truth: What Kafka has.
        tp: The partition.
        checked: The position before, up to which this was checked.
        offset: The position.
        table: The offset of the record of each key that came last.
    """
    latest = {record.key: record for record in truth.get_due_records(view, tp, checked, offset)}
    for key, record in latest.items():
        known = table.get((tp, key), -1)
        # The gateway may have a later record of the key already, which comes next.
        if truth.get_table(view)[tp, key].offset >= offset:
            continue
        # A key that was deleted before a snapshot is in none.
        if known < record.offset and (record.value is not None or known >= 0):
            text = f"the position {offset} has passed {record.offset} of {key!r}; known is {known}"
            return Finding(Trouble.POSITION_AHEAD, record.offset, text)
    return None


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


@lru_cache(maxsize=1 << 16)  # clients of a view that are served by one worker have the same ones
def _read_positions(token: str, topic: str) -> Mapping[TopicPartition, int]:
    """Return the next offsets that a position names."""
    if not token:
        return {}
    named = parse_token(token).match_topics((topic,))
    return {
        TopicPartition(topic, number): offset
        for number, offset in enumerate(named[topic].offsets if topic in named else ())
        if offset is not None
    }
