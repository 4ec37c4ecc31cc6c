"""Settings of Spark for the state of a job, each with its reason.

What stands in a checkpoint from its first batch on (partitions, the format of joins) is marked so:
changed later it is ignored.
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
    """snapshot_after: batches. cache: MiB of one store's blocks. memory: MiB of all stores of an
    executor together, None: each as it likes. exact: are rows counted?"""

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
    """All of a job's, in the order in which a reader would ask. joined: the state is a join's."""
    profile = PROFILES[state.profile]
    snapshot_after = state.snapshot_after or profile.snapshot_after
    return [
        SparkSetting("spark.sql.shuffle.partitions", str(state.partitions),
            "one store and one task each; frozen, see `gateway pipeline rescale`"),
        SparkSetting(f"{_STORE_PREFIX}providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            "state on disk, not in the heap"),
        SparkSetting(f"{_ROCKSDB_PREFIX}changelogCheckpointing.enabled", "true",
            "a batch uploads what it changed; without, a snapshot of everything"),
        SparkSetting(f"{_STORE_PREFIX}minDeltasForSnapshot", str(snapshot_after),
            "batches that a restart replays at most; a snapshot is uploaded beside the batches"),
        SparkSetting(f"{_STORE_PREFIX}maintenanceInterval", f"{profile.maintenance_s}s",
            "how often snapshots are uploaded and old versions deleted"),
        SparkSetting("spark.sql.streaming.minBatchesToRetain", str(state.retain),
            "changelogs, snapshots and offsets of so many batches: how far a repair can go back"),
        SparkSetting(f"{_STORE_PREFIX}autoSnapshotRepair.enabled", "true",
            "a damaged snapshot is passed over for an older one and its changelogs"),
        SparkSetting(f"{_STORE_PREFIX}checkpointFormatVersion", "1",
            "2 writes checksum files, twice the files, of what is checked inside anyway: ZIP, LZ4 "
            "and RocksDB's blocks; tables get none from it"),
        SparkSetting("spark.sql.streaming.join.stateFormatVersion", "3",
            "2 stores a partition rather than 8; frozen"),
        SparkSetting(f"{_ROCKSDB_PREFIX}trackTotalNumberOfRows", str(profile.counts_rows and not is_join).lower(),
            "an exact count costs a lookup for every write: joins did 36,100 records/s with it "
            "and 48,700 without; `gateway pipeline state` counts when asked"),
        *_iter_memory_settings(state, profile),
    ]  # fmt: skip


def build_conf(state: State, *, is_join: bool = False) -> dict[str, str]:
    """For the session of the job."""
    return {each.key: each.value for each in build_settings(state, is_join=is_join)}


def build_job_conf(job: Job) -> dict[str, str]:
    """For the session of this job."""
    return build_conf(job.state, is_join=isinstance(job, Join))


def _iter_memory_settings(state: State, profile: StateProfile) -> Iterable[SparkSetting]:
    bound = profile.memory_mib if state.memory is None else state.memory // 1024**2
    if bound is None:
        yield SparkSetting(
            f"{_ROCKSDB_PREFIX}boundedMemoryUsage", "false", "memory is what the keys take"
        )
        yield SparkSetting(f"{_ROCKSDB_PREFIX}blockCacheSizeMB", str(profile.cache_mib),
            "blocks of one store that need no disk")  # fmt: skip
    else:
        yield SparkSetting(f"{_ROCKSDB_PREFIX}boundedMemoryUsage", "true",
            "all stores of an executor share one bound; that of the first job counts")  # fmt: skip
        yield SparkSetting(f"{_ROCKSDB_PREFIX}maxMemoryUsageMB", str(bound),
            "caches and write buffers together, outside of the heap")  # fmt: skip
