"""Choose Spark's settings for the state of a job, each with its reason.

Settings that Spark stores in the checkpoint with the first batch (the number of partitions, the
format of joins) are marked as frozen: a later change is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.config.sections.job import Job, State
from gateway.config.sections.pipelines import Join

_STORE_PREFIX = "spark.sql.streaming.stateStore."
_ROCKSDB_PREFIX = f"{_STORE_PREFIX}rocksdb."


class SparkSetting(NamedTuple):
    key: str
    value: str
    reason: str


class StateProfile(NamedTuple):
    """The defaults that `state.profile` of a job selects.

    Attributes:
        snapshot_after: How many batches are written as changelogs before the next snapshot.
        maintenance_s: The time between two uploads of snapshots.
        cache_mib: The size of one store's block cache, if memory is not limited.
        memory_mib: The memory of all stores of an executor together; None for no limit.
    """

    snapshot_after: int
    maintenance_s: int
    cache_mib: int
    memory_mib: int | None
    counts_rows: bool


PROFILES = {
    "small": StateProfile(
        snapshot_after=10, maintenance_s=30, cache_mib=8, memory_mib=None, counts_rows=True
    ),
    "large": StateProfile(
        snapshot_after=20, maintenance_s=60, cache_mib=64, memory_mib=2048, counts_rows=False
    ),
    "latency": StateProfile(
        snapshot_after=50, maintenance_s=60, cache_mib=32, memory_mib=None, counts_rows=False
    ),
}


def build_settings(state: State, *, is_join: bool = False) -> list[SparkSetting]:
    profile = PROFILES[state.profile]
    snapshot_after = state.snapshot_after or profile.snapshot_after
    counts_rows = profile.counts_rows and not is_join
    return [
        SparkSetting("spark.sql.shuffle.partitions", str(state.partitions),
            "one store and one task each; frozen, see `gateway pipeline rescale`"),
        SparkSetting(f"{_STORE_PREFIX}providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            "state on disk, not in the heap"),
        SparkSetting(f"{_ROCKSDB_PREFIX}changelogCheckpointing.enabled", "true",
            "a batch uploads what it changed; otherwise it uploads a snapshot of everything"),
        SparkSetting(f"{_STORE_PREFIX}minDeltasForSnapshot", str(snapshot_after),
            "the most batches that a restart replays; snapshots are uploaded between batches"),
        SparkSetting(f"{_STORE_PREFIX}maintenanceInterval", f"{profile.maintenance_s}s",
            "how often snapshots are uploaded and old versions deleted"),
        SparkSetting("spark.sql.streaming.minBatchesToRetain", str(state.retain),
            "changelogs, snapshots and offsets are kept for so many batches: a repair can go back "
            "that far"),
        SparkSetting(f"{_STORE_PREFIX}autoSnapshotRepair.enabled", "true",
            "instead of a damaged snapshot an older one and its changelogs are used"),
        SparkSetting(f"{_STORE_PREFIX}checkpointFormatVersion", "1",
            "2 doubles the number of files with checksums of what has checksums already: ZIP, LZ4 "
            "and RocksDB's blocks; tables get none from it"),
        SparkSetting("spark.sql.streaming.join.stateFormatVersion", "3",
            "2 stores per partition instead of 8; frozen"),
        SparkSetting(f"{_ROCKSDB_PREFIX}trackTotalNumberOfRows", str(counts_rows).lower(),
            "an exact count costs a lookup for every write: joins did 36,100 records/s with it "
            "and 48,700 without; `gateway pipeline state` counts on demand"),
        *_iter_memory_settings(state, profile),
    ]  # fmt: skip


def build_conf(state: State, *, is_join: bool = False) -> dict[str, str]:
    return {setting.key: setting.value for setting in build_settings(state, is_join=is_join)}


def build_job_conf(job: Job) -> dict[str, str]:
    return build_conf(job.state, is_join=isinstance(job, Join))


def _iter_memory_settings(state: State, profile: StateProfile) -> Iterable[SparkSetting]:
    limit = profile.memory_mib if state.memory is None else state.memory // 1024**2
    if limit is None:
        yield SparkSetting(
            f"{_ROCKSDB_PREFIX}boundedMemoryUsage", "false", "memory grows with the keys"
        )
        yield SparkSetting(f"{_ROCKSDB_PREFIX}blockCacheSizeMB", str(profile.cache_mib),
            "cache of one store's blocks, which are then not read from disk")  # fmt: skip
    else:
        yield SparkSetting(f"{_ROCKSDB_PREFIX}boundedMemoryUsage", "true",
            "all stores of an executor share one limit; that of the first job counts")  # fmt: skip
        yield SparkSetting(f"{_ROCKSDB_PREFIX}maxMemoryUsageMB", str(limit),
            "caches and write buffers together, outside of the heap")  # fmt: skip
