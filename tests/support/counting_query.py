"""A small query with state for tests: how often each key came, and the sum of its values."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gateway.pipeline.reports import Reports

from .waiting import wait_until

Rows = list[tuple[str, int]]
Counts = dict[str, tuple[int, int]]
STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state."


def build_rows(batch: int, key_count: int = 300) -> Rows:
    return [(f"k{n * 7 % key_count}", n + batch) for n in range(2 * key_count)]


def count_expected(batches: Iterable[int]) -> Counts:
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for batch in batches:
        for key, value in build_rows(batch):
            counts[key] += 1
            sums[key] += value
    return {key: (counts[key], sums[key]) for key in counts}


class CountingQuery:
    """input and checkpoint are below one directory; `counts` is what came out, last of each key;
    `batches` which batches did."""

    def __init__(self, spark: Any, directory: Path, name: str = "counting") -> None:
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.name = name
        self.latest_counts: Counts = {}
        self.batches: list[int] = []
        self.reports = Reports()
        self._spark = spark

    def write_batch(self, batch: int) -> None:
        """A file of records, which will be one batch."""
        folder = self.directory / "input"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"k": key, "v": value}) for key, value in build_rows(batch)]
        made = folder / f".{batch}"
        made.write_text("\n".join(lines))
        made.rename(folder / f"{batch}.json")

    def start_query(self, *, once: bool = False) -> Any:
        from pyspark.sql import functions as F

        read = self._spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
        events = read.json(str(self.directory / "input")).groupBy("k")
        query = events.agg(F.count("*").alias("n"), F.sum("v").alias("s")).writeStream
        query = query.outputMode("update").queryName(self.name).foreachBatch(self._on_batch)
        if once:
            query = query.trigger(once=True)
        begun = query.option("checkpointLocation", str(self.checkpoint)).start()
        self.reports.register_run(str(begun.runId), self.name)
        return begun

    def run_to_end(self) -> None:
        """All that was given. Raises what the query does."""
        query = self.start_query()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def run_once(self) -> None:
        self.start_query(once=True).awaitTermination()

    def copy_to(self, directory: Path) -> CountingQuery:
        """The same, as far as it is, elsewhere; nothing told yet."""
        shutil.copytree(self.directory, directory)
        for log in directory.glob("checkpoint/sources/0/[0-9]*"):  # absolute paths of the input
            log.write_text(log.read_text().replace(str(self.directory), str(directory)))
        for log in directory.glob("checkpoint/sources/0/.*.crc"):
            log.unlink()
        return CountingQuery(self._spark, directory, self.name)

    def _on_batch(self, frame: Any, batch: int) -> None:
        self.latest_counts.update({row.k: (row.n, row.s) for row in frame.collect()})
        self.batches.append(batch)


def run_with_snapshots(spark: Any, directory: Path, batch_count: int = 5) -> CountingQuery:
    """Run so that the versions 2 and 4 of each store are snapshots and all have changelogs."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
    session.conf.set("spark.sql.streaming.stateStore.maintenanceInterval", "200ms")
    stores = getattr(spark._jvm, f"{STATE_PACKAGE}StateStore")
    stores.stopMaintenanceTask()  # it keeps the interval of who began it
    job = CountingQuery(session, directory)
    (directory / "input").mkdir(parents=True)
    query = job.start_query()
    try:
        for batch in range(batch_count):
            job.write_batch(batch)
            query.processAllAvailable()
            if (batch + 1) % 2 == 0:
                _wait_for_snapshot(job, batch + 1)
    finally:
        query.stop()
        stores.stopMaintenanceTask()
    return job


def _wait_for_snapshot(job: CountingQuery, version: int) -> None:
    def has_both_snapshots() -> bool:
        return len(list(job.checkpoint.glob(f"state/0/*/{version}.zip"))) == 2

    asyncio.run(wait_until(has_both_snapshots, f"a snapshot of version {version}", 60.0))


def delete_checksums(checkpoint: Path) -> None:
    """As on a file system that keeps no checksums."""
    for path in checkpoint.rglob(".*.crc"):
        path.unlink()


def flip_byte(path: Path) -> None:
    """One byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
