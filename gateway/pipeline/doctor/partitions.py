"""Causes within how the work is divided: one task that is slow, too many tasks, too few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from .cause import DiagnosedCause, Thresholds, share_of_batch
from .query_run import BatchProgress, QueryRun, StageMetrics

MIN_SKEW_RATIO = 2.0  # times what the others take
MAX_TASKS_PER_CORE = 4  # tasks a core: with more, what each costs by itself counts
MAX_SMALL_TASK_ROWS = 20_000  # rows of a task: with more it has enough to do
TASK_OVERHEAD_S = 0.008
"""s of a task besides its stores': 60 tasks on two busy cores cost 8 to 15 ms each outside of their
own time, and as much within (tests/pipeline/doctor/runs/partitions-too-many); the least of it."""


def max_useful_partitions(run: QueryRun) -> int:
    """Partitions of the state that cores can use."""
    return MAX_TASKS_PER_CORE * run.parallelism


def find_skew(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """While one task works, the others have nothing to do."""

    def straggler_seconds(stage: StageMetrics) -> float:
        others = stage.total - stage.slowest
        lanes = min(run.parallelism, stage.tasks) - 1
        if lanes < 1 or stage.slowest < MIN_SKEW_RATIO * stage.mean_other_seconds:
            return 0.0
        return max(0.0, stage.slowest - max(stage.mean_other_seconds, others / lanes))

    worst, cost = _find_worst_stage(run, straggler_seconds)
    if worst is None or not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    even = worst.rows / worst.tasks if worst.tasks else 0
    evidence = [
        f"one task takes {worst.slowest:.1f} s, the other {worst.tasks - 1} "
        f"{worst.mean_other_seconds:.1f} s each",
        f"it reads {worst.most_rows:,} rows; evenly spread a task has {even:,.0f}",
    ]
    reads = not worst.shuffles
    yield DiagnosedCause(
        "skew",
        "one busy partition of the topic" if reads else "a few keys that most records have",
        cost,
        share_of_batch(cost, run.batch_seconds),
        evidence,
        ("from.max_records_per_partition", "from.min_partitions")
        if reads
        else ("salt", "on (a finer key)", "by"),
        "Let several tasks read it."
        if reads
        else "`gateway pipeline skew` names the keys: salt them, or join by a finer key.",
    )


def find_too_many_partitions(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """Each partition costs a task and a commit of its stores, whatever little it holds."""

    def overhead_seconds(batch: BatchProgress) -> float:
        total = 0.0
        for each in batch.operators:
            if each.partitions <= max_useful_partitions(run) or _max_rows(
                batch, each.updated_rows
            ) > (MAX_SMALL_TASK_ROWS * each.partitions):
                continue
            spare = 1 - max_useful_partitions(run) / each.partitions
            fixed = each.commit_seconds + each.sum_seconds("rocksdbLoadLatencyMs")
            total += spare * (fixed + each.partitions * TASK_OVERHEAD_S) / run.parallelism
        return total

    cost = run.get_median(overhead_seconds)
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    operator = max(
        (each for batch in run.batches_with_input for each in batch.operators),
        key=lambda each: each.partitions,
    )
    rows = run.get_median(lambda batch: _max_rows(batch, 0) / operator.partitions)
    yield DiagnosedCause(
        "partitions-too-many",
        f"{operator.partitions} partitions of the state on {run.parallelism} cores",
        cost,
        share_of_batch(cost, run.batch_seconds),
        [
            f"a partition gets {rows:,.0f} rows a batch",
            f"{operator.stores} stores take {operator.commit_seconds:.1f} s of task time to "
            f"commit, {operator.commit_seconds / max(1, operator.stores) * 1000:.0f} ms each",
        ],
        ("state.partitions", "gateway pipeline rescale"),
        f"About {2 * run.parallelism} would do; the number is frozen into the checkpoint: "
        "`gateway pipeline rescale NAME --partitions N`.",
    )


def find_too_few_partitions(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """Cores that have nothing to do while a stage works."""

    def unused_core_seconds(stage: StageMetrics) -> float:
        return max(0.0, stage.seconds * (1 - stage.tasks / run.parallelism))

    worst, cost = _find_worst_stage(run, unused_core_seconds)
    if worst is None:  # no times of tasks: what operators say
        cost = run.get_median(lambda batch: _unused_core_seconds(run, batch))
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    partitions = max(
        (each.partitions for b in run.batches_with_input for each in b.operators), default=0
    )
    tasks = worst.tasks if worst else partitions
    reads = worst is not None and not worst.shuffles
    took = worst.seconds if worst else cost
    yield DiagnosedCause(
        "partitions-too-few",
        f"{tasks} task{'s' if tasks != 1 else ''} on {run.parallelism} cores",
        cost,
        share_of_batch(cost, run.batch_seconds),
        [f"a stage of {tasks} task{'s' if tasks != 1 else ''} takes {took:.1f} s of a batch"],
        ("from.min_partitions",) if reads else ("state.partitions", "gateway pipeline rescale"),
        f"Divide it: at least {run.parallelism}"
        + (" tasks read the topic." if reads else " partitions of the state."),
    )


def _unused_core_seconds(run: QueryRun, batch: BatchProgress) -> float:
    if run.cores is None:
        return 0.0
    return sum(
        (each.update_seconds + each.removal_seconds + each.commit_seconds)
        / each.partitions
        * max(0.0, 1 - each.partitions / run.cores)
        for each in batch.operators
    )


def _find_worst_stage(
    run: QueryRun, stage_seconds: Callable[[StageMetrics], float]
) -> tuple[StageMetrics | None, float]:
    """The stage that costs most, of a batch in which it does so typically."""
    found = []
    for batch in run.batches_with_tasks:
        if batch.tasks is None or not batch.tasks.stages:
            continue
        stage = max(batch.tasks.stages, key=stage_seconds)
        found.append((stage_seconds(stage), stage))
    if not found:
        return None, 0.0
    cost = median(each for each, _ in found)
    return min(found, key=lambda each: abs(each[0] - cost))[1], cost


def _max_rows(batch: BatchProgress, updated: int) -> int:
    return max(batch.rows, updated)
