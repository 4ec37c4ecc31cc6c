"""Runs that have one thing wrong, and some that have none, for the doctor's tests.

    python -m bench.pipeline.plant [--only skew] [--keep DIRECTORY]

Each is a small query on two cores; what its listener wrote is kept as
tests/pipeline/doctor/runs/<name>.jsonl. They need a quiet machine: on a busy one healthy runs are
slow, and the doctor says so.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway.config.pipelines import Pipelines
from gateway.pipeline.listener import telling
from gateway.pipeline.progress import place

RUNS = Path(__file__).parents[2] / "tests" / "pipeline" / "doctor" / "runs"
STORE = "spark.sql.streaming.stateStore."
WITHIN = 240.0  # s for a run
WIDTH = 200  # characters of a wide row


class Plant(NamedTuple):
    """start: the query's writer, of a session and a directory of its own. healthy: without a
    cause. conf: of SQL. ends: batches."""

    start: Callable[[Any, Path], Any]
    conf: Mapping[str, str] = {}
    ends: int = 9
    mode: str = "append"


def stream(spark: Any, rows: int, advance: int = 1000) -> Any:
    """value, timestamp: `rows` a batch, whose time goes on by so many ms."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
        .option("advanceMillisPerBatch", advance)
        .option("startTimestamp", 1_700_000_000_000)
        .load()
    )


def keyed(spark: Any, rows: int, keys: int, advance: int = 1000) -> Any:
    """With `key`, in no order, so that lookups meet all of the state."""
    from pyspark.sql import functions as F

    events = stream(spark, rows, advance).withColumn("key", F.abs(F.hash("value")) % keys)
    return events.withColumn("text", F.rpad(F.col("value").cast("string"), WIDTH, "x"))


def _counts(rows: int, keys: int, wide: bool = False) -> Callable[[Any, Path], Any]:
    def start(spark: Any, _: Path) -> Any:
        from pyspark.sql import functions as F

        measures = [F.count("*").alias("n")]
        measures += [F.last("text").alias("text")] * wide
        counted = keyed(spark, rows, keys).groupBy("key").agg(*measures)
        return counted.writeStream.format("noop")

    return start


def _blobs(spark: Any, _: Path) -> Any:
    """State that is written anew in each batch, 2 KB a key, which no codec makes smaller."""
    from pyspark.sql import functions as F

    noise = F.expr("transform(sequence(1, 256), i -> xxhash64(value, i))")
    events = keyed(spark, 12_000, 10_000).select("key", noise.alias("noise"))
    return events.groupBy("key").agg(F.last("noise").alias("noise")).writeStream.format("noop")


def _busy_task(spark: Any, _: Path) -> Any:
    """Few keys, of which each takes its time after it is counted."""
    from pyspark.sql import functions as F

    counted = keyed(spark, 10_000, 3_000).groupBy("key").count()
    work = F.expr("aggregate(sequence(1, 300), 0L, (sum, i) -> sum ^ xxhash64(key, count, i))")
    return counted.withColumn("work", work).writeStream.format("noop")


def _hot_key(spark: Any, _: Path) -> Any:
    """Nine of ten events have one key; each is kept until its partner comes."""
    from pyspark.sql import functions as F

    key = F.when(F.col("value") % 10 > 0, F.lit(0)).otherwise(F.col("value") % 50)
    left = stream(spark, 40_000).withColumn("key", key).withWatermark("timestamp", "1 second")
    right = (
        stream(spark, 20)
        .select(F.col("value").alias("other"), F.col("timestamp").alias("at"))
        .withWatermark("at", "1 second")
    )
    near = F.expr("key = other AND timestamp BETWEEN at AND at + INTERVAL 5 SECONDS")
    return left.join(right, near).writeStream.format("noop")


def _slow_sink(spark: Any, _: Path) -> Any:
    def write(rows: Any, batch: int) -> None:
        rows.write.format("noop").mode("append").save()
        time.sleep(1.5)  # a store that takes so long to commit

    return _windows(spark, 5_000).writeStream.foreachBatch(write)


def _python(spark: Any, _: Path) -> Any:
    def slowly(batches: Any) -> Any:
        import hashlib

        for batch in batches:
            for value in batch.column("value").to_pylist():
                text = str(value).encode()
                for _ in range(60):
                    text = hashlib.sha256(text).digest()
            yield batch

    from pyspark.sql import functions as F

    events = keyed(spark, 40_000, 1000).select("value", "key", "timestamp")
    made = events.mapInArrow(slowly, events.schema).withWatermark("timestamp", "5 seconds")
    window = F.window("timestamp", "5 seconds")
    return made.groupBy(window, "key").count().writeStream.format("noop")


def _idle_input(spark: Any, directory: Path) -> Any:
    """Payments that never come hold the watermark of both."""
    (directory / "payments").mkdir()
    left = stream(spark, 2_000).withWatermark("timestamp", "5 seconds")
    right = (
        spark.readStream.schema("id bigint, at timestamp")
        .json(str(directory / "payments"))
        .withWatermark("at", "5 seconds")
    )
    near = "value = id AND at BETWEEN timestamp AND timestamp + INTERVAL 10 SECONDS"
    from pyspark.sql import functions as F

    return left.join(right, F.expr(near), "left_outer").writeStream.format("noop")


