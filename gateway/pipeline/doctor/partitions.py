"""Causes within how the work is divided: one task that is slow, too many tasks, too few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from .cause import Cause, Limits, of_batch
from .reading import Batch, Run, Stage

SKEWED = 2.0  # times what the others take
MANY = 4  # tasks a core: with more, what each costs by itself counts
SMALL = 20_000  # rows of a task: with more it has enough to do
SCHEDULING = 0.008
"""s of a task besides its stores': 60 tasks on two busy cores cost 8 to 15 ms each outside of their
own time, and as much within (tests/pipeline/doctor/runs/partitions-too-many); the least of it."""


def too_many_from(run: Run) -> int:
    """Partitions of the state that cores can use."""
    return MANY * run.parallel


def skew(run: Run, limits: Limits) -> Iterator[Cause]:
    """While one task works, the others have nothing to do."""

    def seconds(stage: Stage) -> float:
        others = stage.total - stage.slowest
        lanes = min(run.parallel, stage.tasks) - 1
        if lanes < 1 or stage.slowest < SKEWED * stage.others:
            return 0.0
        return max(0.0, stage.slowest - max(stage.others, others / lanes))

    worst, cost = _worst(run, seconds)
    if worst is None or not limits.exceeded(cost, run.seconds):
        return
    even = worst.rows / worst.tasks if worst.tasks else 0
    evidence = [
        f"one task takes {worst.slowest:.1f} s, the other {worst.tasks - 1} "
        f"{worst.others:.1f} s each",
        f"it reads {worst.most_rows:,} rows; evenly spread a task has {even:,.0f}",
    ]
    reads = not worst.shuffles
    yield Cause(
        "skew",
        "one busy partition of the topic" if reads else "a few keys that most records have",
        cost,
        of_batch(cost, run.seconds),
        evidence,
        ("from.max_records_per_partition", "from.min_partitions")
        if reads
        else ("salt", "on (a finer key)", "by"),
        "Let several tasks read it."
        if reads
        else "`gateway pipeline skew` names the keys: salt them, or join by a finer key.",
    )


def too_many(run: Run, limits: Limits) -> Iterator[Cause]:
    """Each partition costs a task and a commit of its stores, whatever little it holds."""

    def seconds(batch: Batch) -> float:
        total = 0.0
        for each in batch.operators:
            if each.partitions <= too_many_from(run) or _rows(batch, each.updated) > (
                SMALL * each.partitions
            ):
                continue
            spare = 1 - too_many_from(run) / each.partitions
            fixed = each.commit + each.seconds("rocksdbLoadLatencyMs")
            total += spare * (fixed + each.partitions * SCHEDULING) / run.parallel
        return total

    cost = run.typical(seconds)
    if not limits.exceeded(cost, run.seconds):
        return
    operator = max(
        (each for batch in run.full for each in batch.operators), key=lambda each: each.partitions
    )
    rows = run.typical(lambda batch: _rows(batch, 0) / operator.partitions)
    yield Cause(
        "partitions-too-many",
        f"{operator.partitions} partitions of the state on {run.parallel} cores",
        cost,
        of_batch(cost, run.seconds),
        [
            f"a partition gets {rows:,.0f} rows a batch",
            f"{operator.stores} stores take {operator.commit:.1f} s of task time to commit, "
            f"{operator.commit / max(1, operator.stores) * 1000:.0f} ms each",
        ],
        ("state.partitions", "gateway pipeline rescale"),
        f"About {2 * run.parallel} would do; the number is frozen into the checkpoint: "
        "`gateway pipeline rescale NAME --partitions N`.",
    )


def too_few(run: Run, limits: Limits) -> Iterator[Cause]:
    """Cores that have nothing to do while a stage works."""

    def seconds(stage: Stage) -> float:
        return max(0.0, stage.seconds * (1 - stage.tasks / run.parallel))

    worst, cost = _worst(run, seconds)
    if worst is None:  # no times of tasks: what operators say
        cost = run.typical(lambda batch: _idle(run, batch))
    if not limits.exceeded(cost, run.seconds):
        return
    partitions = max((each.partitions for b in run.full for each in b.operators), default=0)
    tasks = worst.tasks if worst else partitions
    reads = worst is not None and not worst.shuffles
    took = worst.seconds if worst else cost
    yield Cause(
        "partitions-too-few",
        f"{tasks} task{'s' if tasks != 1 else ''} on {run.parallel} cores",
        cost,
        of_batch(cost, run.seconds),
        [f"a stage of {tasks} task{'s' if tasks != 1 else ''} takes {took:.1f} s of a batch"],
        ("from.min_partitions",) if reads else ("state.partitions", "gateway pipeline rescale"),
        f"Divide it: at least {run.parallel}"
        + (" tasks read the topic." if reads else " partitions of the state."),
    )


def _idle(run: Run, batch: Batch) -> float:
    if run.cores is None:
        return 0.0
    return sum(
        (each.update + each.removal + each.commit)
        / each.partitions
        * max(0.0, 1 - each.partitions / run.cores)
        for each in batch.operators
    )


def _worst(run: Run, seconds: Callable[[Stage], float]) -> tuple[Stage | None, float]:
    """The stage that costs most, of a batch in which it does so typically."""
    found = []
    for batch in run.looked:
        if batch.work is None or not batch.work.stages:
            continue
        stage = max(batch.work.stages, key=seconds)
        found.append((seconds(stage), stage))
    if not found:
        return None, 0.0
    cost = median(each for each, _ in found)
    return min(found, key=lambda each: abs(each[0] - cost))[1], cost


def _rows(batch: Batch, updated: int) -> int:
    return max(batch.rows, updated)
