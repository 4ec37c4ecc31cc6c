"""What is told of a diagnosis, and the command that tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.query_progress import build_progress, build_stage, build_tasks
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.pipeline.doctor.diagnosis import diagnose, render_text, to_json
from gateway.pipeline.doctor.query_run import build_run
from gateway.pipeline.progress.records import ProgressFile, get_progress_path

SKEWED = [build_progress(each, tasks=build_tasks(build_stage(1.7, 0.2))) for each in range(8)]
HEALTHY = [build_progress(each, tasks=build_tasks(build_stage(1.7, 1.7))) for each in range(8)]


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", "doctor", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "saved.json"
    file.write_text(json.dumps(SKEWED))
    return file


def test_a_watermark_of_any_year_is_read():
    """A watermark beyond the year 9999 made the whole batch unreadable: Python has no such time."""
    times = {"max": "2026-11-23T00:00:00.000Z", "watermark": "+55840-11-08T22:13:20.000Z"}
    (batch,) = build_run([{**HEALTHY[0], "eventTime": times}]).batches
    assert batch.watermark == 1_700_000_000_000
    assert batch.newest_event_time == 1_795_392_000
    old = {"watermark": "-0001-01-01T00:00:00.000Z"}
    (batch,) = build_run([{**HEALTHY[0], "eventTime": old}]).batches
    assert batch.watermark is None


def test_says_the_cause_its_evidence_and_the_setting():
    text = render_text(diagnose(build_run(SKEWED)))
    assert "orders: 6 batches of 10,000 rows in 2.00 s (5,000 rows/s)" in text
    assert "1. skew: a few keys that most records have: 1.5 s (75%)" in text
    assert "one task takes 1.7 s, the other 1 0.2 s each" in text
    assert "change salt" in text


def test_says_that_a_job_is_healthy_and_what_was_not_judged():
    text = render_text(diagnose(build_run([{**each, "tasks": None} for each in HEALTHY])))
    assert "no cause found" in text
    assert (
        "not judged: skew, partitions-too-few, sink-slow, python, gc: needs times of tasks" in text
    )


def test_programs_get_the_same():
    told = to_json(diagnose(build_run(SKEWED)))
    assert json.loads(json.dumps(told)) == told
    assert told["causes"][0]["name"] == "skew" and told["causes"][0]["seconds"] == 1.5


class TestCommand:
    def test_ends_with_1_where_something_is_wrong(self, saved: Path):
        found = ask("--from", saved)
        assert found.exit_code == 1 and "1. skew" in found.output

    def test_prints_json(self, saved: Path):
        told = json.loads(ask("--from", saved, "--json").output)
        assert [cause["name"] for cause in told["causes"]] == ["skew"]

    def test_of_a_job_reads_what_it_has_told(self, tmp_path: Path):
        config = written(tmp_path)
        kept = ProgressFile(get_progress_path(str(tmp_path / "checkpoints"), "paid"))
        for each in HEALTHY:
            kept.append(each | {"name": "paid"})
        found = ask("paid", "-c", config)
        assert found.exit_code == 0 and found.output.startswith("paid: 6 batches")

    def test_of_a_job_that_never_ran_says_what_to_do(self, tmp_path: Path):
        found = ask("paid", "-c", written(tmp_path))
        assert found.exit_code == 1 and "run it on this machine" in found.output

    def test_of_no_job_names_the_nearest(self, tmp_path: Path):
        assert "paid" in ask("piad", "-c", written(tmp_path)).output

    def test_chooses_among_the_queries_of_a_file(self, saved: Path):
        assert ask("orders", "--from", saved).exit_code == 1
        missing = ask("clicks", "--from", saved)
        assert "no query 'clicks'; it has orders" in missing.output

    def test_names_what_is_asked_for(self, saved: Path):
        assert ask("--from", saved, "--above", "2s").exit_code == 0

    @pytest.mark.parametrize("wrong", [(), ("paid",), ("--above", "soon", "--from", __file__)])
    def test_wrong_usage_is_told(self, wrong: tuple[str, ...]):
        assert ask(*wrong).exit_code in (1, 2)


def written(directory: Path) -> Path:
    file = directory / "gateway.yaml"
    file.write_text(
        f"""
kafka: {{servers: ["localhost:9092"]}}
pipelines:
  checkpoints: {directory / "checkpoints"}
  jobs:
    - name: paid
      type: query
      tables: {{orders: {{topic: orders}}}}
      sql: SELECT * FROM orders
      to: {{topic: paid}}
"""
    )
    return file
