"""Runs that have one thing wrong, and some that have none, for the doctor's tests.

    python -m bench.pipeline.plant [--only skew] [--keep DIRECTORY]

Each is a small query on two cores; what its listener wrote is kept as
tests/pipeline/doctor/runs/<name>.jsonl. Those named `.other` have other sizes than the runs by
which the doctor's limits were set. They need a quiet machine: on a busy one healthy runs are slow,
and the doctor says so.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gateway.config.sections.pipelines import Pipelines
from gateway.kafka.local import LocalKafka
from gateway.pipeline.progress.listener import telling
from gateway.pipeline.progress.progress import place

RUNS = Path(__file__).parents[2] / "tests" / "pipeline" / "doctor" / "runs"
STORE = "spark.sql.streaming.stateStore."
WITHIN = 240.0  # s for a run
WIDTH = 200  # characters of a wide row

UNCACHED = {
    STORE + "rocksdb.blockCacheSizeMB": "1",
    STORE + "rocksdb.blockSizeKB": "256",
    STORE + "rocksdb.writeBufferSizeMB": "16",
    STORE + "rocksdb.trackTotalNumberOfRows": "true",
}

_held = ExitStack()
"""What a run needs beside Spark, until it is over."""

Start: TypeAlias = Callable[[Any, Path], Any]


class Plant(NamedTuple):
    """start: the query's writer, of a session and a directory of its own. healthy: without a
    cause. conf: of SQL. ends: batches."""

    start: Start
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


def _busy_task(spark: Any, _: Path) -> Any:
    """Few keys, of which each takes its time after it is counted."""
    from pyspark.sql import functions as F

    counted = keyed(spark, 10_000, 3_000).groupBy("key").count()
    work = F.expr("aggregate(sequence(1, 300), 0L, (sum, i) -> sum ^ xxhash64(key, count, i))")
    return counted.withColumn("work", work).writeStream.format("noop")


def _lookups(spark: Any, _: Path) -> Any:
    """Wide rows of many keys, met in no order, in a state that its cache does not hold."""
    from pyspark.sql import functions as F

    newest = keyed(spark, 120_000, 600_000).groupBy("key").agg(F.max("text"))
    return newest.writeStream.format("noop")


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


def _slow_sink(rows: int, seconds: float) -> Start:
    """A store that takes so long to commit."""

    def start(spark: Any, _: Path) -> Any:
        def write(made: Any, batch: int) -> None:
            made.write.format("noop").mode("append").save()
            time.sleep(seconds)

        return _windows(spark, rows).writeStream.foreachBatch(write)

    return start


def _python(rows: int, times: int) -> Start:
    """Each row is hashed so many times."""

    def start(spark: Any, _: Path) -> Any:
        def slowly(batches: Any) -> Any:
            import hashlib

            for batch in batches:
                for value in batch.column("value").to_pylist():
                    text = str(value).encode()
                    for _ in range(times):
                        text = hashlib.sha256(text).digest()
                yield batch

        from pyspark.sql import functions as F

        events = keyed(spark, rows, 1000).select("value", "key", "timestamp")
        made = events.mapInArrow(slowly, events.schema).withWatermark("timestamp", "5 seconds")
        window = F.window("timestamp", "5 seconds")
        return made.groupBy(window, "key").count().writeStream.format("noop")

    return start


def _behind(spark: Any, _: Path) -> Any:
    """A hundred thousand orders wait, more come than are taken."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    servers = ",".join(_held.enter_context(LocalKafka()).bootstrap)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("orders", 2)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})

    def write(rows: int) -> None:
        for each in range(rows):
            producer.produce("orders", str(each), str(each), each % 2)
        producer.flush(60)

    def more(rows: Any, batch: int) -> None:
        write(3_000)
        rows.write.format("noop").mode("append").save()

    write(100_000)
    orders = (
        spark.readStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": "orders"})
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="2000")
        .load()
    )
    return orders.writeStream.foreachBatch(more).trigger(processingTime="4 seconds")


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


