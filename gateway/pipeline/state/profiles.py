"""Settings of Spark for the state of a job, each with its reason.

What stands in a checkpoint from its first batch on (partitions, the format of joins) is marked so:
changed later it is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.config.sections.pipeline import Job, State
from gateway.config.sections.pipelines import Join

_STORE = "spark.sql.streaming.stateStore."
_ROCKS = f"{_STORE}rocksdb."


class Setting(NamedTuple):
    key: str
    value: str
    why: str


class Profile(NamedTuple):
    """snapshot_after: batches. cache: MiB of one store's blocks. memory: MiB of all stores of an
    executor together, None: each as it likes. exact: are rows counted?"""

    snapshot_after: int
    maintenance: int
    cache: int
    memory: int | None
    exact: bool


PROFILES = {
    "small": Profile(snapshot_after=10, maintenance=30, cache=8, memory=None, exact=True),
    "large": Profile(snapshot_after=20, maintenance=60, cache=64, memory=2048, exact=False),
    "latency": Profile(snapshot_after=50, maintenance=60, cache=32, memory=None, exact=False),
}


def settings(state: State, *, joined: bool = False) -> list[Setting]:
    """All of a job's, in the order in which a reader would ask. joined: the state is a join's."""
    profile = PROFILES[state.profile]
    snapshot_after = state.snapshot_after or profile.snapshot_after
    return [
        Setting("spark.sql.shuffle.partitions", str(state.partitions),
            "one store and one task each; frozen, see `gateway pipeline rescale`"),
        Setting(f"{_STORE}providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            "state on disk, not in the heap"),
        Setting(f"{_ROCKS}changelogCheckpointing.enabled", "true",
            "a batch uploads what it changed; without, a snapshot of everything"),
        Setting(f"{_STORE}minDeltasForSnapshot", str(snapshot_after),
            "batches that a restart replays at most; a snapshot is uploaded beside the batches"),
        Setting(f"{_STORE}maintenanceInterval", f"{profile.maintenance}s",
            "how often snapshots are uploaded and old versions deleted"),
        Setting("spark.sql.streaming.minBatchesToRetain", str(state.retain),
            "changelogs, snapshots and offsets of so many batches: how far a repair can go back"),
        Setting(f"{_STORE}autoSnapshotRepair.enabled", "true",
            "a damaged snapshot is passed over for an older one and its changelogs"),
        Setting(f"{_STORE}checkpointFormatVersion", "1",
            "2 writes checksum files, twice the files, of what is checked inside anyway: ZIP, LZ4 "
            "and RocksDB's blocks; tables get none from it"),
        Setting("spark.sql.streaming.join.stateFormatVersion", "3",
            "2 stores a partition rather than 8; frozen"),
        Setting(f"{_ROCKS}trackTotalNumberOfRows", str(profile.exact and not joined).lower(),
            "an exact count costs a lookup for every write: joins did 36,100 records/s with it "
            "and 48,700 without; `gateway pipeline state` counts when asked"),
        *_memory(state, profile),
    ]  # fmt: skip


def conf(state: State, *, joined: bool = False) -> dict[str, str]:
    """For the session of the job."""
    return {each.key: each.value for each in settings(state, joined=joined)}


def of(job: Job) -> dict[str, str]:
    """For the session of this job."""
    return conf(job.state, joined=isinstance(job, Join))


def _memory(state: State, profile: Profile) -> Iterable[Setting]:
    bound = profile.memory if state.memory is None else state.memory // 1024**2
    if bound is None:
        yield Setting(f"{_ROCKS}boundedMemoryUsage", "false", "memory is what the keys take")
        yield Setting(f"{_ROCKS}blockCacheSizeMB", str(profile.cache),
            "blocks of one store that need no disk")  # fmt: skip
    else:
        yield Setting(f"{_ROCKS}boundedMemoryUsage", "true",
            "all stores of an executor share one bound; that of the first job counts")  # fmt: skip
        yield Setting(f"{_ROCKS}maxMemoryUsageMB", str(bound),
            "caches and write buffers together, outside of the heap")  # fmt: skip
