"""Find what the tasks of a batch spend time on: the state store, uneven work, Python, the JVM.

The names that begin with `rocksdb` are Spark's custom metrics of the operators. Those with
`Latency` are in ms, summed over all tasks of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from .query_run import (
    BatchCause,
    BatchProgress,
    QueryRun,
    StageMetrics,
    StateOperatorProgress,
    TaskMetrics,
    Thresholds,
)

MIN_CACHE_HIT_SHARE = 0.8  # of the blocks that lookups need; other blocks are read from files


def find_slow_lookups(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    def lookup_seconds(batch: BatchProgress) -> float:
        return sum(
            each.sum_seconds("rocksdbGetLatency") / run.count_parallel_tasks(each.partitions)
            for each in batch.operators
        )

    cost = run.get_median(lookup_seconds)
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    gets = run.get_median(lambda batch: _sum_metric(batch, "rocksdbGetCount"))
    get_us = cost * run.parallelism / gets * 1e6 if gets else 0.0
    evidence = [f"{gets:,.0f} lookups a batch take {cost:.1f} s of it, {get_us:.0f} us each"]
    hits = run.get_median(lambda batch: _sum_metric(batch, "rocksdbReadBlockCacheHitCount"))
    misses = run.get_median(lambda batch: _sum_metric(batch, "rocksdbReadBlockCacheMissCount"))
    hit_share = hits / (hits + misses) if hits + misses else None
    if hit_share is not None:
        evidence.append(f"the block cache has {hit_share:.0%} of the blocks ({misses:,.0f} missed)")
    size = run.get_median(lambda batch: _sum_metric(batch, "rocksdbSstFileSize"))
    if size:
        evidence.append(f"files of the state: {size / 1e6:,.0f} MB")
    is_cache_small = hit_share is not None and hit_share < MIN_CACHE_HIT_SHARE
    yield BatchCause(
        "state-lookups",
        "looking keys up in the state",
        evidence,
        ("state.memory", "state.profile: large") if is_cache_small else ("state.profile: large",),
        "Give the stores memory for the keys in use, or spread them over more executors."
        if is_cache_small
        else "The profile large does not count rows, which costs a lookup for each write. If that "
        "is not enough, add cores and state.partitions.",
        cost,
    )


def find_slow_compaction(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    def compaction_seconds(batch: BatchProgress) -> float:
        """Return the waits for compactions, or their own time if that is greater."""
        waits = background = 0.0
        for each in batch.operators:
            # Writes and commits that wait.
            stalls = each.sum_seconds("rocksdbWriterStallLatencyMs", "rocksdbCommitCompactLatency")
            waits += stalls / run.count_parallel_tasks(each.partitions)
            background += each.sum_seconds("rocksdbTotalCompactionLatencyMs") / run.parallelism
        return max(waits, background)

    # RocksDB compacts every few batches, so the median of their cost may be 0.
    batches = run.batches_with_input
    cost = sum(map(compaction_seconds, batches)) / len(batches) if batches else 0.0
    worst = max(map(compaction_seconds, batches), default=0.0)
    if not thresholds.is_exceeded(cost, run.batch_seconds) and not thresholds.is_exceeded(
        worst, run.batch_seconds * 2
    ):
        return
    stalls = sum(_sum_metric_seconds(batch, "rocksdbWriterStallLatencyMs") for batch in batches)
    written = sum(_sum_metric(batch, "rocksdbTotalBytesWrittenByCompaction") for batch in batches)
    at_commit = sum(_sum_metric_seconds(batch, "rocksdbCommitCompactLatency") for batch in batches)
    yield BatchCause(
        "compaction",
        "compaction of the state's files, and writes that wait for it",
        [
            f"{cost:.1f} s of a batch on average, {worst:.1f} s of the worst",
            f"writes waited {stalls:.1f} s in {len(batches)} batches, commits {at_commit:.1f} s",
            f"{written / 1e6:,.0f} MB were rewritten",
        ],
        ("state.profile: large", "state.partitions", "from.max_records")
        if not at_commit
        else ("spark.conf: spark.sql.streaming.stateStore.rocksdb.compactOnCommit: 'false'",),
        "Compact in the background, not at commits."
        if at_commit
        else "Write less at a time (smaller batches, more partitions), or to a faster disk "
        "(spark.local.dir).",
        max(cost, worst / 2),
    )


def find_slow_commits(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find commits of a batch that take long: changelogs and snapshots of stores, Spark's logs.

    The commits of stores that the cores do not need are left out: they belong to the cause
    `partitions-too-many`.
    """

    def store_commit_seconds(batch: BatchProgress) -> float:
        return sum(
            max(0.0, each.commit_seconds - each.sum_seconds("rocksdbCommitCompactLatency"))
            / run.count_parallel_tasks(each.partitions)
            * min(1.0, max_useful_partitions(run) / max(1, each.partitions))
            for each in batch.operators
        )

    def log_commit_seconds(batch: BatchProgress) -> float:
        return batch.phases.get("walCommit", 0.0) + batch.phases.get("commitOffsets", 0.0)

    state, log = run.get_median(store_commit_seconds), run.get_median(log_commit_seconds)
    if not thresholds.is_exceeded(state + log, run.batch_seconds):
        return
    synced = run.get_median(
        lambda batch: _sum_metric_seconds(batch, "rocksdbCommitFileSyncLatencyMs")
    )
    flushed = run.get_median(lambda batch: _sum_metric_seconds(batch, "rocksdbCommitFlushLatency"))
    copied = run.get_median(lambda batch: _sum_metric(batch, "rocksdbBytesCopied"))
    evidence = [
        f"stores take {state:.1f} s of a batch to commit, Spark's logs {log:.1f} s",
        f"of all tasks: {synced:.1f} s to copy files, {flushed:.1f} s to flush, "
        f"{copied / 1e6:,.1f} MB a batch",
    ]
    writes_snapshots = flushed > 0.1  # a changelog needs no flush of RocksDB, a snapshot does
    yield BatchCause(
        "commit",
        "committing batches to the checkpoint",
        evidence,
        ("state.snapshot_after", "checkpoints") if writes_snapshots else ("checkpoints", "trigger"),
        "Batches write snapshots. Write changelogs instead (changelog checkpointing is on by "
        "default), and snapshots less often."
        if writes_snapshots
        else "Put checkpoints on a faster file system, or let a batch hold more (trigger).",
        state + log,
    )


def _sum_metric(batch: BatchProgress, name: str) -> float:
    return sum(each.get_metric(name) for each in batch.operators)


def _sum_metric_seconds(batch: BatchProgress, *names: str) -> float:
    return sum(each.sum_seconds(*names) for each in batch.operators)


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
    )


def find_too_many_partitions(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find more state partitions than the cores need, each of which costs a task and commits."""

    def overhead_seconds(batch: BatchProgress) -> float:
        total = 0.0
        for each in batch.operators:
            rows = max(batch.rows, each.updated_rows)
            is_large = rows > MAX_SMALL_TASK_ROWS * each.partitions
            if is_large or each.partitions <= max_useful_partitions(run):
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
    rows = run.get_median(lambda batch: batch.rows / operator.partitions)
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
    )
