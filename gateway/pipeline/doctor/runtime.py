"""Find causes in the processes of executors: Python workers and the JVM's garbage collection."""

from __future__ import annotations

from collections.abc import Iterator

from .cause import BatchCause, Thresholds, share_of_batch
from .query_run import BatchProgress, QueryRun, StateOperatorProgress, TaskMetrics

MIN_GC_SHARE = 0.15  # of the time of tasks


def find_slow_python(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find rows that Python workers process.

    Without the times of tasks, the cost is estimated: the updates of operators that call Python,
    without the time of the state store.
    """

    def task_python_seconds(batch: BatchProgress, work: TaskMetrics) -> float:
        tasks = max((each.tasks for each in work.stages), default=1)
        return max(
            0.0, work.python_seconds - _writer_wait_seconds(batch, work)
        ) / run.count_parallel_tasks(tasks)

    def operator_python_seconds(batch: BatchProgress) -> float:
        return sum(
            max(
                0.0,
                each.update_seconds - each.sum_seconds("rocksdbGetLatency", "rocksdbPutLatency"),
            )
            / run.count_parallel_tasks(each.partitions)
            for each in batch.operators
            if runs_in_python(each)
        )

    cost = (
        run.get_task_median(task_python_seconds)
        if run.batches_with_tasks
        else run.get_median(operator_python_seconds)
    )
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    operators = sorted(
        {
            each.name
            for batch in run.batches_with_input
            for each in batch.operators
            if runs_in_python(each)
        }
    )
    rows = run.get_median(lambda batch: batch.rows)
    evidence = [
        f"Python works {cost:.1f} s of a batch, "
        f"{cost * run.parallelism / max(1.0, rows) * 1e6:,.0f} us a record"
    ]
    evidence += [f"{name} calls it for each key" for name in operators]
    yield BatchCause(
        "python",
        "rows that are processed in Python",
        evidence,
        ("emit: closed", "max_length") if operators else ("value.model: json", "table"),
        "Native operators take a sixth of the time: sessions without updates and max_length."
        if operators
        else "JSON is read natively, values of other models in Python. For lookups, see the size "
        "and staleness of the cache. Otherwise add cores.",
        cost,
        share_of_batch(cost, run.batch_seconds),
    )


def _writer_wait_seconds(batch: BatchProgress, work: TaskMetrics) -> float:
    """Return how long the writers of exactly-once output waited for Kafka, in task seconds."""
    return (batch.sink_seconds or 0.0) * max(
        (each.tasks for each in work.stages if each.last), default=1
    )


def runs_in_python(operator: StateOperatorProgress) -> bool:
    return any(each in operator.name.lower() for each in ("python", "pyspark", "pandas"))


def find_slow_gc(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    def gc_seconds(_: BatchProgress, work: TaskMetrics) -> float:
        return sum(
            each.seconds * min(1.0, each.gc / each.total) for each in work.stages if each.total
        )

    def gc_share(_: BatchProgress, work: TaskMetrics) -> float:
        total = sum(each.total for each in work.stages)
        return sum(each.gc for each in work.stages) / total if total else 0.0

    cost, share = run.get_task_median(gc_seconds), run.get_task_median(gc_share)
    if share < MIN_GC_SHARE or not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    yield BatchCause(
        "gc",
        "collecting garbage in the JVM",
        [f"{share:.0%} of the tasks' time, {cost:.1f} s of a batch"],
        ("spark.memory", "from.max_records"),
        "Use more heap, or smaller batches. The state is outside of the heap, so it is not the "
        "cause.",
        cost,
        share_of_batch(cost, run.batch_seconds),
    )
