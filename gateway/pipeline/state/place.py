"""Where the checkpoint of a job is, and where the next version of it goes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gateway.errors import PipelineError
from gateway.pipeline.checkpoint import checkpoints

from . import lease
from .files import Files, files


def remote(root: str) -> bool:
    """Does it need a session of Spark to be reached?"""
    return checkpoints.local(root) is None


def newest(root: str, job: str, spark: Any = None) -> int | None:
    """The number of the version in use; None before the first run."""
    return max(checkpoints.found(root, job, spark), default=None)


def current(root: str, job: str, spark: Any = None) -> Files:
    """The checkpoint in use. Raises PipelineError: there is none."""
    version = newest(root, job, spark)
    if version is None:
        raise PipelineError(f"{job} has no checkpoint in {root}; run it first")
    return files(checkpoints.path(root, job, version), spark)


def following(root: str, job: str, spark: Any = None) -> tuple[Files, str]:
    """Where a restored checkpoint is put together, and what it becomes: the next version, which
    is then the one in use. Older ones stay."""
    path = checkpoints.path(root, job, (newest(root, job, spark) or 0) + 1)
    return files(f"{path}.restoring", spark), path


@contextlib.contextmanager
def idle(root: str, job: str, spark: Any = None, *, force: bool = False) -> Iterator[None]:
    """While this lasts the job does not run. force: believe that it does not, where that cannot
    be known. Raises PipelineError: it runs, or may."""
    version = newest(root, job, spark)
    if version is None:
        yield
        return
    path = checkpoints.path(root, job, version)
    if remote(root) and not force and lease.fresh(files(path, spark)):
        raise PipelineError(
            f"{job} had a batch within the last {lease.FRESH / 60:.0f} minutes; end it, and wait "
            "so long, or say --force if you know that it has ended"
        )
    with lease.held(f"{root.rstrip('/')}/{job}", job):
        yield
