from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import paper

from gateway.errors import PipelineError
from gateway.pipeline.state import lease, place
from gateway.pipeline.state.files import Local


def test_one_at_a_time_holds_a_checkpoint(tmp_path: Path) -> None:
    with (
        lease.held(str(tmp_path), "sessions"),
        pytest.raises(PipelineError, match=f"sessions is run by process {os.getpid()}; end that"),
        lease.held(str(tmp_path), "sessions"),
    ):
        pass
    with lease.held(str(tmp_path), "sessions"):
        pass


def test_a_job_that_is_started_again_has_its_lease_already(tmp_path: Path) -> None:
    """Each try took it anew, and was refused by the one before, of the same process."""
    with lease.Lease(str(tmp_path), "sessions") as first:
        first.take()
        first.take()
        with (
            lease.Lease(str(tmp_path), "sessions") as other,
            pytest.raises(PipelineError, match="end that first"),
        ):
            other.take()
    with lease.Lease(str(tmp_path), "sessions") as other:
        other.take()


def test_a_running_job_is_not_idle(tmp_path: Path) -> None:
    paper.checkpoint(tmp_path / "sessions/v1")
    with (
        lease.held(str(tmp_path / "sessions"), "sessions"),
        pytest.raises(PipelineError, match="is run by process"),
        place.idle(str(tmp_path), "sessions", force=True),
    ):
        pass
    with place.idle(str(tmp_path), "sessions"):
        pass


def test_a_log_of_five_minutes_ago_is_no_longer_fresh(tmp_path: Path) -> None:
    files = Local(paper.checkpoint(tmp_path))
    written = files.touched("commits/5")
    assert lease.fresh(files, written + 1)
    assert not lease.fresh(files, written + lease.FRESH + 60)


def test_a_restored_checkpoint_is_the_next_version(tmp_path: Path) -> None:
    paper.checkpoint(tmp_path / "sessions/v1")
    paper.checkpoint(tmp_path / "sessions/v2")
    assert place.current(str(tmp_path), "sessions").where == str(tmp_path / "sessions/v2")
    target, path = place.following(str(tmp_path), "sessions")
    assert target.where == f"{path}.restoring"
    assert path == str(tmp_path / "sessions/v3")


def test_a_job_without_a_checkpoint_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="has no checkpoint"):
        place.current(str(tmp_path), "sessions")
