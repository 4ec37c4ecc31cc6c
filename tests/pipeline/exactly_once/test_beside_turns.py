"""When late and undecodable records are looked for, in which batches; without Spark and Kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config import Kafka, Settings
from gateway.config.sections.job import Input, Output
from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline.checkpoint.checkpoint import SCANNED_FILE, BatchOffsets, Sources
from gateway.pipeline.checkpoint.files import LocalFiles
from gateway.pipeline.exactly_once.gaps import InputGap
from gateway.pipeline.exactly_once.side_outputs import (
    SCAN_INTERVAL_S,
    BatchCounts,
    SideOutputs,
    create_batch_counter,
)

READ = {"topic": "clicks", "onInvalid": "skip", "onDataLoss": "fail"}


class Held:
    """A checkpoint that has the batches from `first` on. last: the one that is complete."""

    def __init__(self, files: LocalFiles, first: int = 0) -> None:
        self.files, self.first = files, first
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
    """What was looked at and sent by all processes, which share a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.files = LocalFiles(directory)
        self.looked: list[list[int]] = []
        self.by: list[tuple[Input, Output]] = []  # the settings by which it was
        self.sent = -1
        self.deleted: list[InputGap] = []

    @property
    def scanned(self) -> int:
        return int(json.loads(self.files.read(SCANNED_FILE))["batch"])


class Side:
    kind, topic = "late", "clicks.late"

    def __init__(self, told: Told, job_input: Input, output: Output) -> None:
        self.told, self.input, self.output, self.input_name = told, job_input, output, "from"

    def read_last_batch(self, epoch: int) -> int:
        return self.told.sent

    def write(self, batches: Sequence[BatchOffsets]) -> int:
        if batches:
            self.told.looked.append([each.number for each in batches])
            self.told.by.append((self.input, self.output))
        return 0

    def find_deleted(self, batches: Sequence[BatchOffsets]) -> list[InputGap]:
        return self.told.deleted if batches else []


class Process:
    """One that runs the batches of a query. counts: late rows by batch, as progress says."""

    def __init__(
        self,
        told: Told,
        counts: Mapping[int, int] | None = None,
        first: int = 0,
        to: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.now = 0.0
        self.held = Held(told.files, first)
        servers = {name: {"servers": ["localhost:9092"]} for name in ("eu", "us")}
        self.beside = SideOutputs(
            None,  # type: ignore[arg-type]
            "job",
            "query",
            {"from": Input.model_validate({"kafka": "eu", **READ, **settings})},
            Output.model_validate({"topic": "out", "kafka": "eu", **(to or {})}),
            Settings(kafka={name: Kafka(**each) for name, each in servers.items()}),
            self.held,  # type: ignore[arg-type]
            sources=Sources(("from",), ("from",)),
            late_filters={"from": lambda rows, held: rows},
            get_counts=lambda epoch: BatchCounts((counts or {}).get(epoch, 0), {"from": 0}),
            clock=lambda: self.now,
            create_side_output=lambda _spark, _query, _name, job_input, _cluster, output, *_: Side(  # type: ignore[arg-type, return-value]
                told, job_input, output
            ),
        )

    def batches(self, numbers: Sequence[int], seconds: float = 1.0) -> None:
        for number in numbers:
            with self.beside.enter_batch(number):
                self.now += seconds
            self.held.last = number


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_several_batches_are_looked_at_together_from_the_first_with_any_to_the_last(told):
    Process(told, {2: 1, 3: 0, 5: 4, 8: 0}).batches(range(15))
    assert told.looked == [[2, 3, 4, 5]]
    assert told.scanned == SCAN_INTERVAL_S - 1


def test_long_batches_are_looked_at_one_by_one_and_those_without_any_not_at_all(told):
    Process(told, {0: 1, 2: 1}).batches(range(5), seconds=SCAN_INTERVAL_S)
    assert told.looked == [[0], [2]]


def test_the_next_process_looks_at_what_is_left_before_its_first_batch(told):
    Process(told, {1: 1}).batches(range(5))
    assert told.looked == []
    Process(told).batches([5])
    assert told.looked == [[0, 1, 2, 3, 4]]
    assert told.scanned == 4


def test_a_batch_that_begins_before_an_idle_scan_is_scanned_when_it_has_ended(told):
    """The scan that came too late forgot it: its late rows waited for the next batch."""
    process = Process(told, {1: 7})
    process.batches([0])
    process.now += SCAN_INTERVAL_S
    with process.beside.enter_batch(1):
        process.now += SCAN_INTERVAL_S
        process.beside.scan_idle()
    process.held.last = 1
    process.now += SCAN_INTERVAL_S
    process.beside.scan_idle()
    assert (told.looked, told.scanned) == ([[1]], 1)


def test_what_is_left_at_the_end_of_all_there_was_is_looked_at_then(told):
    """It was left to the next process, and that one looked only if there were new records."""
    process = Process(told, {1: 1, 3: 1})
    process.batches(range(4))
    process.beside.finish()
    assert told.looked == [[1, 2, 3]]
    assert told.scanned == 3
    process.beside.finish()
    assert told.looked == [[1, 2, 3]]


def test_a_process_leaves_the_batches_of_one_that_began_later_to_it(told, caplog):
    """As it ended, it wrote their dead letters: they came twice, or the other process failed."""
    older, waiting = Process(told, {2: 1}), Process(told)
    older.batches(range(3))
    waiting.held.last = 2
    waiting.beside.finish()
    told.looked.clear()
    newer = Process(told, {4: 1})
    newer.batches([3, 4])
    for process in (older, waiting):
        process.held.last = 4
        process.beside.finish()
    assert told.looked == []
    assert caplog.text.count("another process has written batch 4") == 2
    newer.beside.finish()
    assert told.looked == [[4]]


def test_a_process_without_new_records_looks_at_what_the_one_before_left(told):
    Process(told, {1: 1}).batches(range(4))
    process = Process(told)
    process.held.last = 3
    process.beside.finish()
    assert told.looked == [[0, 1, 2, 3]]


def test_what_was_sent_before_a_crash_is_not_looked_at_again(told):
    Process(told).batches(range(5))
    told.sent = 2  # and then it crashed: how far was looked is not stored
    Process(told).batches([5])
    assert told.looked == [[3, 4]]


def test_a_batch_that_is_run_again_is_looked_at_once(told):
    Process(told).batches(range(4))
    Process(told).batches([3])
    Process(told).batches([3, 4])
    assert told.looked == [[0, 1, 2]]


def test_batches_that_spark_has_forgotten_are_left(told):
    Process(told).batches(range(2))
    Process(told, first=7).batches([9])
    assert told.looked == [[7, 8]]


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"value": {"fields": {"n": "string"}}}, "out"),
        ({"late": "skip"}, "out"),
        ({"to": {"topic": "other"}}, "other"),
        ({"to": {"kafka": "us"}}, "out"),
    ],
)
def test_batches_of_an_earlier_process_are_judged_by_its_settings(
    told: Told, changes: dict[str, Any], output: str
):
    """A record that was invalid by the types before, and would be a row by those now, was nowhere.
    And another output has no entries: some dead letters came twice, others not at all."""
    before = {"value": {"fields": {"n": "int"}}}
    Process(told, **before).batches(range(3))
    process = Process(told, {3: 1}, **{**before, **changes})
    process.batches([3, 4])
    assert told.looked[0] == [0, 1, 2]
    by, to = told.by[0]
    assert (by.value.fields, by.late, to.topic, to.kafka) == ({"n": "int"}, "topic", "out", "eu")
    process.beside.finish()
    if "late" not in changes:
        assert told.looked[1:] == [[3]]
        assert told.by[1][1].topic == output
    assert told.scanned == 4


