"""The doctor on runs of Spark that had one thing wrong, or none, of support.doctor_scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.pipeline.doctor.diagnosis import CAUSE_NAMES, diagnose
from gateway.pipeline.doctor.query_run import build_run, load_records

OTHER = ".other"
RUNS = Path(__file__).parent / "runs"
SAVED = sorted(path.stem for path in RUNS.glob("*.jsonl"))
SICK = [name for name in SAVED if not name.startswith("healthy-")]
HEALTHY = [name for name in SAVED if name.startswith("healthy-")]


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_is_named_first_and_nothing_else_is(name: str):
    found = diagnose(build_run(load_records(RUNS / f"{name}.jsonl")))
    assert [cause.name for cause in found.causes] == [name.removesuffix(OTHER)]
    (cause,) = found.causes
    assert cause.evidence and cause.settings and cause.advice


@pytest.mark.parametrize("name", HEALTHY)
def test_of_a_healthy_run_nothing_is_named(name: str):
    found = diagnose(build_run(load_records(RUNS / f"{name}.jsonl")))
    assert not found.causes
    assert found.batches >= 5 and found.rows > 0


def test_there_are_runs_that_are_sick_and_healthy_ones():
    causes = {name.removesuffix(OTHER) for name in SICK}
    assert len(causes) >= 10 and causes <= set(CAUSE_NAMES)
    assert len(HEALTHY) >= 7


def test_some_are_of_other_sizes_than_those_the_limits_were_set_by():
    assert sum(name.endswith(OTHER) for name in SICK) >= 3
    assert sum(name.endswith(OTHER) for name in HEALTHY) >= 2


@pytest.mark.parametrize("name", SICK)
def test_what_needs_no_times_of_tasks_is_found_without_them(name: str, tmp_path: Path):
    """As from query.recentProgress, saved by anybody: what it cannot tell, it says."""
    told = load_records(RUNS / f"{name}.jsonl")
    bare = [{k: v for k, v in each.items() if k not in ("tasks", "notes")} for each in told]
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(bare))
    found = diagnose(build_run(load_records(saved), cores=2))
    names = [cause.name for cause in found.causes]
    cause = name.removesuffix(OTHER)
    assert names == [cause] or (not names and cause in found.unseen)
