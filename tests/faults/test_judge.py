"""The judge finds what is planted: a test of a test, since one that cannot fail proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from support.oracle import StreamOracle
from support.stream_check import AckedRecord
from support.stream_check import FindingKind as Kind

from bench.faults.clients import ClientLog
from bench.faults.judge import Trouble, describe_lack, judge_client, judge_logs
from bench.faults.truth import LogStart, Truth
from bench.faults.views import (
    PRICES,
    TRIMMED,
    TYPED,
    VIEWS,
    VOLATILE,
    ClientPlan,
    Rule,
    View,
    Wire,
)
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import TokenWriter, TopicPositions, digest_text, seal_token

LOG, TABLE = TopicPartition(TRIMMED, 0), TopicPartition(PRICES, 0)
STREAM_VIEW = next(view for view in VIEWS if view.topic == TRIMMED)
OWN_KEY_VIEW = replace(next(view for view in VIEWS if view.path == "/own/key-1"), topic=TRIMMED)
TABLE_VIEW = next(view for view in VIEWS if view.rule is Rule.TABLE)
RECREATED_VIEW = next(view for view in VIEWS if view.topic == VOLATILE)
# Offsets 5 and 6 are of an aborted transaction and its marker. Keys are key-0 and key-1.
OFFSETS = [0, 1, 2, 3, 4, 7, 8, 9]
ABORTED = b'{"n":5,"lane":"red"}'


def build_record(tp: TopicPartition, offset: int, key: str = "") -> AckedRecord:
    written = {"n": offset, "lane": "red", "at": 1000 * offset}
    value = json.dumps(written, separators=(",", ":")).encode()
    return AckedRecord(tp, offset, (key or f"key-{offset % 2}").encode(), value)


def build_truth(tp: TopicPartition, log_start: int = 0) -> Truth:
    oracle = StreamOracle()
    records = [build_record(tp, offset) for offset in OFFSETS]
    oracle.add_acked(records)
    oracle.add_aborted([ABORTED])
    return Truth(oracle, {tp.topic: [tp]}, {tp: log_start}, records)


def build_token(tp: TopicPartition, offset: int) -> str:
    positions = TopicPositions(tp.topic, "an id", [offset], [0])
    return seal_token(TokenWriter("a cluster", [positions]).to_text(), digest_text("v")).decode()


Step: TypeAlias = Callable[[ClientLog, TopicPartition], None]


def tell(event: str, token: str = "", **data: object) -> Step:
    def step(log: ClientLog, tp: TopicPartition) -> None:
        place = {"topic": tp.topic, "partition": tp.partition}
        log.add_event({"event": event, "id": token, "data": json.dumps({**place, **data})})

    return step


def tell_gap(start: int, end: int, reason: str = "retention") -> Step:
    return tell("gap", **{"from": start, "to": end, "reason": reason})


def connect(position: int = 0, resume: str = "exact", *, is_pending: bool = False) -> Step:
    """Connect with a position, or for the first time, and begin."""

    def step(log: ClientLog, tp: TopicPartition) -> None:
        token = build_token(tp, position)
        log.add_connection(token if position else "")
        pending = [{"topic": tp.topic, "partition": tp.partition}] if is_pending else []
        tell("begin", token, resume=resume, pending=pending)(log, tp)

    return step


def send(record: AckedRecord, position: int | None = None, **changes: Any) -> Step:
    """Send a record, with some members of its envelope other than they should be."""
    envelope = {
        "topic": record.tp.topic,
        "offset": record.offset,
        "timestamp": 1000 * record.offset,
        "key": record.key.decode() if record.key else None,
        "value": record.value.decode() if record.value else None,
        "headers": [["lane", "red"]],
        **changes,
    }
    token = "" if position is None else build_token(record.tp, position)
    return tell("message" if record.value else "delete", token, **envelope)


def send_with_positions(tp: TopicPartition, positions: dict[int, int]) -> list[Step]:
    return [send(build_record(tp, offset), position) for offset, position in positions.items()]


def build_log(view: View, steps: Sequence[int | Step]) -> ClientLog:
    """Give a client the record of each offset that is among the steps, and do the others."""
    log, tp = ClientLog(ClientPlan(0, view, Wire.SSE)), TopicPartition(view.topic, 0)
    for step in (connect(), *steps):
        do = send(build_record(tp, step)) if isinstance(step, int) else step
        do(log, tp)
    return log


def judge(
    steps: Sequence[int | Step],
    view: View = STREAM_VIEW,
    log_start: int = 0,
    acked: Sequence[AckedRecord] = (),
    *,
    is_recreated: bool = False,
) -> set[str]:
    """Return the kinds of what is found; Kafka has OFFSETS, maybe in a log before, and `acked`."""
    truth = build_truth(TopicPartition(view.topic, 0), log_start)
    if is_recreated:
        truth.oracle.mark_recreated(view.topic)
    truth.oracle.add_acked(acked)
    return {each.kind for each in judge_client(build_log(view, steps), truth)}


def judge_table(steps: Sequence[int | Step], *acked: AckedRecord) -> set[str]:
    return judge(steps, TABLE_VIEW, acked=acked)


def test_nothing_is_found_in_a_stream_that_is_right() -> None:
    assert judge(OFFSETS) == set()
    assert judge([1, 3, 7, 9], OWN_KEY_VIEW) == set()
    assert judge([0, connect(1), tell_gap(1, 4), 4, 7, 8, 9], log_start=4) == set()
    # What is in memory may come before its partition is ready.
    assert judge([connect(is_pending=True), 0, tell("ready"), *OFFSETS[1:]]) == set()


def test_lost_repeated_and_reordered_records_are_found() -> None:
    assert judge([0, 1, 3, 4, 7, 8, 9]) == {Kind.LOST}
    assert judge([0, 1, 2, 3, 4, 7, 8]) == {Kind.LOST}
    assert judge([]) == {Kind.LOST}
    assert judge([0, connect(1), 4, 7, 8, 9], log_start=4) == {Kind.LOST}
    assert judge([*OFFSETS, 9]) == {Kind.DUPLICATE}
    again = {Kind.DUPLICATE, Trouble.POSITION_BEHIND}
    assert judge([0, 1, 2, connect(2), *OFFSETS[2:]]) == again
    assert judge([0, 2, 1, 3, 4, 7, 8, 9]) == {Kind.REORDERED, Kind.LOST}


def test_records_that_should_not_be_are_found() -> None:
    aborted = send(AckedRecord(LOG, 5, b"key-1", ABORTED))
    altered = send(build_record(LOG, 0)._replace(value=b'{"n":77,"lane":"red"}'))
    foreign = send(build_record(TopicPartition(TYPED, 0), 0))
    assert judge([0, 1, 2, 3, 4, aborted, 7, 8, 9]) == {Kind.ABORTED}
    assert judge([*OFFSETS, 12]) == {Kind.PHANTOM}
    assert judge([altered, *OFFSETS[1:]]) == {Kind.ALTERED}
    assert judge([1, 2, 3, 7, 9], OWN_KEY_VIEW) == {Kind.OUTSIDE}
    assert Kind.OUTSIDE in judge([*OFFSETS, foreign])
    for changes in ({"key": None}, {"timestamp": 1}, {"headers": []}, {"headers": [["lane", "b"]]}):
        changed = send(build_record(LOG, 0), **changes)
        assert judge([changed, *OFFSETS[1:]]) == {Trouble.PROTOCOL}, changes


def test_gaps_without_a_loss_are_found() -> None:
    assert judge([0, 1, 2, tell_gap(1, 3), *OFFSETS[3:]], log_start=3) == {Kind.ARRIVED}
    assert judge([*OFFSETS, tell_gap(10, 12)], log_start=12) == {Kind.EMPTY}
    assert judge([tell_gap(0, 4)] * 2 + OFFSETS[4:], log_start=4) == {Kind.REPEATED}
    assert judge([0, tell_gap(1, 7), 7, 8, 9], log_start=4) == {Kind.BOUNDS}
    # Records that are intact in Kafka were told as corrupt, in any topic, and that passed.
    assert judge([0, tell_gap(1, 2, "corrupt"), *OFFSETS[2:]]) == {Trouble.GAP_REASON}


def test_a_log_that_went_back_without_a_word_is_found() -> None:
    """A gap of reason recreated tells it; without one, the new log is not what was due."""
    new = build_record(TopicPartition(VOLATILE, 0), 0, "key-9")
    for gaps in ([tell_gap(10, 0, "recreated")], []):
        steps = [*OFFSETS, *gaps, send(new)]
        found = judge(steps, RECREATED_VIEW, acked=[new], is_recreated=True)
        assert bool(found) is not bool(gaps)


def test_events_that_should_not_be_are_found() -> None:
    denied = tell("error", code="access-denied", message="")
    no_guard = tell("error", code="guard-unavailable", message="")
    assert judge([connect(resume="batch"), *OFFSETS]) == {Trouble.RESUME_MODE}
    assert judge([*OFFSETS, connect(10, is_pending=True)]) == {Trouble.STILL_PENDING}
    assert judge([0, lambda log, tp: log.add_connection(""), *OFFSETS[1:]]) == {Trouble.PROTOCOL}
    assert judge([denied, *OFFSETS]) == judge([no_guard, *OFFSETS]) == {Trouble.PROTOCOL}
    assert judge([no_guard, *OFFSETS], replace(STREAM_VIEW, user="ada")) == set()


def test_a_partition_without_a_leader_is_found_where_no_broker_was_away() -> None:
    log = build_log(STREAM_VIEW, [tell("error", code="no-leader", message=""), *OFFSETS])
    told_at, truth = log.errors[0][0], build_truth(LOG)
    assert judge_client(log, truth, [(told_at - 9, told_at - 5)]) == []
    for elsewhere in ((told_at - 90, told_at - 50), (told_at + 1, told_at + 2)):
        assert {each.kind for each in judge_client(log, truth, [elsewhere])} == {Trouble.PROTOCOL}


def test_a_position_that_no_client_came_back_with_is_judged_too() -> None:
    """A client that is cut off there would lose a record; the next position is right again."""
    right = {offset: offset + 1 for offset in OFFSETS}
    assert judge(send_with_positions(LOG, right)) == set()
    # What lies between is of an aborted transaction.
    assert judge(send_with_positions(LOG, right | {4: 7})) == set()
    assert judge(send_with_positions(LOG, right | {0: 2})) == {Trouble.POSITION_AHEAD}
    assert judge(send_with_positions(LOG, right | {4: 3})) == {Trouble.POSITION_BEHIND}


def test_a_position_of_a_table_has_the_latest_of_each_key() -> None:
    assert judge_table(send_with_positions(TABLE, {0: 0, 3: 0, 4: 5, 7: 5, 8: 10, 9: 10})) == set()
    # Record 4 may be left out for 8 of the same key, which comes later; 9 is left out for none.
    assert judge_table(send_with_positions(TABLE, {3: 5, 8: 9, 9: 10})) == set()
    assert judge_table(send_with_positions(TABLE, {3: 4, 8: 10, 9: 11})) == {Trouble.POSITION_AHEAD}


def test_a_table_needs_the_latest_of_each_key_alone() -> None:
    assert judge_table([8, 9]) == set()
    assert judge_table([8, 7]) == {Kind.LOST}
    # A flush may come again, but not what is before the position.
    assert judge_table([2, 3, 4, connect(3), 3, 4, 8, 9]) == set()
    assert judge_table([2, 3, 4, connect(4), 3, 8, 9]) == {Kind.DUPLICATE}


def test_what_is_planted_in_a_table_is_found() -> None:
    aborted = send(AckedRecord(TABLE, 5, b"key-1", ABORTED))
    phantom = send(build_record(TABLE, 11, "key-3"))
    assert judge_table([8, 4, 9, 8]) == {Kind.REORDERED, Kind.DUPLICATE}
    assert judge_table([aborted, 8, 9]) == {Kind.ABORTED}
    assert judge_table([8, 9, phantom]) == {Kind.PHANTOM}
    assert Kind.EMPTY in judge_table([tell_gap(0, 4), 8, 9])


def test_the_first_of_two_copies_may_be_compacted_before_the_log_is_read() -> None:
    copied = AckedRecord(TABLE, 12, b"key-0", b'{"n": 12}')
    first, elsewhere = copied._replace(offset=11), copied._replace(offset=11, key=b"key-1")
    assert judge_table([8, 9, send(first), send(copied)], copied) == set()
    for other in (elsewhere, copied._replace(offset=13)):
        assert Kind.PHANTOM in judge_table([8, 9, send(other)], copied)


def test_a_deleted_key_must_not_stay_in_a_table() -> None:
    deleted = AckedRecord(TABLE, 10, b"key-1", None)
    assert judge_table([8, 9, send(deleted)], deleted) == set()
    assert judge_table([8], deleted) == set()  # a snapshot that began later never names the key
    assert judge_table([8, 9], deleted) == {Kind.LOST}
    # A page that listens for `delete` would keep the key.
    no_delete = tell("message", offset=10, key="key-1", value=None)
    assert judge_table([8, 9, no_delete], deleted) == {Trouble.PROTOCOL}


def test_a_gap_over_what_was_deleted_only_later_is_found() -> None:
    """The log start at the end proves nothing of a gap that was told before."""
    log = build_log(STREAM_VIEW, [0, tell_gap(1, 4), 4, 7, 8, 9])
    gap_at = log.times[1]
    for log_start, kinds in ((4, set()), (3, {Kind.BOUNDS})):
        truth = build_truth(LOG, log_start=8)
        starts = ((gap_at - 1, 1), (gap_at + 1, log_start), (gap_at + 2, 8))
        truth.earlier_log_starts = [LogStart(at, LOG, start) for at, start in starts]
        assert {each.kind for each in judge_client(log, truth)} == kinds


def test_an_error_that_no_gateway_expected_is_found() -> None:
    """The reactive group failed and was run again; that showed in the log alone."""
    at = "gateway 1: 2026-11-28 03:52:17,900"
    traceback = ["gateway 1:     + Exception Group Traceback (most recent call last):"] * 2
    failed, resumed = f"{at} ERROR group bench failed; it is run again", f"{at} INFO FETCH resumed"
    unclosed = f"{at} ERROR worker 2 asyncio: Unclosed connection"
    (finding,) = judge_logs([resumed, failed, *traceback, resumed])
    assert finding.kind is Trouble.UNEXPECTED_ERROR and finding.text == failed
    assert [each.text for each in judge_logs([failed, resumed, unclosed])] == [unclosed]
    assert judge_logs([failed, resumed, "job: Traceback (most recent call last):"]) == []


def test_a_client_lacks_something_until_it_has_the_last_record_or_a_gap_over_it() -> None:
    truth = build_truth(LOG)
    assert truth.list_unwritten() == []
    assert Truth(StreamOracle(), {TRIMMED: [LOG]}).list_unwritten() == [LOG]
    assert "up to offset 9" in describe_lack(build_log(STREAM_VIEW, [0, 1]), truth)
    for steps in ([0, 1, tell_gap(2, 10)], [9]):
        assert not describe_lack(build_log(STREAM_VIEW, steps), truth)