def test_what_was_left_out_on_purpose_is_not_looked_at_when_that_changes(told):
    Process(told, late="skip").batches(range(3))
    Process(told).batches([3])
    assert told.looked == []
    Process(told).batches([4])
    assert told.looked == [[3]]


def test_a_job_without_side_outputs_does_not_look_for_what_an_earlier_process_left(told, caplog):
    """After a crash, a warning said that records are left out which such a job writes nowhere."""
    Process(told, late="skip").batches(range(3))
    Process(told, first=7, late="skip").batches([9])
    assert not caplog.messages
    assert told.scanned == 8


@pytest.mark.parametrize("kind", ["cluster", "catalog"])
def test_settings_whose_cluster_or_catalog_is_gone_are_named(told, kind):
    """A catalog that was renamed ended the job with a KeyError."""
    Process(told).batches(range(3))
    state = json.loads(told.files.read(SCANNED_FILE))
    if kind == "cluster":
        state["output"]["kafka"] = "gone"
    else:
        state["inputs"]["from"]["value"] = {"model": "avro", "catalog": "gone"}
    told.files.write(SCANNED_FILE, json.dumps(state).encode())
    with pytest.raises(CheckpointRefused, match=rf"no {kind} 'gone'.* remove scanned\.json"):
        Process(told).batches([3])


def test_invalid_records_of_an_input_named_late_are_counted():
    """The count of late rows replaced theirs, so that no batch was scanned for them."""
    query = SimpleNamespace(
        lastProgress={
            "batchId": 3,
            "durationMs": {"addBatch": 5},
            "stateOperators": [{"numRowsDroppedByWatermark": 1}],
            "observedMetrics": {
                "late": {"rows": 9, "invalid": 4},
                "read late": {"rows": 9},
                "quality": {"invalid": 2},  # of the program
            },
        }
    )
    assert create_batch_counter(lambda: query, ["late"])(3) == BatchCounts(1, {"late": 4})


def test_a_trigger_without_records_says_nothing_of_the_batch_of_its_number():
    """Until the progress of the batch came, it had no dead letters: a process that ended then took
    it for scanned."""
    idle = {"batchId": 3, "durationMs": {"latestOffset": 1}, "stateOperators": []}
    query = SimpleNamespace(lastProgress={**idle, "observedMetrics": {}})
    assert create_batch_counter(lambda: query, ["from"])(3) is None


def test_records_that_were_deleted_before_the_scan_are_in_the_log(told, caplog):
    """Late and invalid records among them were lost without a word."""
    told.deleted = [InputGap("clicks", 0, 1, 3)]
    Process(told, {1: 1}).batches(range(3), seconds=SCAN_INTERVAL_S)
    (message,) = caplog.messages
    assert "deleted before" in message and "'from': 1, 'to': 3" in message
