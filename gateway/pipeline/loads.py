"""Describe the load of a job's input by partition and by key, and advise if it is uneven.

`skew` measures the loads. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.config.sections.job import Input, Job
from gateway.config.sections.pipelines import Aggregate, Join, Sessions

from .jobs import get_inputs

DEFAULT_HOT_SHARE_PERCENT = 10.0
"""The percentage of the records from which on a key is hot, unless `salt.share` of the job sets
another."""
_HOT_PARTITION_RATIO = 3.0  # a partition is hot from this multiple of the others' average on


class PartitionLoad(NamedTuple):
    """The load of a partition.

    Attributes:
        rate: Records per second over the time that the sample spans; None if the sample has fewer
            than two records, or all have the same timestamp.
    """

    partition: int
    records: int
    sampled: int
    rate: float | None


class KeyLoad(NamedTuple):
    """The load of a key; `share` is its percentage of the sampled records with a key."""

    key: str
    records: int
    share: float


def build_advice(
    job: Job, side: str, partitions: Sequence[PartitionLoad], key_loads: Sequence[KeyLoad]
) -> Iterable[str]:
    """Yield the advised changes of a job; none if the load is even."""
    salt = job.salt if isinstance(job, Join) else None
    share = salt.share if salt is not None else DEFAULT_HOT_SHARE_PERCENT
    hot = [load for load in key_loads if load.share >= share]
    yield from _advise_on_partitions(get_inputs(job)[side], side, partitions)
    if hot:
        hot_keys = ", ".join(f"{load.key} ({load.share:.0f}%)" for load in hot)
        yield from (f"{hot_keys}: {advice}" for advice in _advise_on_keys(job, side))


def _advise_on_partitions(
    input: Input, side: str, partitions: Sequence[PartitionLoad]
) -> Iterable[str]:
    weights = [load.rate or 0.0 for load in partitions]
    if not any(weights):
        weights = [float(load.records) for load in partitions]
    total = sum(weights)
    if len(partitions) < 2 or not total:
        return
    hottest = max(range(len(weights)), key=weights.__getitem__)
    share = weights[hottest] / total
    others = (1 - share) / (len(partitions) - 1)
    if (
        share < _HOT_PARTITION_RATIO * others
        or input.max_records_per_partition
        or input.min_partitions
    ):
        return
    yield (
        f"partition {partitions[hottest].partition} has {100 * share:.0f}% of the records, others "
        f"{100 * others:.1f}% each: set {side}.maxRecordsPerPartition, so that several tasks read "
        "it; the topic needs no more partitions for that"
    )


def _advise_on_keys(job: Job, side: str) -> Iterable[str]:
    match job:
        case Join():
            if finer := sorted(_find_shared_fields(job) - set(job.on)):
                yield (
                    f"add one of {', '.join(finer)} to `on`, if it means the same on both sides: a "
                    "finer key costs nothing"
                )
            if job.salt is None:
                yield (
                    "set salt: {} to spread them, with a new checkpoint; the right side's rows "
                    "with these keys are kept once for each bucket"
                )
        case Sessions():
            yield (
                "one task handles all sessions of a key, whatever state.partitions is: add a "
                "column to `by`, such as the device, or give these keys a separate job"
            )
        case Aggregate() if job.distinct or job.top:
            yield (
                "Spark counts the records of each task before it shuffles them: harmless unless "
                "a task is slow"
            )


def _find_shared_fields(job: Join) -> set[str]:
    left, right = (set(side.value.fields) for side in (job.left, job.right))
    return (left & right) - {job.left.time, job.right.time}