def _late(spark: Any, _: Path) -> Any:
    """Four of ten events come an hour late."""
    from pyspark.sql import functions as F

    late = F.when(F.col("value") % 10 < 4, F.expr("INTERVAL 1 HOUR"))
    at = F.col("timestamp") - F.coalesce(late, F.expr("INTERVAL 0 SECONDS"))
    events = stream(spark, 2_000).withColumn("at", at).withWatermark("at", "5 seconds")
    return events.groupBy(F.window("at", "5 seconds"), "value").count().writeStream.format("noop")


def _windows(spark: Any, rows: int) -> Any:
    from pyspark.sql import functions as F

    events = keyed(spark, rows, 100).withWatermark("timestamp", "5 seconds")
    return events.groupBy(F.window("timestamp", "5 seconds"), "key").count()


def _aggregate(spark: Any, _: Path) -> Any:
    return _windows(spark, 5_000).writeStream.format("noop")


def _sessions(spark: Any, _: Path) -> Any:
    from pyspark.sql import functions as F

    events = keyed(spark, 3_000, 500).withWatermark("timestamp", "5 seconds")
    gap = F.session_window("timestamp", "3 seconds")
    return events.groupBy(gap, "key").count().writeStream.format("noop")


def _join(spark: Any, _: Path) -> Any:
    from pyspark.sql import functions as F

    left = stream(spark, 1_000).withWatermark("timestamp", "5 seconds")
    right = stream(spark, 1_000).select(F.col("value").alias("id"), F.col("timestamp").alias("at"))
    near = "value = id AND at BETWEEN timestamp AND timestamp + INTERVAL 10 SECONDS"
    joined = left.join(right.withWatermark("at", "5 seconds"), F.expr(near), "left_outer")
    return joined.writeStream.format("noop")


def _distinct(spark: Any, _: Path) -> Any:
    events = keyed(spark, 2_000, 1_000).withWatermark("timestamp", "5 seconds")
    return events.dropDuplicatesWithinWatermark(["key"]).writeStream.format("noop")


def _stateless(spark: Any, _: Path) -> Any:
    from pyspark.sql import functions as F

    rows = keyed(spark, 20_000, 100).select(F.to_json(F.struct("key", "value")).alias("value"))
    return rows.writeStream.format("noop")


PLANTS: Mapping[str, Plant] = {
    "state-lookups": Plant(
        _counts(60_000, 600_000, wide=True),
        {STORE + "rocksdb.blockCacheSizeMB": "1", STORE + "rocksdb.writeBufferSizeMB": "8"},
        12, "update",
    ),
    "compaction": Plant(
        _blobs,
        {
            STORE + "rocksdb.changelogCheckpointing.enabled": "false",
            STORE + "rocksdb.compactOnCommit": "true",
        },
        8, "update",
    ),
    "commit": Plant(
        _blobs, {STORE + "rocksdb.changelogCheckpointing.enabled": "false"}, 8, "update"
    ),
    "skew": Plant(_hot_key),
    "partitions-too-many": Plant(_aggregate, {"spark.sql.shuffle.partitions": "60"}, 7),
    "partitions-too-few": Plant(
        _busy_task, {"spark.sql.shuffle.partitions": "1"}, 8, "update"
    ),
    "sink-slow": Plant(_slow_sink),
    "python": Plant(_python),
    "watermark-stuck": Plant(_idle_input),
    "late-drops": Plant(_late),
    "healthy-aggregate": Plant(_aggregate),
    "healthy-sessions": Plant(_sessions),
    "healthy-join": Plant(_join, {"spark.sql.streaming.join.stateFormatVersion": "3"}),
    "healthy-distinct": Plant(_distinct),
    "healthy-stateless": Plant(_stateless),
}  # fmt: skip


def grow(spark: Any, name: str, directory: Path) -> Path:
    """Run one; the file that its listener wrote."""
    plant = PLANTS[name]
    session = spark.newSession()
    for key, value in {"spark.sql.shuffle.partitions": "2", **plant.conf}.items():
        session.conf.set(key, value)
    section = Pipelines(checkpoints=str(directory))
    with telling(section, (), every=0) as told:
        told.watch(session)
        writer = plant.start(session, directory).queryName(name).outputMode(plant.mode)
        query = writer.option("checkpointLocation", str(directory / "v1")).start()
        until = time.monotonic() + WITHIN
        while (query.lastProgress or {}).get("batchId", 0) < plant.ends:
            if query.exception() or time.monotonic() > until:
                raise RuntimeError(f"{name} did not do {plant.ends} batches: {query.exception()}")
            time.sleep(0.2)
        query.stop()
    return place(str(directory), name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline.plant", description=__doc__)
    parser.add_argument("--only", action="append", choices=PLANTS, help="may be repeated")
    parser.add_argument("--keep", type=Path, default=RUNS, help="where to")
    asked = parser.parse_args()
    from gateway.config.pipeline import Spark
    from gateway.pipeline.session import session

    spark = session(Spark(master="local[2]"), "plants")
    asked.keep.mkdir(parents=True, exist_ok=True)
    for name in asked.only or PLANTS:
        with tempfile.TemporaryDirectory() as directory:
            shutil.copyfile(grow(spark, name, Path(directory)), asked.keep / f"{name}.jsonl")
        print(name, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
