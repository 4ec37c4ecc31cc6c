"""The jobs of a configuration, and how far their checkpoints are: no Spark, no Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.config.sections.job import Job
from gateway.config.sections.pipelines import Load, Pipelines
from gateway.config.types.units import format_duration
from gateway.pipeline.checkpoint import versions

from .jobs import get_inputs, get_output


class JobRow(NamedTuple):
    """A job in words. state: how far it is."""

    name: str
    kind: str
    from_: str
    to: str
    trigger: str
    guarantee: str
    state: str


def list_jobs(pipelines: Pipelines) -> list[JobRow]:
    """One for each job, in the order of the file."""
    return [_build_row(pipelines, job) for job in pipelines.jobs]


def format_table(rows: Sequence[JobRow]) -> str:
    """For people: columns as wide as they must be."""
    heads = [name.rstrip("_").upper() for name in JobRow._fields]
    lines = [heads, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    shown = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in shown)


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
    """Its `type`, which each kind has as a literal of its own."""
    return type(job).__name__.lower()


def get_target(job: Job) -> tuple[str, str]:
    """Where it writes, and what it promises there."""
    if isinstance(job, Load):
        return f"{job.into.url} {job.into.prefix}*", "at-least-once"
    to = get_output(job)
    return ("", "") if to is None else (to.topic, to.guarantee)


def _describe_state(pipelines: Pipelines, name: str) -> str:
    root = versions.local_path(pipelines.checkpoints)
    if root is None:
        return f"in {pipelines.checkpoints}"
    found = versions.list_local_versions(root, name)
    if not found:
        return "new"
    batch = versions.find_last_batch(root / name / f"v{found[-1]}")
    return f"v{found[-1]}, {'no batch yet' if batch is None else f'batch {batch}'}"
