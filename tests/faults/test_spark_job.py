"""The rows of the Spark job are judged: planted mistakes are found."""

from __future__ import annotations

import json

from support.oracle import StreamOracle
from support.stream_check import AckedRecord, FindingKind

from bench.faults.spark_job import ROWS, count_lacking_rows, judge_rows
from bench.faults.truth import Truth
from bench.faults.views import LEDGER
from gateway.core.log.record import TopicPartition

SOURCE, OUTPUT = TopicPartition(LEDGER, 0), TopicPartition(ROWS.name, 0)
NUMBERS = (1, 2, 3, 3)  # a producer that is not idempotent writes a record twice
ABORTED = 9


def build_records(tp: TopicPartition, *numbers: int) -> list[AckedRecord]:
    values = [json.dumps({"n": number, "lane": "red"}).encode() for number in numbers]
    return [AckedRecord(tp, offset, b"key", value) for offset, value in enumerate(values)]


def build_truth() -> Truth:
    oracle, records = StreamOracle(), build_records(SOURCE, *NUMBERS)
    oracle.add_acked(records)
    oracle.add_aborted(each.value or b"" for each in build_records(SOURCE, ABORTED))
    return Truth(oracle, {LEDGER: [SOURCE]}, {}, records)


def judge(*numbers: int) -> set[str]:
    return {each.kind for each in judge_rows(build_records(OUTPUT, *numbers), build_truth())}


def test_one_row_for_each_record_of_the_log_is_right_and_what_else_is_planted_is_found() -> None:
    assert judge(3, 1, 3, 2) == set()
    assert judge(1, 2, 3) == {FindingKind.LOST}
    assert judge(1, 1, 2, 3, 3) == {FindingKind.DUPLICATE}
    assert judge(1, 2, 3, 3, ABORTED) == {FindingKind.ABORTED}
    assert judge(1, 2, 3, 3, 77) == {FindingKind.PHANTOM}


def test_rows_that_are_still_to_come_are_counted() -> None:
    assert count_lacking_rows(build_records(OUTPUT, 1, 3), build_truth()) == 2
    assert count_lacking_rows(build_records(OUTPUT, *NUMBERS), build_truth()) == 0
