"""Find the checkpoint of a job, and the location of its next version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gateway.errors import PipelineError
from gateway.pipeline.checkpoint import versions

from . import lease
from .files import Files, open_files


def is_remote(root: str) -> bool:
    """Return whether a location is only reached through a session of Spark."""
    return versions.local_path(root) is None


def find_newest_version(root: str, job: str, spark: Any = None) -> int | None:
    return max(versions.list_versions(root, job, spark), default=None)


def open_current(root: str, job: str, spark: Any = None) -> Files:
    version = find_newest_version(root, job, spark)
    if version is None:
        raise PipelineError(f"{job} has no checkpoint in {root}; run it first")
    return open_files(versions.version_path(root, job, version), spark)


def open_next(root: str, job: str, spark: Any = None) -> tuple[Files, str]:
    """Return a temporary directory for a restored checkpoint, and the location of the next version.

    When the directory is renamed to that location, it becomes the version in use. Older versions
    are kept.
    """
    path = versions.version_path(root, job, (find_newest_version(root, job, spark) or 0) + 1)
    return open_files(f"{path}.restoring", spark), path


@contextlib.contextmanager
def require_idle(root: str, job: str, spark: Any = None, *, force: bool = False) -> Iterator[None]:
    """Hold the lease of a job, after verifying that the job does not run.

    Args:
        force: Whether to assume that the job does not run if that cannot be known.
    """
    version = find_newest_version(root, job, spark)
    if version is None:
        yield
        return
    path = versions.version_path(root, job, version)
    if is_remote(root) and not force and lease.is_active(open_files(path, spark)):
        raise PipelineError(
            f"{job} had a batch within the last {lease.ACTIVE_WINDOW_S / 60:.0f} minutes; end it, "
            "and wait so long, or say --force if you know that it has ended"
        )
    with lease.hold_lease(f"{root.rstrip('/')}/{job}", job):
        yield
