"""What the back end of the reactive group accepted is judged: planted mistakes are found."""

from __future__ import annotations

import json
from collections.abc import Iterable

from support.oracle import StreamOracle
from support.reactive import BACKEND_TIMEOUT_S
from support.stream_check import AckedRecord, FindingKind

from bench.faults.reactive import (
    MAX_RECORDS_AGAIN,
    Delivery,
    count_again,
    judge_group,
    list_lacking,
    parse_delivery,
)
from bench.faults.truth import Truth
from bench.faults.views import LEDGER, TYPED
from gateway.core.log.record import TopicPartition

TP = TopicPartition(LEDGER, 0)
COUNT = 3 * MAX_RECORDS_AGAIN
ABORTED = AckedRecord(TP, COUNT + 1, b"key", b'{"n":-1}')


def build_record(offset: int, run: int = 0) -> AckedRecord:
    return AckedRecord(TP, offset, b"key", json.dumps({"n": offset, "run": run}).encode())


RECORDS = [build_record(offset) for offset in range(COUNT)]


def build_truth(log_start: int = 0) -> Truth:
    oracle = StreamOracle()
    oracle.add_acked(RECORDS)
    oracle.add_aborted([ABORTED.value or b""])
    return Truth(oracle, {LEDGER: [TP]}, {TP: log_start}, RECORDS)


def deliver(records: Iterable[AckedRecord]) -> list[Delivery]:
    return [Delivery(0.0, each) for each in records]


def judge(records: Iterable[AckedRecord], truth: Truth | None = None) -> set[str]:
    return {each.kind for each in judge_group(deliver(records), truth or build_truth())}


def test_two_batches_may_come_again_and_are_counted() -> None:
    middle = COUNT // 2
    again = [*RECORDS[:middle], *RECORDS[middle - MAX_RECORDS_AGAIN :]]
    assert judge(again) == set()
    assert count_again(deliver(again)) == MAX_RECORDS_AGAIN
    assert judge([*RECORDS, *RECORDS[-MAX_RECORDS_AGAIN - 1 :]]) == {FindingKind.DUPLICATE}


def test_what_is_planted_is_found() -> None:
    other = RECORDS[3]._replace(tp=TopicPartition(TYPED, 0))
    assert judge(RECORDS[1:]) == {FindingKind.LOST}
    assert list_lacking(deliver(RECORDS[1:]), build_truth()) == RECORDS[:1]
    assert judge(RECORDS[1:], build_truth(log_start=1)) == set()  # Kafka deleted it
    assert judge([RECORDS[1], RECORDS[0], *RECORDS[2:]]) == {FindingKind.REORDERED}
    assert judge([*RECORDS, ABORTED]) == {FindingKind.ABORTED}
    assert judge([*RECORDS, build_record(COUNT, run=1)]) == {FindingKind.PHANTOM}
    assert judge([*RECORDS, RECORDS[3]._replace(key=b"other")]) == {FindingKind.ALTERED}
    assert judge([*RECORDS, other]) == {FindingKind.OUTSIDE}


def test_what_comes_again_without_a_cause_is_found() -> None:
    """A batch that was answered was sent again, now and then, which nobody noticed."""

    def judge_times(*times: float) -> set[str]:
        last = [Delivery(at, RECORDS[-1]) for at in times]
        found = judge_group([*deliver(RECORDS[:-1]), *last], build_truth(), calm_at=10.0)
        return {each.kind for each in found}

    assert judge_times(11.0) == set()
    assert judge_times(11.0, 11.5) == {FindingKind.DUPLICATE}
    assert judge_times(9.0, 9.5) == set()  # some fault may be the cause
    assert judge_times(11.0, 11.5 + BACKEND_TIMEOUT_S) == set()  # the answer may have been too late


def test_a_record_with_the_timestamp_or_headers_of_another_one_is_found() -> None:
    value = json.dumps({"n": 0, "lane": "red", "at": 1000})
    place = {"topic": LEDGER, "partition": 0, "offset": 0, "key": "key", "value": value}
    whole = {**place, "timestamp": 1000, "headers": {"lane": "red"}}
    assert not parse_delivery(whole, 0.0).other_metadata
    for other in ({"timestamp": 0}, {"headers": {"lane": "blue"}}, {"headers": {}}):
        delivery = parse_delivery({**whole, **other}, 0.0)
        truth = build_truth()
        truth.oracle.add_acked([delivery.record])
        found = judge_group([delivery, *deliver(RECORDS[1:])], truth)
        assert FindingKind.ALTERED in {each.kind for each in found}


def test_a_log_that_begins_anew_is_read_from_its_start() -> None:
    truth = build_truth()
    truth.oracle.mark_recreated(LEDGER)
    new = [build_record(offset, run=1) for offset in range(5)]
    truth.oracle.add_acked(new)
    truth.read_records = new
    assert judge([*RECORDS, *new], truth) == set()
    assert judge([*RECORDS, *new[1:]], truth) == {FindingKind.LOST}
