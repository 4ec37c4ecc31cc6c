"""The file of a job's latest batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.pipeline.progress.records import (
    MAX_BATCHES,
    ProgressFile,
    get_progress_path,
    read_records,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return get_progress_path(str(tmp_path / "checkpoints"), "orders")


def test_is_beside_the_jobs_checkpoints(tmp_path: Path):
    assert get_progress_path(str(tmp_path), "orders") == tmp_path / "orders" / "progress.jsonl"
    assert (
        get_progress_path(f"file://{tmp_path}", "orders") == tmp_path / "orders" / "progress.jsonl"
    )


def test_of_checkpoints_elsewhere_is_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, other = (
        get_progress_path("s3a://one/jobs", "orders"),
        get_progress_path("s3a://other/jobs", "orders"),
    )
    assert one != other and one.is_relative_to(tmp_path)
    assert get_progress_path("s3a://one/jobs/", "orders") == one


def test_holds_the_latest_batches_whatever_was_written(path: Path):
    kept = ProgressFile(path)
    for each in range(5 * MAX_BATCHES):
        kept.append({"batchId": each})
        found = [record["batchId"] for record in read_records(path)]
        assert found[-1] == each and len(found) <= 2 * MAX_BATCHES
        assert found == list(range(found[0], each + 1))
    assert len(read_records(path)) >= MAX_BATCHES
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_new_process_goes_on_with_it(path: Path):
    ProgressFile(path).append({"batchId": 1})
    ProgressFile(path).append({"batchId": 2})
    assert [each["batchId"] for each in read_records(path)] == [1, 2]


def test_a_line_that_is_damaged_is_passed_over(path: Path):
    """The doctor ended with a traceback until a hundred batches had pushed it out."""
    path.parent.mkdir(parents=True)
    path.write_text('\0\0{"batchId": 0}\n{"batchId": 1}\n')
    assert [each["batchId"] for each in read_records(path)] == [1]


def test_a_line_that_is_being_written_is_passed_over(path: Path):
    ProgressFile(path).append({"batchId": 1})
    with path.open("a") as file:
        file.write('{"batchId": 2, "na')
    assert [each["batchId"] for each in read_records(path)] == [1]
    ProgressFile(path).append({"batchId": 3})  # who was killed there starts again
    assert [each["batchId"] for each in read_records(path)] == [1, 3]


def test_of_a_job_that_never_ran_nothing_is_read(path: Path):
    assert read_records(path) == []
