"""When late and undecodable records are looked for, in which batches; without Spark and Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway.config import Kafka, Settings
from gateway.config.sections.job import Input, Output
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import BatchOffsets, Sources
from gateway.pipeline.exactly_once import side_outputs as module
from gateway.pipeline.exactly_once.side_outputs import SCAN_INTERVAL_S, SideOutputs

INPUT = Input.model_validate({"topic": "clicks", "onInvalid": "skip", "onDataLoss": "fail"})


class Held:
    """A checkpoint that has the batches from `first` on. last: the one that is complete."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.last = -1

    def read_last_committed(self) -> int:
        return self.last

    def read_batch(self, number: int) -> BatchOffsets:
        if number < self.first:
            raise PipelineError(f"no offsets of batch {number}")
        return BatchOffsets(
            number, ({("clicks", 0): number},), ({("clicks", 0): number + 1},), 1000
        )


class Told:
    """A side that knows what was sent, and a ledger that knows how far was looked."""

    input = INPUT

    def __init__(self) -> None:
        self.looked: list[list[int]] = []
        self.sent, self.entry = -1, {}  # type: int, dict[str, Any]

    def read_last_batch(self, kind: str, epoch: int) -> int:
        return self.sent

    def write_late(self, batches: Sequence[BatchOffsets], _: Any) -> int:
        self.looked += [[each.number for each in batches]] if batches else []
        return 0

    def read_values(self, keys: Sequence[str]) -> Mapping[str, Any]:
        return {key: self.entry for key in keys if self.entry}


class Process:
    """One that runs the batches of a query. counts: late rows by batch, as progress says."""

    def __init__(self, told: Told, counts: Mapping[int, int] | None = None, first: int = 0) -> None:
        self.now = 0.0
        self.held = Held(first)
        self.beside = SideOutputs(
            None,  # type: ignore[arg-type]
            "job",
            "query",
            {"from": INPUT},
            Output(topic="out"),
            Settings(kafka=Kafka(servers=["localhost:9092"])),
            self.held,  # type: ignore[arg-type]
            sources=Sources(("from",), ("from",)),
            late_filters={"from": lambda rows, held: rows},
            get_counts=lambda epoch: {"late": (counts or {}).get(epoch, 0)},
            clock=lambda: self.now,
        )
        self.beside.__dict__["ledger"] = told
        self.beside.side_outputs = {"from": told}  # type: ignore[dict-item]

    def batches(self, numbers: Sequence[int], seconds: float = 1.0) -> None:
        for number in numbers:
            self.beside.begin_batch(number)
            self.now += seconds
            self.held.last = number


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(self: SideOutputs, epoch: int) -> None:
        self.ledger.entry = {"to": epoch}  # type: ignore[attr-defined]

    monkeypatch.setattr(module.SideOutputs, "_store_scan_position", told)


def test_several_batches_are_looked_at_together_from_the_first_with_any_to_the_last():
    told = Told()
    Process(told, {2: 1, 3: 0, 5: 4, 8: 0}).batches(range(15))
    assert told.looked == [[2, 3, 4, 5]]
    assert told.entry == {"to": SCAN_INTERVAL_S - 1}


def test_long_batches_are_looked_at_one_by_one_and_those_without_any_not_at_all():
    told = Told()
    Process(told, {0: 1, 2: 1}).batches(range(5), seconds=SCAN_INTERVAL_S)
    assert told.looked == [[0], [2]]


def test_the_next_process_looks_at_what_is_left_before_its_first_batch():
    told = Told()
    Process(told, {1: 1}).batches(range(5))
    assert told.looked == []
    Process(told).batches([5])
    assert told.looked == [[0, 1, 2, 3, 4]]
    assert told.entry == {"to": 4}


def test_what_is_left_at_the_end_of_all_there_was_is_looked_at_then():
    """It was left to the next process, and that one looked only if there were new records."""
    told = Told()
    process = Process(told, {1: 1, 3: 1})
    process.batches(range(4))
    process.beside.finish()
    assert told.looked == [[1, 2, 3]]
    assert told.entry == {"to": 3}
    process.beside.finish()
    assert told.looked == [[1, 2, 3]]


def test_a_process_without_new_records_looks_at_what_the_one_before_left():
    told = Told()
    Process(told, {1: 1}).batches(range(4))
    process = Process(told)
    process.held.last = 3
    process.beside.finish()
    assert told.looked == [[0, 1, 2, 3]]


def test_what_was_sent_before_a_crash_is_not_looked_at_again():
    told = Told()
    Process(told).batches(range(5))
    told.sent = 2  # and then it crashed: how far was looked is not told
    Process(told).batches([5])
    assert told.looked == [[3, 4]]


def test_a_batch_that_is_run_again_is_looked_at_once():
    told = Told()
    Process(told).batches(range(4))
    Process(told).batches([3])
    Process(told).batches([3, 4])
    assert told.looked == [[0, 1, 2]]


def test_batches_that_spark_has_forgotten_are_left():
    told = Told()
    Process(told).batches(range(2))
    Process(told, first=7).batches([9])
    assert told.looked == [[7, 8]]


def test_without_a_word_in_the_ledger_it_is_the_last_batch():
    told = Told()
    Process(told).batches([40])
    assert told.looked == [[39]]
