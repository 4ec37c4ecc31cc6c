"""What jobs do: functions from tables to a table, the same in batch and as streams.

Each module has `build(settings, tables) -> DataFrame`. `tables` are the inputs by their name (as
`inputs` says them), watermarked where they are streams; the result's columns are what the job's
settings promise. Nothing in here reads, writes, or knows which of the two it is in.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job, Output


def get_inputs(job: Job) -> Mapping[str, Input]:
    """The topics that a job reads as streams, by the names its function knows them by."""
    match job:
        case config.Join():
            return {"left": job.left, "right": job.right}
        case config.Query():
            return job.tables
        case config.Sessions() | config.Aggregate() | config.Enrich() | config.Load():
            return {"from": job.from_}
    raise TypeError(type(job).__name__)


def get_output(job: Job) -> Output | None:
    """Where its rows go; None of a job that writes no topic."""
    return None if isinstance(job, config.Load) else getattr(job, "to", None)
