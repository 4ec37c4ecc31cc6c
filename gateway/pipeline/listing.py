"""The jobs of a configuration, and how far their checkpoints are: no Spark, no Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.config.sections.pipeline import Job
from gateway.config.sections.pipelines import Load, Pipelines
from gateway.config.types.units import show_duration
from gateway.pipeline.checkpoint import checkpoints

from .jobs import inputs, output


class Row(NamedTuple):
    """A job in words. state: how far it is."""

    name: str
    kind: str
    from_: str
    to: str
    trigger: str
    guarantee: str
    state: str


def rows(pipelines: Pipelines) -> list[Row]:
    """One for each job, in the order of the file."""
    return [_row(pipelines, job) for job in pipelines.jobs]


def table(found: Sequence[Row]) -> str:
    """For people: columns as wide as they must be."""
    heads = [name.rstrip("_").upper() for name in Row._fields]
    lines = [heads, *found]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    shown = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in shown)


def _row(pipelines: Pipelines, job: Job) -> Row:
    to, guarantee = target(job)
    trigger = job.trigger if isinstance(job.trigger, str) else show_duration(job.trigger)
    topics = ", ".join(dict.fromkeys(each.topic for each in inputs(job).values()))
    return Row(job.name, kind(job), topics, to, trigger, guarantee, _state(pipelines, job.name))


def kind(job: Job) -> str:
    """Its `type`, which each kind has as a literal of its own."""
    return type(job).__name__.lower()


def target(job: Job) -> tuple[str, str]:
    """Where it writes, and what it promises there."""
    if isinstance(job, Load):
        return f"{job.into.url} {job.into.prefix}*", "at-least-once"
    to = output(job)
    return ("", "") if to is None else (to.topic, to.guarantee)


def _state(pipelines: Pipelines, name: str) -> str:
    root = checkpoints.local(pipelines.checkpoints)
    if root is None:
        return f"in {pipelines.checkpoints}"
    found = checkpoints.versions(root, name)
    if not found:
        return "new"
    batch = checkpoints.last_batch(root / name / f"v{found[-1]}")
    return f"v{found[-1]}, {'no batch yet' if batch is None else f'batch {batch}'}"