def _late(rows: int, share: int) -> Start:
    """So many of ten events come an hour late."""

    def start(spark: Any, _: Path) -> Any:
        from pyspark.sql import functions as F

        late = F.when(F.col("value") % 10 < share, F.expr("INTERVAL 1 HOUR"))
        at = F.col("timestamp") - F.coalesce(late, F.expr("INTERVAL 0 SECONDS"))
        events = stream(spark, rows).withColumn("at", at).withWatermark("at", "5 seconds")
        counted = events.groupBy(F.window("at", "5 seconds"), "value").count()
        return counted.writeStream.format("noop")

    return start


def _windows(spark: Any, rows: int) -> Any:
    from pyspark.sql import functions as F

    events = keyed(spark, rows, 100).withWatermark("timestamp", "5 seconds")
    return events.groupBy(F.window("timestamp", "5 seconds"), "key").count()


def _aggregate(rows: int) -> Start:
    return lambda spark, _: _windows(spark, rows).writeStream.format("noop")


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


def _stateless(rows: int) -> Start:
    def start(spark: Any, _: Path) -> Any:
        from pyspark.sql import functions as F

        value = F.to_json(F.struct("key", "value")).alias("value")
        return keyed(spark, rows, 100).select(value).writeStream.format("noop")

    return start


PLANTS: Mapping[str, Plant] = {
    "commit": Plant(  # eight partitions of four stores, each of which writes a snapshot
        _join,
        {
            STORE + "rocksdb.changelogCheckpointing.enabled": "false",
            "spark.sql.shuffle.partitions": "8",
        },
        8,
    ),
    "state-lookups": Plant(_lookups, UNCACHED, 12, "update"),
    "skew": Plant(_hot_key),
    "partitions-too-many": Plant(_aggregate(5_000), {"spark.sql.shuffle.partitions": "60"}, 7),
    "partitions-too-few": Plant(
        _busy_task, {"spark.sql.shuffle.partitions": "1"}, 8, "update"
    ),
    "sink-slow": Plant(_slow_sink(5_000, 1.5)),
    "sink-slow.other": Plant(_slow_sink(500, 4.0)),
    "source-behind": Plant(_behind),
    "python": Plant(_python(40_000, 60)),
    "python.other": Plant(_python(6_000, 800)),
    "watermark-stuck": Plant(_idle_input),
    "late-drops": Plant(_late(2_000, 4)),
    "late-drops.other": Plant(_late(300, 7)),
    "healthy-aggregate": Plant(_aggregate(5_000)),
    "healthy-aggregate.other": Plant(_aggregate(300)),
    "healthy-sessions": Plant(_sessions),
    "healthy-join": Plant(_join, {"spark.sql.streaming.join.stateFormatVersion": "3"}),
    "healthy-distinct": Plant(_distinct),
    "healthy-stateless": Plant(_stateless(20_000)),
    "healthy-stateless.other": Plant(_stateless(1_000)),
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
        try:
            _done(query, plant.ends)
        finally:
            query.stop()
            _held.close()
    return place(str(directory), name)


def _done(query: Any, batches: int) -> None:
    until = time.monotonic() + WITHIN
    while (latest := query._jsq.lastProgress()) is None or latest.batchId() < batches:
        if query.exception() or time.monotonic() > until:
            raise RuntimeError(f"{query.name} did not do {batches} batches: {query.exception()}")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline.plant", description=__doc__)
    parser.add_argument("--only", action="append", choices=PLANTS, help="may be repeated")
    parser.add_argument("--keep", type=Path, default=RUNS, help="where to")
    asked = parser.parse_args()
    from gateway.config.sections.pipeline import Spark
    from gateway.pipeline.spark.session import session

    spark = session(Spark(master="local[2]"), "plants")
    asked.keep.mkdir(parents=True, exist_ok=True)
    for name in asked.only or PLANTS:
        with tempfile.TemporaryDirectory() as directory:
            shutil.copyfile(grow(spark, name, Path(directory)), asked.keep / f"{name}.jsonl")
        print(name, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
