from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import fake_checkpoint

from gateway.errors import PipelineError
from gateway.pipeline.checkpoint import maintenance
from gateway.pipeline.checkpoint.files import LocalFiles


def test_one_at_a_time_holds_a_checkpoint(tmp_path: Path) -> None:
    with (
        maintenance.hold_lease(str(tmp_path), "sessions"),
        pytest.raises(PipelineError, match=f"sessions is run by process {os.getpid()}; end that"),
        maintenance.hold_lease(str(tmp_path), "sessions"),
    ):
        pass
    with maintenance.hold_lease(str(tmp_path), "sessions"):
        pass


def test_a_running_job_is_not_idle(tmp_path: Path) -> None:
    fake_checkpoint.write_checkpoint(tmp_path / "sessions/v1")
    with (
        maintenance.hold_lease(str(tmp_path / "sessions"), "sessions"),
        pytest.raises(PipelineError, match="is run by process"),
        maintenance.require_idle(str(tmp_path), "sessions", force=True),
    ):
        pass
    with maintenance.require_idle(str(tmp_path), "sessions"):
        pass


def test_a_log_of_five_minutes_ago_is_no_longer_fresh(tmp_path: Path) -> None:
    files = LocalFiles(fake_checkpoint.write_checkpoint(tmp_path))
    written = files.get_mtime("commits/5")
    assert maintenance.is_active(files, written + 1)
    assert not maintenance.is_active(files, written + maintenance.ACTIVE_WINDOW_S + 60)


def test_a_restored_checkpoint_is_the_next_version(tmp_path: Path) -> None:
    fake_checkpoint.write_checkpoint(tmp_path / "sessions/v1")
    fake_checkpoint.write_checkpoint(tmp_path / "sessions/v2")
    assert maintenance.open_current(str(tmp_path), "sessions").location == str(
        tmp_path / "sessions/v2"
    )
    target, path = maintenance.open_next(str(tmp_path), "sessions")
    assert target.location == f"{path}.restoring"
    assert path == str(tmp_path / "sessions/v3")


def test_a_job_without_a_checkpoint_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="has no checkpoint"):
        maintenance.open_current(str(tmp_path), "sessions")
