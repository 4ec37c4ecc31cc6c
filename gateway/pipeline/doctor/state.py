"""Causes within the state: lookups, compaction, commits."""

from __future__ import annotations

from collections.abc import Iterator

from .cause import DiagnosedCause, Thresholds, share_of_batch
from .partitions import max_useful_partitions
from .query_run import BatchProgress, QueryRun, StateOperatorProgress

MIN_CACHE_HIT_SHARE = 0.8  # of lookups answered by the block cache; the rest reads files


def find_slow_lookups(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """Gets take much of a batch: the state is not in memory, or is asked more than it must be."""

    def lookup_seconds(batch: BatchProgress) -> float:
        return sum(
            each.sum_seconds("rocksdbGetLatency") / run.count_parallel_tasks(each.partitions)
            for each in batch.operators
        )

    cost = run.get_median(lookup_seconds)
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    gets = run.get_median(lambda batch: _sum_metric(batch, "rocksdbGetCount"))
    each = cost * run.parallelism / gets * 1e6 if gets else 0.0
    evidence = [f"{gets:,.0f} lookups a batch take {cost:.1f} s of it, {each:.0f} us each"]
    hits = run.get_median(lambda batch: _sum_metric(batch, "rocksdbReadBlockCacheHitCount"))
    misses = run.get_median(lambda batch: _sum_metric(batch, "rocksdbReadBlockCacheMissCount"))
    share = hits / (hits + misses) if hits + misses else None
    if share is not None:
        evidence.append(f"the block cache answers {share:.0%} of blocks ({misses:,.0f} missed)")
    size = run.get_median(lambda batch: _sum_metric(batch, "rocksdbSstFileSize"))
    if size:
        evidence.append(f"files of the state: {size / 1e6:,.0f} MB")
    missing = share is not None and share < MIN_CACHE_HIT_SHARE
    yield DiagnosedCause(
        "state-lookups",
        "looking keys up in the state",
        cost,
        share_of_batch(cost, run.batch_seconds),
        evidence,
        ("state.memory", "state.profile: large") if missing else ("state.profile: large",),
        "Give the stores memory for the keys in use, or spread them over more executors."
        if missing
        else "The profile large does without counting rows, which is one lookup for each write; "
        "then more cores and state.partitions.",
    )


def find_slow_compaction(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """RocksDB tidies up: writes wait for it, commits do, or it takes the cores."""

    def compaction_seconds(batch: BatchProgress) -> float:
        waits = behind = 0.0
        for each in batch.operators:
            waits += _stall_seconds(each) / run.count_parallel_tasks(each.partitions)
            behind += each.sum_seconds("rocksdbTotalCompactionLatencyMs") / run.parallelism
        return max(waits, behind)

    # Compactions come every few batches: what they cost is the mean, not the median.
    full = run.batches_with_input
    cost = sum(map(compaction_seconds, full)) / len(full) if full else 0.0
    worst = max(map(compaction_seconds, full), default=0.0)
    if not thresholds.is_exceeded(cost, run.batch_seconds) and not thresholds.is_exceeded(
        worst, run.batch_seconds * 2
    ):
        return
    stalls = sum(_sum_metric_seconds(batch, "rocksdbWriterStallLatencyMs") for batch in full)
    written = sum(_sum_metric(batch, "rocksdbTotalBytesWrittenByCompaction") for batch in full)
    at_commit = sum(_sum_metric_seconds(batch, "rocksdbCommitCompactLatency") for batch in full)
    yield DiagnosedCause(
        "compaction",
        "compaction of the state's files, and writes that wait for it",
        max(cost, worst / 2),
        share_of_batch(max(cost, worst / 2), run.batch_seconds),
        [
            f"{cost:.1f} s of a batch on average, {worst:.1f} s of the worst",
            f"writes waited {stalls:.1f} s in {len(full)} batches, commits {at_commit:.1f} s",
            f"{written / 1e6:,.0f} MB were written anew",
        ],
        ("state.profile: large", "state.partitions", "from.max_records")
        if not at_commit
        else ("spark.conf: spark.sql.streaming.stateStore.rocksdb.compactOnCommit: 'false'",),
        "Compact aside, not at commits."
        if at_commit
        else "Write less at a time (smaller batches, more partitions), onto a faster disk "
        "(spark.local.dir).",
    )


def find_slow_commits(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """Putting a batch down: changelogs and snapshots of stores, Spark's own logs.

    What more stores than the cores need add to it is `partitions-too-many`.
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
    whole = flushed > 0.1
    yield DiagnosedCause(
        "commit",
        "committing batches to the checkpoint",
        state + log,
        share_of_batch(state + log, run.batch_seconds),
        evidence,
        ("state.snapshot_after", "checkpoints") if whole else ("checkpoints", "trigger"),
        "Snapshots are written in the batch: let changelogs do (changelog checkpointing is on by "
        "default), with snapshots less often."
        if whole
        else "Put checkpoints onto a faster file system, or let a batch hold more (trigger).",
    )


def _stall_seconds(operator: StateOperatorProgress) -> float:
    return operator.sum_seconds("rocksdbWriterStallLatencyMs", "rocksdbCommitCompactLatency")


def _sum_metric(batch: BatchProgress, name: str) -> float:
    return sum(each.get_metric(name) for each in batch.operators)


def _sum_metric_seconds(batch: BatchProgress, *names: str) -> float:
    return sum(each.sum_seconds(*names) for each in batch.operators)
