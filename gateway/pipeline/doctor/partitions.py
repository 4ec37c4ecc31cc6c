"""Find causes in how work is divided among tasks: one slow task, too many tasks, or too few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from .cause import BatchCause, Thresholds, share_of_batch
from .query_run import BatchProgress, QueryRun, StageMetrics

MIN_SKEW_RATIO = 2.0  # the time of the slowest task, in times of the other tasks
MAX_TASKS_PER_CORE = 4  # with more, the fixed cost of a task matters
MAX_SMALL_TASK_ROWS = 20_000  # with more rows, a task's work outweighs its fixed cost
TASK_OVERHEAD_S = 0.008
"""The fixed cost of a task without its stores.

With 60 tasks on two busy cores, each cost 8 to 15 ms outside of its own time, and as much within it
(tests/pipeline/doctor/runs/partitions-too-many). This is the least of these.
"""


def max_useful_partitions(run: QueryRun) -> int:
    return MAX_TASKS_PER_CORE * run.parallelism


def find_skew(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    def straggler_seconds(stage: StageMetrics) -> float:
        """Return how long the slowest task runs after the others have ended."""
        others = stage.total - stage.slowest
        other_cores = min(run.parallelism, stage.tasks) - 1
        if other_cores < 1 or stage.slowest < MIN_SKEW_RATIO * stage.mean_other_seconds:
            return 0.0
        return max(0.0, stage.slowest - max(stage.mean_other_seconds, others / other_cores))

    worst, cost = _find_worst_stage(run, straggler_seconds)
    if worst is None or not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    even_rows = worst.rows / worst.tasks if worst.tasks else 0
    evidence = [
        f"one task takes {worst.slowest:.1f} s, the other {worst.tasks - 1} "
        f"{worst.mean_other_seconds:.1f} s each",
        f"it reads {worst.most_rows:,} rows; spread evenly, a task would have {even_rows:,.0f}",
    ]
    reads_topic = not worst.shuffles
    yield BatchCause(
        "skew",
        "one busy partition of the topic" if reads_topic else "a few keys that most records have",
        evidence,
        ("from.max_records_per_partition", "from.min_partitions")
        if reads_topic
        else ("salt", "on (a finer key)", "by"),
        "Let several tasks read it."
        if reads_topic
        else "`gateway pipeline skew` names the keys: salt them, or join by a finer key.",
        cost,
        share_of_batch(cost, run.batch_seconds),
    )


def find_too_many_partitions(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find more state partitions than the cores need, each of which costs a task and commits."""

    def overhead_seconds(batch: BatchProgress) -> float:
        total = 0.0
        for each in batch.operators:
            if each.partitions <= max_useful_partitions(run) or _max_rows(
                batch, each.updated_rows
            ) > (MAX_SMALL_TASK_ROWS * each.partitions):
                continue
            superfluous_share = 1 - max_useful_partitions(run) / each.partitions
            fixed = each.commit_seconds + each.sum_seconds("rocksdbLoadLatencyMs")
            fixed += each.partitions * TASK_OVERHEAD_S
            total += superfluous_share * fixed / run.parallelism
        return total

    cost = run.get_median(overhead_seconds)
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    operator = max(
        (each for batch in run.batches_with_input for each in batch.operators),
        key=lambda each: each.partitions,
    )
    rows = run.get_median(lambda batch: _max_rows(batch, 0) / operator.partitions)
    yield BatchCause(
        "partitions-too-many",
        f"{operator.partitions} partitions of the state on {run.parallelism} cores",
        [
            f"a partition gets {rows:,.0f} rows a batch",
            f"{operator.stores} stores take {operator.commit_seconds:.1f} s of task time to "
            f"commit, {operator.commit_seconds / max(1, operator.stores) * 1000:.0f} ms each",
        ],
        ("state.partitions", "gateway pipeline rescale"),
        f"About {2 * run.parallelism} are enough. The checkpoint fixes the number; change it by "
        "`gateway pipeline rescale NAME --partitions N`.",
        cost,
        share_of_batch(cost, run.batch_seconds),
    )


def find_too_few_partitions(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    def unused_core_seconds(stage: StageMetrics) -> float:
        return max(0.0, stage.seconds * (1 - stage.tasks / run.parallelism))

    worst, cost = _find_worst_stage(run, unused_core_seconds)
    if worst is None:  # there are no times of tasks, so use those of operators
        cost = run.get_median(lambda batch: _unused_core_seconds(run, batch))
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    partitions = max(
        (each.partitions for batch in run.batches_with_input for each in batch.operators),
        default=0,
    )
    tasks = worst.tasks if worst else partitions
    reads_topic = worst is not None and not worst.shuffles
    stage_seconds = worst.seconds if worst else cost
    yield BatchCause(
        "partitions-too-few",
        f"{tasks} task{'s' if tasks != 1 else ''} on {run.parallelism} cores",
        [
            f"a stage of {tasks} task{'s' if tasks != 1 else ''} takes {stage_seconds:.1f} s of "
            "a batch"
        ],
        ("from.min_partitions",)
        if reads_topic
        else ("state.partitions", "gateway pipeline rescale"),
        f"Divide the work: at least {run.parallelism}"
        + (" tasks that read the topic." if reads_topic else " partitions of the state."),
        cost,
        share_of_batch(cost, run.batch_seconds),
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
    worst_stages = []
    for batch in run.batches_with_tasks:
        if batch.tasks is None or not batch.tasks.stages:
            continue
        stage = max(batch.tasks.stages, key=stage_seconds)
        worst_stages.append((stage_seconds(stage), stage))
    if not worst_stages:
        return None, 0.0
    cost = median(each for each, _ in worst_stages)
    return min(worst_stages, key=lambda each: abs(each[0] - cost))[1], cost


def _max_rows(batch: BatchProgress, updated_rows: int) -> int:
    return max(batch.rows, updated_rows)
