"""Files that progress is read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cramjam
import pytest
from support.query_progress import build_progress

from gateway.errors import PipelineError
from gateway.pipeline.doctor.progress_records import group_by_query, load_records
from gateway.pipeline.doctor.query_run import build_run

RECORDS = [build_progress(each) for each in range(4)]

Events = list[dict[str, Any]]


def ids(records: list[dict[str, Any]]) -> list[int]:
    return [each["batchId"] for each in records]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORDS),
        json.dumps(RECORDS, indent=2),
        "\n".join(map(json.dumps, RECORDS)),
        "\n".join(json.dumps({"progress": each}) for each in RECORDS) + "\n",
        "\n".join(map(json.dumps, RECORDS)) + '\n{"batchId": 4, "dura',
    ],
    ids=["a list", "a list for people", "lines", "events of a listener", "cut off"],
)
def test_saved_progress_is_read(tmp_path: Path, text: str):
    saved = tmp_path / "saved"
    saved.write_text(text)
    assert ids(load_records(saved)) == [0, 1, 2, 3]


def test_one_object_is_one_batch(tmp_path: Path):
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(RECORDS[0]))
    assert ids(load_records(saved)) == [0]


@pytest.mark.parametrize("text", ["{}", "[]", "", "no json\nat all", '{"spark": "yes"}'])
def test_what_is_no_progress_is_refused(tmp_path: Path, text: str):
    saved = tmp_path / "saved.json"
    saved.write_text(text)
    with pytest.raises(PipelineError, match=r"saved\.json"):
        load_records(saved)


def test_several_queries_are_told_apart():
    found = group_by_query(
        [*RECORDS, build_progress(9) | {"name": "clicks"}, build_progress(1) | {"name": None}]
    )
    assert list(found) == ["orders", "clicks", "0b1c"]
    assert ids(found["orders"]) == [0, 1, 2, 3]


def events() -> Events:
    """Batch 3 of a query: a stage that reads, one of two tasks that keeps state."""
    properties = {"sql.streaming.queryId": "0b1c", "streaming.sql.batchId": "3"}
    of_job = {"Job ID": 5, "Stage IDs": [7, 8], "Properties": properties}
    return [
        {"Event": "SparkListenerLogStart", "Spark Version": "4.2.0"},
        executor("1"),
        executor("2"),
        {"Event": "SparkListenerJobStart", "Submission Time": 1000} | of_job,
        ended(7, 1000, 1500, read=600, wrote=90, python="300"),
        ended(8, 1500, 2000, shuffled=100),
        ended(8, 1500, 4500, shuffled=500, gc=40),
        ended(8, 1500, 9500, shuffled=500, reason="ExceptionFailure"),
        {"Event": "SparkListenerJobEnd", "Job ID": 5, "Completion Time": 4600},
        {
            "Event": "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent",
            "progress": build_progress(3),
        },
    ]


def executor(name: str) -> dict[str, Any]:
    return {
        "Event": "SparkListenerExecutorAdded", "Executor ID": name,
        "Executor Info": {"Host": "a", "Total Cores": 4},
    }  # fmt: skip


def ended(
    stage: int, began: int, over: int, *, read: int = 0, shuffled: int = 0, wrote: int = 0,
    gc: int = 0, python: str | None = None, reason: str = "Success",
) -> dict[str, Any]:  # fmt: skip
    spent = [{"ID": 1, "Name": "time to execute Python code", "Update": python}] if python else []
    return {
        "Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task End Reason": {"Reason": reason},
        "Task Info": {"Launch Time": began, "Finish Time": over, "Accumulables": spent},
        "Task Metrics": {
            "Executor Run Time": over - began, "Executor CPU Time": (over - began) * 1_000_000,
            "JVM GC Time": gc, "Input Metrics": {"Records Read": read},
            "Shuffle Read Metrics": {"Total Records Read": shuffled},
            "Shuffle Write Metrics": {"Shuffle Bytes Written": wrote},
        },
    }  # fmt: skip


def frames(told: Events) -> bytes:
    """One each: Spark closes one with each flush."""
    lines = ((json.dumps(each) + "\n").encode() for each in told)
    return b"".join(bytes(cramjam.zstd.compress(line)) for line in lines)


@pytest.mark.night
class TestEventLog:
    def test_has_times_of_tasks_beside_progress(self, tmp_path: Path):
        log = tmp_path / "app-1"
        log.write_text("\n".join(map(json.dumps, events())))
        (batch,) = build_run(load_records(log)).batches
        assert build_run(load_records(log)).cores == 8
        assert batch.tasks is not None
        assert batch.tasks.job_seconds == pytest.approx(3.6)
        assert batch.tasks.python_seconds == pytest.approx(0.3)
        reads, keeps = batch.tasks.stages
        assert (reads.tasks, reads.rows, reads.shuffles, reads.last) == (1, 600, False, False)
        assert (keeps.tasks, keeps.most_rows, keeps.shuffles, keeps.last) == (2, 500, True, True)
        assert keeps.slowest == pytest.approx(3.0) and keeps.mean_other_seconds == pytest.approx(
            0.5
        )
        assert keeps.gc == pytest.approx(0.04)

    def test_may_be_rolled_and_compressed(self, tmp_path: Path):
        lines = [json.dumps(each) + "\n" for each in events()]
        log = tmp_path / "eventlog_v2_app-1"
        log.mkdir()
        (log / "appstatus_app-1").touch()
        for at, part in ((2, lines[:5]), (10, lines[5:])):
            data = cramjam.zstd.compress("".join(part).encode())
            (log / f"events_{at}_app-1.zstd").write_bytes(bytes(data))
        (batch,) = build_run(load_records(log)).batches
        assert batch.tasks is not None and len(batch.tasks.stages) == 2

    def test_that_is_being_written_is_read_as_far_as_it_goes(self, tmp_path, caplog):
        """The last frame of a compressed one is not closed yet."""
        more = [*events(), {"Event": "SparkListenerJobStart", "Job ID": 6}]
        log = tmp_path / "app-1.zstd.inprogress"
        log.write_bytes(frames(more)[:-5])
        (batch,) = build_run(load_records(log)).batches
        assert batch.tasks is not None and len(batch.tasks.stages) == 2
        assert "still being written" in caplog.text

    def test_whose_first_frame_is_not_complete_asks_for_patience(self, tmp_path: Path):
        log = tmp_path / "app-1.zstd.inprogress"
        log.write_bytes(frames(events()[:1])[:-5])
        with pytest.raises(PipelineError, match=r"inprogress holds nothing complete.*try again"):
            load_records(log)

    @pytest.mark.parametrize("where", ["in the middle of the log", "in a frame"])
    def test_that_is_damaged_is_refused(self, tmp_path: Path, where: str):
        log = tmp_path / "eventlog_v2_app-1"
        log.mkdir()
        whole = frames(events())
        broken = whole[:-5] if where == "in the middle of the log" else whole[:9] + b"?" * 40
        (log / "events_1_app-1.zstd").write_bytes(broken)
        (log / "events_2_app-1.zstd").write_bytes(whole)
        with pytest.raises(PipelineError, match=r"events_1_app-1\.zstd is damaged"):
            load_records(log)

    def test_of_other_work_than_queries_is_refused(self, tmp_path: Path):
        log = tmp_path / "app-1"
        log.write_text("\n".join(map(json.dumps, events()[:-1])))
        with pytest.raises(PipelineError, match="holds no progress"):
            load_records(log)
