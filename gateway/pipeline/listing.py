"""List the jobs of a configuration and how far their checkpoints are, without Spark and Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.config.sections.job import Job
from gateway.config.sections.pipelines import Load, Pipelines
from gateway.config.types.units import format_duration
from gateway.pipeline.checkpoint import versions

from .jobs import get_inputs, get_output


class JobRow(NamedTuple):
    """A row of `gateway pipeline list`: a job, and its settings as text.

    Attributes:
        to: The topic that it writes, or the prefix of the keys that it loads.
        state: The version of its checkpoint and the last batch; the directory of the checkpoints if
            that is not local, because it is not read.
    """

    name: str
    kind: str
    from_: str
    to: str
    trigger: str
    guarantee: str
    state: str


def list_jobs(pipelines: Pipelines) -> list[JobRow]:
    return [_build_row(pipelines, job) for job in pipelines.jobs]


def format_table(rows: Sequence[JobRow]) -> str:
    header = [name.rstrip("_").upper() for name in JobRow._fields]
    lines = [header, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in padded)


def _build_row(pipelines: Pipelines, job: Job) -> JobRow:
    to, guarantee = get_target(job)
    trigger = job.trigger if isinstance(job.trigger, str) else format_duration(job.trigger)
    topics = ", ".join(dict.fromkeys(each.topic for each in get_inputs(job).values()))
    return JobRow(
        job.name,
        get_job_type(job),
        topics,
        to,
        trigger,
        guarantee,
        _describe_state(pipelines, job.name),
    )


def get_job_type(job: Job) -> str:
    # Each settings class is named after its type.
    return type(job).__name__.lower()


def get_target(job: Job) -> tuple[str, str]:
    if isinstance(job, Load):
        return f"{job.into.url} {job.into.prefix}*", "at-least-once"
    to = get_output(job)
    return ("", "") if to is None else (to.topic, to.guarantee)


def _describe_state(pipelines: Pipelines, name: str) -> str:
    root = versions.local_path(pipelines.checkpoints)
    if root is None:
        return f"in {pipelines.checkpoints}"
    existing = versions.list_local_versions(root, name)
    if not existing:
        return "new"
    batch = versions.find_last_batch(root / name / f"v{existing[-1]}")
    return f"v{existing[-1]}, {'no batch yet' if batch is None else f'batch {batch}'}"
