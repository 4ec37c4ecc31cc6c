"""The doctor on runs of Spark that had one thing wrong, or none; bench/pipeline/plant made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.pipeline.doctor.opened import opened
from gateway.pipeline.doctor.ranking import NAMES, diagnose
from gateway.pipeline.doctor.reading import run

RUNS = Path(__file__).parent / "runs"
SAVED = sorted(path.stem for path in RUNS.glob("*.jsonl"))
SICK = [name for name in SAVED if not name.startswith("healthy-")]
HEALTHY = [name for name in SAVED if name.startswith("healthy-")]


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_is_named_first_and_nothing_else_is(name: str):
    found = diagnose(run(opened(RUNS / f"{name}.jsonl")))
    assert [cause.name for cause in found.causes] == [name]
    (cause,) = found.causes
    assert cause.evidence and cause.settings and cause.advice


@pytest.mark.parametrize("name", HEALTHY)
def test_of_a_healthy_run_nothing_is_named(name: str):
    found = diagnose(run(opened(RUNS / f"{name}.jsonl")))
    assert not found.causes
    assert found.batches >= 5 and found.rows > 0


def test_there_are_runs_that_are_sick_and_healthy_ones():
    assert len(SICK) >= 7 and set(SICK) <= set(NAMES)
    assert len(HEALTHY) >= 5


@pytest.mark.parametrize("name", SICK)
def test_what_needs_no_times_of_tasks_is_found_without_them(name: str, tmp_path: Path):
    """As from query.recentProgress, saved by anybody: what it cannot tell, it says."""
    told = opened(RUNS / f"{name}.jsonl")
    bare = [{k: v for k, v in each.items() if k not in ("tasks", "notes")} for each in told]
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(bare))
    found = diagnose(run(opened(saved), cores=2))
    names = [cause.name for cause in found.causes]
    assert names == [name] or (not names and name in found.unseen)
