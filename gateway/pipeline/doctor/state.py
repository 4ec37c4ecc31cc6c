"""Find causes in the state store, which is RocksDB: lookups, compaction, commits.

The names that begin with `rocksdb` are Spark's custom metrics of the operators. Those with
`Latency` are in ms, summed over all tasks of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from .cause import BatchCause, Thresholds, share_of_batch
from .partitions import max_useful_partitions
from .query_run import BatchProgress, QueryRun, StateOperatorProgress

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
        share_of_batch(cost, run.batch_seconds),
    )


def find_slow_compaction(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    def compaction_seconds(batch: BatchProgress) -> float:
        """Return the waits for compactions, or their own time if that is greater."""
        waits = background = 0.0
        for each in batch.operators:
            waits += _stall_seconds(each) / run.count_parallel_tasks(each.partitions)
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
        share_of_batch(max(cost, worst / 2), run.batch_seconds),
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
        share_of_batch(state + log, run.batch_seconds),
    )


def _stall_seconds(operator: StateOperatorProgress) -> float:
    """Return how long writes and commits waited for compactions, in task seconds."""
    return operator.sum_seconds("rocksdbWriterStallLatencyMs", "rocksdbCommitCompactLatency")


def _sum_metric(batch: BatchProgress, name: str) -> float:
    return sum(each.get_metric(name) for each in batch.operators)


def _sum_metric_seconds(batch: BatchProgress, *names: str) -> float:
    return sum(each.sum_seconds(*names) for each in batch.operators)
