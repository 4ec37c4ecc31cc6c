"""The file of a job's latest batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.pipeline.progress.progress import KEPT, Kept, note, noted, place, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return place(str(tmp_path / "checkpoints"), "orders")


def test_is_beside_the_jobs_checkpoints(tmp_path: Path):
    assert place(str(tmp_path), "orders") == tmp_path / "orders" / "progress.jsonl"
    assert place(f"file://{tmp_path}", "orders") == tmp_path / "orders" / "progress.jsonl"


def test_of_checkpoints_elsewhere_is_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, other = place("s3a://one/jobs", "orders"), place("s3a://other/jobs", "orders")
    assert one != other and one.is_relative_to(tmp_path)
    assert place("s3a://one/jobs/", "orders") == one


def test_holds_the_latest_batches_whatever_was_written(path: Path):
    kept = Kept(path)
    for each in range(5 * KEPT):
        kept.add({"batchId": each})
        found = [record["batchId"] for record in read(path)]
        assert found[-1] == each and len(found) <= 2 * KEPT
        assert found == list(range(found[0], each + 1))
    assert len(read(path)) >= KEPT
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_new_process_goes_on_with_it(path: Path):
    Kept(path).add({"batchId": 1})
    Kept(path).add({"batchId": 2})
    assert [each["batchId"] for each in read(path)] == [1, 2]


def test_a_line_that_is_being_written_is_passed_over(path: Path):
    Kept(path).add({"batchId": 1})
    with path.open("a") as file:
        file.write('{"batchId": 2, "na')
    assert [each["batchId"] for each in read(path)] == [1]
    Kept(path).add({"batchId": 3})  # who was killed there starts again
    assert [each["batchId"] for each in read(path)] == [1, 3]


def test_of_a_job_that_never_ran_nothing_is_read(path: Path):
    assert read(path) == []


def test_what_parts_of_a_job_note_is_added_up_and_told_once():
    note("id", 3, sink=1.0)
    note("id", 3, sink=0.5)
    note("id", 4, sink=9.0)
    assert noted("id", "orders", 3) == {"sink": 1.5}
    assert noted("id", "orders", 3) == {}
    note("orders", 5, sink=1.0)
    assert noted("id", "orders", 5) == {"sink": 1.0}
