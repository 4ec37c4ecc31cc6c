"""What a job's input weighs, by partition and by key, and what to set where that is uneven."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.config.sections.job import Input, Job
from gateway.config.sections.pipelines import Aggregate, Join, Sessions

from .jobs import get_inputs

DEFAULT_HOT_SHARE_PERCENT = 10.0
"""Percent of the records that make a key hot where the job does not say another."""
_HOT_PARTITION_RATIO = 3.0  # times the others' even share make a partition hot


class PartitionLoad(NamedTuple):
    """records: in the log. sampled: of those looked at. rate: records a second over the time that
    the sampled ones span; None where they are fewer than two or of one instant."""

    partition: int
    records: int
    sampled: int
    rate: float | None


class KeyLoad(NamedTuple):
    """key: as `salt.keys` writes it. share: percent of the sample."""

    key: str
    records: int
    share: float


def build_advice(
    job: Job, side: str, partitions: Sequence[PartitionLoad], key_loads: Sequence[KeyLoad]
) -> Iterable[str]:
    """What to set; nothing where the load is even."""
    salt = job.salt if isinstance(job, Join) else None
    share = salt.share if salt is not None else DEFAULT_HOT_SHARE_PERCENT
    hot = [load for load in key_loads if load.share >= share]
    yield from _advise_on_partitions(get_inputs(job)[side], side, partitions)
    if hot:
        named = ", ".join(f"{load.key} ({load.share:.0f}%)" for load in hot)
        yield from (f"{named}: {what}" for what in _advise_on_keys(job, side))


def _advise_on_partitions(
    input: Input, side: str, partitions: Sequence[PartitionLoad]
) -> Iterable[str]:
    weights = [load.rate or 0.0 for load in partitions]
    if not any(weights):
        weights = [float(load.records) for load in partitions]
    whole = sum(weights)
    if len(partitions) < 2 or not whole:
        return
    hottest = max(range(len(weights)), key=weights.__getitem__)
    part = weights[hottest] / whole
    others = (1 - part) / (len(partitions) - 1)
    if (
        part < _HOT_PARTITION_RATIO * others
        or input.max_records_per_partition
        or input.min_partitions
    ):
        return
    yield (
        f"partition {partitions[hottest].partition} has {100 * part:.0f}% of the records, others "
        f"{100 * others:.1f}% each: set {side}.maxRecordsPerPartition, so that several tasks read "
        "it; the job needs no other partitions of the topic"
    )


def _advise_on_keys(job: Job, side: str) -> Iterable[str]:
    match job:
        case Join():
            if finer := sorted(_find_shared_fields(job) - set(job.on)):
                yield (
                    f"add one of {', '.join(finer)} to `on`, if both sides mean the same by it: a "
                    "finer key costs nothing"
                )
            if job.salt is None:
                yield (
                    "set salt: {} to spread them, on a new checkpoint; right's rows of them are "
                    "kept once for each bucket"
                )
        case Sessions():
            yield (
                "a session is one task's, whatever state.partitions is: add a column to `by`, such "
                "as the device, or leave them to a job of their own"
            )
        case Aggregate() if job.distinct or job.top:
            yield "each batch is counted before it is gathered: harmless unless a task is slow"


def _find_shared_fields(job: Join) -> set[str]:
    left, right = (set(side.value.fields) for side in (job.left, job.right))
    return (left & right) - {job.left.time, job.right.time}
