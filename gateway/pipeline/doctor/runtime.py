"""Causes within the machines: Python workers, the collector of the JVM."""

from __future__ import annotations

from collections.abc import Iterator

from .cause import Cause, Limits, of_batch
from .reading import Batch, Operator, Run, Work

COLLECTING = 0.15  # of task time


def python(run: Run, limits: Limits) -> Iterator[Cause]:
    """Rows go to Python and back. Without times of tasks: the updates of operators that are known
    to call it, without the state's own part."""

    def by_tasks(batch: Batch, work: Work) -> float:
        tasks = max((each.tasks for each in work.stages), default=1)
        return max(0.0, work.python - _writers(batch, work)) / run.width(tasks)

    def by_operators(batch: Batch) -> float:
        return sum(
            max(0.0, each.update - each.seconds("rocksdbGetLatency", "rocksdbPutLatency"))
            / run.width(each.partitions)
            for each in batch.operators
            if in_python(each)
        )

    cost = run.of_tasks(by_tasks) if run.looked else run.typical(by_operators)
    if not limits.exceeded(cost, run.seconds):
        return
    operators = sorted(
        {each.name for batch in run.full for each in batch.operators if in_python(each)}
    )
    rows = run.typical(lambda batch: batch.rows)
    evidence = [
        f"Python works {cost:.1f} s of a batch, {cost * run.parallel / max(1.0, rows) * 1e6:,.0f} "
        "us a record"
    ]
    evidence += [f"{name} calls it for each key" for name in operators]
    yield Cause(
        "python",
        "rows that are worked on in Python",
        cost,
        of_batch(cost, run.seconds),
        evidence,
        ("emit: closed", "max_length") if operators else ("value.model: json", "table"),
        "Native operators take a sixth of it: sessions without updates and max_length."
        if operators
        else "JSON is read natively, the other models in Python; of lookups see the cache's size "
        "and staleness. Else more cores.",
    )


def _writers(batch: Batch, work: Work) -> float:
    """Seconds, of all tasks, that those of exactly-once output waited in Python for Kafka."""
    return (batch.sink or 0.0) * max((each.tasks for each in work.stages if each.last), default=1)


def in_python(operator: Operator) -> bool:
    return any(each in operator.name.lower() for each in ("python", "pyspark", "pandas"))


def collector(run: Run, limits: Limits) -> Iterator[Cause]:
    """Tasks stand still while the JVM looks for memory."""

    def seconds(_: Batch, work: Work) -> float:
        return sum(
            each.seconds * min(1.0, each.gc / each.total) for each in work.stages if each.total
        )

    def share(_: Batch, work: Work) -> float:
        total = sum(each.total for each in work.stages)
        return sum(each.gc for each in work.stages) / total if total else 0.0

    cost, part = run.of_tasks(seconds), run.of_tasks(share)
    if part < COLLECTING or not limits.exceeded(cost, run.seconds):
        return
    yield Cause(
        "gc",
        "collecting garbage in the JVM",
        cost,
        of_batch(cost, run.seconds),
        [f"{part:.0%} of the tasks' time, {cost:.1f} s of a batch"],
        ("spark.memory", "from.max_records"),
        "More heap, or smaller batches; the state is outside of the heap and not its cause.",
    )
