"""Causes within the state: lookups, compaction, commits."""

from __future__ import annotations

from collections.abc import Iterator

from .cause import Cause, Limits, of_batch
from .partitions import too_many_from
from .reading import Batch, Operator, Run

LOW = 0.8  # of lookups answered by the block cache; the rest reads files


def lookups(run: Run, limits: Limits) -> Iterator[Cause]:
    """Gets take much of a batch: the state is not in memory, or is asked more than it must be."""

    def seconds(batch: Batch) -> float:
        return sum(
            each.seconds("rocksdbGetLatency") / run.width(each.partitions)
            for each in batch.operators
        )

    cost = run.typical(seconds)
    if not limits.exceeded(cost, run.seconds):
        return
    gets = run.typical(lambda batch: _counted(batch, "rocksdbGetCount"))
    each = cost * run.parallel / gets * 1e6 if gets else 0.0
    evidence = [f"{gets:,.0f} lookups a batch take {cost:.1f} s of it, {each:.0f} us each"]
    hits = run.typical(lambda batch: _counted(batch, "rocksdbReadBlockCacheHitCount"))
    misses = run.typical(lambda batch: _counted(batch, "rocksdbReadBlockCacheMissCount"))
    share = hits / (hits + misses) if hits + misses else None
    if share is not None:
        evidence.append(f"the block cache answers {share:.0%} of blocks ({misses:,.0f} missed)")
    size = run.typical(lambda batch: _counted(batch, "rocksdbSstFileSize"))
    if size:
        evidence.append(f"files of the state: {size / 1e6:,.0f} MB")
    missing = share is not None and share < LOW
    yield Cause(
        "state-lookups",
        "looking keys up in the state",
        cost,
        of_batch(cost, run.seconds),
        evidence,
        ("state.memory", "state.profile: large") if missing else ("state.profile: large",),
        "Give the stores memory for the keys in use, or spread them over more executors."
        if missing
        else "The profile large does without counting rows, which is one lookup for each write; "
        "then more cores and state.partitions.",
    )


def compaction(run: Run, limits: Limits) -> Iterator[Cause]:
    """RocksDB tidies up: writes wait for it, commits do, or it takes the cores."""

    def seconds(batch: Batch) -> float:
        waits = behind = 0.0
        for each in batch.operators:
            waits += _waits(each) / run.width(each.partitions)
            behind += each.seconds("rocksdbTotalCompactionLatencyMs") / run.parallel
        return max(waits, behind)

    # Compactions come every few batches: what they cost is the mean, not the median.
    full = run.full
    cost = sum(map(seconds, full)) / len(full) if full else 0.0
    worst = max(map(seconds, full), default=0.0)
    if not limits.exceeded(cost, run.seconds) and not limits.exceeded(worst, run.seconds * 2):
        return
    stalls = sum(_summed(batch, "rocksdbWriterStallLatencyMs") for batch in full)
    written = sum(_counted(batch, "rocksdbTotalBytesWrittenByCompaction") for batch in full)
    at_commit = sum(_summed(batch, "rocksdbCommitCompactLatency") for batch in full)
    yield Cause(
        "compaction",
        "compaction of the state's files, and writes that wait for it",
        max(cost, worst / 2),
        of_batch(max(cost, worst / 2), run.seconds),
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


def commits(run: Run, limits: Limits) -> Iterator[Cause]:
    """Putting a batch down: changelogs and snapshots of stores, Spark's own logs.

    What more stores than the cores need add to it is `partitions-too-many`.
    """

    def stores(batch: Batch) -> float:
        return sum(
            max(0.0, each.commit - each.seconds("rocksdbCommitCompactLatency"))
            / run.width(each.partitions)
            * min(1.0, too_many_from(run) / max(1, each.partitions))
            for each in batch.operators
        )

    def logs(batch: Batch) -> float:
        return batch.phases.get("walCommit", 0.0) + batch.phases.get("commitOffsets", 0.0)

    state, log = run.typical(stores), run.typical(logs)
    if not limits.exceeded(state + log, run.seconds):
        return
    synced = run.typical(lambda batch: _summed(batch, "rocksdbCommitFileSyncLatencyMs"))
    flushed = run.typical(lambda batch: _summed(batch, "rocksdbCommitFlushLatency"))
    copied = run.typical(lambda batch: _counted(batch, "rocksdbBytesCopied"))
    evidence = [
        f"stores take {state:.1f} s of a batch to commit, Spark's logs {log:.1f} s",
        f"of all tasks: {synced:.1f} s to copy files, {flushed:.1f} s to flush, "
        f"{copied / 1e6:,.1f} MB a batch",
    ]
    whole = flushed > 0.1
    yield Cause(
        "commit",
        "committing batches to the checkpoint",
        state + log,
        of_batch(state + log, run.seconds),
        evidence,
        ("state.snapshot_after", "checkpoints") if whole else ("checkpoints", "trigger"),
        "Snapshots are written in the batch: let changelogs do (changelog checkpointing is on by "
        "default), with snapshots less often."
        if whole
        else "Put checkpoints onto a faster file system, or let a batch hold more (trigger).",
    )


def _waits(operator: Operator) -> float:
    return operator.seconds("rocksdbWriterStallLatencyMs", "rocksdbCommitCompactLatency")


def _counted(batch: Batch, name: str) -> float:
    return sum(each.count(name) for each in batch.operators)


def _summed(batch: Batch, *names: str) -> float:
    return sum(each.seconds(*names) for each in batch.operators)
