"""Record runs of queries with one fault each, and some without, for the doctor's tests.

    PYTHONPATH=tests python -m support.doctor_scenarios [--only skew] [--keep DIRECTORY]

Each is a small query on two cores; what its listener wrote is kept as
tests/pipeline/doctor/runs/<name>.jsonl. Those named `.other` have other sizes than the runs by
which the doctor's thresholds were set. They need a quiet machine: on a busy one healthy runs are
slow, and the doctor reports it.
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
from gateway.pipeline.progress.listener import report_progress
from gateway.pipeline.progress.records import get_progress_path

RUNS_DIRECTORY = Path(__file__).parents[1] / "pipeline" / "doctor" / "runs"
STATE_STORE_PREFIX = "spark.sql.streaming.stateStore."
RUN_TIMEOUT_S = 240.0  # s for a run
WIDE_ROW_CHARS = 200  # characters of a wide row

SMALL_CACHE_CONF = {
    STATE_STORE_PREFIX + "rocksdb.blockCacheSizeMB": "1",
    STATE_STORE_PREFIX + "rocksdb.blockSizeKB": "256",
    STATE_STORE_PREFIX + "rocksdb.writeBufferSizeMB": "16",
    STATE_STORE_PREFIX + "rocksdb.trackTotalNumberOfRows": "true",
}

_resources = ExitStack()
"""What a run needs beside Spark, until it is over."""

WriterFactory: TypeAlias = Callable[[Any, Path], Any]


class Scenario(NamedTuple):
    """start: the query's writer, of a session and a directory of its own. healthy: without a
    cause. conf: of SQL. ends: batches."""

    create_writer: WriterFactory
    conf: Mapping[str, str] = {}
    batch_count: int = 9
    output_mode: str = "append"


def read_stream(spark: Any, batch_rows: int, advance_ms: int = 1000) -> Any:
    """value, timestamp: `rows` a batch, whose time goes on by so many ms."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", batch_rows)
        .option("numPartitions", 2)
        .option("advanceMillisPerBatch", advance_ms)
        .option("startTimestamp", 1_700_000_000_000)
        .load()
    )


def read_keyed_stream(spark: Any, batch_rows: int, key_count: int, advance_ms: int = 1000) -> Any:
    """With `key`, in no order, so that lookups meet all of the state."""
    from pyspark.sql import functions as F

    events = read_stream(spark, batch_rows, advance_ms).withColumn(
        "key", F.abs(F.hash("value")) % key_count
    )
    return events.withColumn("text", F.rpad(F.col("value").cast("string"), WIDE_ROW_CHARS, "x"))


def _create_busy_task(spark: Any, _: Path) -> Any:
    """Few keys, of which each takes its time after it is counted."""
    from pyspark.sql import functions as F

    counted = read_keyed_stream(spark, 10_000, 3_000).groupBy("key").count()
    work = F.expr("aggregate(sequence(1, 300), 0L, (sum, i) -> sum ^ xxhash64(key, count, i))")
    return counted.withColumn("work", work).writeStream.format("noop")


def _create_lookups(spark: Any, _: Path) -> Any:
    """Wide rows of many keys, met in no order, in a state that its cache does not hold."""
    from pyspark.sql import functions as F

    newest = read_keyed_stream(spark, 120_000, 600_000).groupBy("key").agg(F.max("text"))
    return newest.writeStream.format("noop")


def _create_hot_key(spark: Any, _: Path) -> Any:
    """Nine of ten events have one key; each is kept until its partner comes."""
    from pyspark.sql import functions as F

    key = F.when(F.col("value") % 10 > 0, F.lit(0)).otherwise(F.col("value") % 50)
    left = read_stream(spark, 40_000).withColumn("key", key).withWatermark("timestamp", "1 second")
    right = (
        read_stream(spark, 20)
        .select(F.col("value").alias("other"), F.col("timestamp").alias("at"))
        .withWatermark("at", "1 second")
    )
    near = F.expr("key = other AND timestamp BETWEEN at AND at + INTERVAL 5 SECONDS")
    return left.join(right, near).writeStream.format("noop")


def _build_slow_sink_factory(batch_rows: int, commit_seconds: float) -> WriterFactory:
    """A store that takes so long to commit."""

    def create_writer(spark: Any, _: Path) -> Any:
        def write_slowly(rows: Any, batch: int) -> None:
            rows.write.format("noop").mode("append").save()
            time.sleep(commit_seconds)

        return _count_in_windows(spark, batch_rows).writeStream.foreachBatch(write_slowly)

    return create_writer


def _build_python_factory(batch_rows: int, hashes: int) -> WriterFactory:
    """Each row is hashed so many times."""

    def create_writer(spark: Any, _: Path) -> Any:
        def hash_rows(batches: Any) -> Any:
            import hashlib

            for batch in batches:
                for value in batch.column("value").to_pylist():
                    text = str(value).encode()
                    for _ in range(hashes):
                        text = hashlib.sha256(text).digest()
                yield batch

        from pyspark.sql import functions as F

        events = read_keyed_stream(spark, batch_rows, 1000).select("value", "key", "timestamp")
        made = events.mapInArrow(hash_rows, events.schema).withWatermark("timestamp", "5 seconds")
        window = F.window("timestamp", "5 seconds")
        return made.groupBy(window, "key").count().writeStream.format("noop")

    return create_writer


def _create_source_backlog(spark: Any, _: Path) -> Any:
    """A hundred thousand orders wait, more come than are taken."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    servers = ",".join(_resources.enter_context(LocalKafka()).bootstrap)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("orders", 2)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})

    def produce_orders(rows: int) -> None:
        for each in range(rows):
            producer.produce("orders", str(each), str(each), each % 2)
        producer.flush(60)

    def produce_more(rows: Any, batch: int) -> None:
        produce_orders(3_000)
        rows.write.format("noop").mode("append").save()

    produce_orders(100_000)
    orders = (
        spark.readStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": "orders"})
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="2000")
        .load()
    )
    return orders.writeStream.foreachBatch(produce_more).trigger(processingTime="4 seconds")


def _create_idle_input(spark: Any, directory: Path) -> Any:
    """Payments that never come hold the watermark of both."""
    (directory / "payments").mkdir()
    left = read_stream(spark, 2_000).withWatermark("timestamp", "5 seconds")
    right = (
        spark.readStream.schema("id bigint, at timestamp")
        .json(str(directory / "payments"))
        .withWatermark("at", "5 seconds")
    )
    near = "value = id AND at BETWEEN timestamp AND timestamp + INTERVAL 10 SECONDS"
    from pyspark.sql import functions as F

    return left.join(right, F.expr(near), "left_outer").writeStream.format("noop")


def _build_late_rows_factory(batch_rows: int, late_of_ten: int) -> WriterFactory:
    """So many of ten events come an hour late."""

    def create_writer(spark: Any, _: Path) -> Any:
        from pyspark.sql import functions as F

        late = F.when(F.col("value") % 10 < late_of_ten, F.expr("INTERVAL 1 HOUR"))
        at = F.col("timestamp") - F.coalesce(late, F.expr("INTERVAL 0 SECONDS"))
        events = (
            read_stream(spark, batch_rows).withColumn("at", at).withWatermark("at", "5 seconds")
        )
        counted = events.groupBy(F.window("at", "5 seconds"), "value").count()
        return counted.writeStream.format("noop")

    return create_writer


def _count_in_windows(spark: Any, batch_rows: int) -> Any:
    from pyspark.sql import functions as F

    events = read_keyed_stream(spark, batch_rows, 100).withWatermark("timestamp", "5 seconds")
    return events.groupBy(F.window("timestamp", "5 seconds"), "key").count()


def _build_aggregate_factory(batch_rows: int) -> WriterFactory:
    return lambda spark, _: _count_in_windows(spark, batch_rows).writeStream.format("noop")


def _create_sessions(spark: Any, _: Path) -> Any:
    from pyspark.sql import functions as F

    events = read_keyed_stream(spark, 3_000, 500).withWatermark("timestamp", "5 seconds")
    gap = F.session_window("timestamp", "3 seconds")
    return events.groupBy(gap, "key").count().writeStream.format("noop")


def _create_join(spark: Any, _: Path) -> Any:
    from pyspark.sql import functions as F

    left = read_stream(spark, 1_000).withWatermark("timestamp", "5 seconds")
    right = read_stream(spark, 1_000).select(
        F.col("value").alias("id"), F.col("timestamp").alias("at")
    )
    near = "value = id AND at BETWEEN timestamp AND timestamp + INTERVAL 10 SECONDS"
    joined = left.join(right.withWatermark("at", "5 seconds"), F.expr(near), "left_outer")
    return joined.writeStream.format("noop")


def _create_distinct(spark: Any, _: Path) -> Any:
    events = read_keyed_stream(spark, 2_000, 1_000).withWatermark("timestamp", "5 seconds")
    return events.dropDuplicatesWithinWatermark(["key"]).writeStream.format("noop")


def _build_stateless_factory(batch_rows: int) -> WriterFactory:
    def create_writer(spark: Any, _: Path) -> Any:
        from pyspark.sql import functions as F

        value = F.to_json(F.struct("key", "value")).alias("value")
        return read_keyed_stream(spark, batch_rows, 100).select(value).writeStream.format("noop")

    return create_writer


SCENARIOS: Mapping[str, Scenario] = {
    "commit": Scenario(  # eight partitions of four stores, each of which writes a snapshot
        _create_join,
        {
            STATE_STORE_PREFIX + "rocksdb.changelogCheckpointing.enabled": "false",
            "spark.sql.shuffle.partitions": "8",
        },
        8,
    ),
    "state-lookups": Scenario(_create_lookups, SMALL_CACHE_CONF, 12, "update"),
    "skew": Scenario(_create_hot_key),
    "partitions-too-many": Scenario(
        _build_aggregate_factory(5_000), {"spark.sql.shuffle.partitions": "60"}, 7
    ),
    "partitions-too-few": Scenario(
        _create_busy_task, {"spark.sql.shuffle.partitions": "1"}, 8, "update"
    ),
    "sink-slow": Scenario(_build_slow_sink_factory(5_000, 1.5)),
    "sink-slow.other": Scenario(_build_slow_sink_factory(500, 4.0)),
    "source-behind": Scenario(_create_source_backlog),
    "python": Scenario(_build_python_factory(40_000, 60)),
    "python.other": Scenario(_build_python_factory(6_000, 800)),
    "watermark-stuck": Scenario(_create_idle_input),
    "late-drops": Scenario(_build_late_rows_factory(2_000, 4)),
    "late-drops.other": Scenario(_build_late_rows_factory(300, 7)),
    "healthy-aggregate": Scenario(_build_aggregate_factory(5_000)),
    "healthy-aggregate.other": Scenario(_build_aggregate_factory(300)),
    "healthy-sessions": Scenario(_create_sessions),
    "healthy-join": Scenario(_create_join, {"spark.sql.streaming.join.stateFormatVersion": "3"}),
    "healthy-distinct": Scenario(_create_distinct),
    "healthy-stateless": Scenario(_build_stateless_factory(20_000)),
    "healthy-stateless.other": Scenario(_build_stateless_factory(1_000)),
}


def run_scenario(spark: Any, name: str, directory: Path) -> Path:
    """Run one; the file that its listener wrote."""
    plant = SCENARIOS[name]
    session = spark.newSession()
    for key, value in {"spark.sql.shuffle.partitions": "2", **plant.conf}.items():
        session.conf.set(key, value)
    section = Pipelines(checkpoints=str(directory))
    with report_progress(section, (), task_interval_s=0) as told:
        told.watch_session(session)
        writer = (
            plant.create_writer(session, directory).queryName(name).outputMode(plant.output_mode)
        )
        query = writer.option("checkpointLocation", str(directory / "v1")).start()
        try:
            _wait_for_batches(query, plant.batch_count)
        finally:
            query.stop()
            _resources.close()
    return get_progress_path(str(directory), name)


def _wait_for_batches(query: Any, batch_count: int) -> None:
    until = time.monotonic() + RUN_TIMEOUT_S
    while (latest := query._jsq.lastProgress()) is None or latest.batchId() < batch_count:
        if query.exception() or time.monotonic() > until:
            raise RuntimeError(
                f"{query.name} did not do {batch_count} batches: {query.exception()}"
            )
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m support.doctor_scenarios")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="may be repeated")
    parser.add_argument("--keep", type=Path, default=RUNS_DIRECTORY, help="where to")
    asked = parser.parse_args()
    from gateway.config.sections.job import Spark
    from gateway.pipeline.spark.session import create_session

    spark = create_session(Spark(master="local[2]"), "plants")
    asked.keep.mkdir(parents=True, exist_ok=True)
    for name in asked.only or SCENARIOS:
        with tempfile.TemporaryDirectory() as directory:
            shutil.copyfile(
                run_scenario(spark, name, Path(directory)), asked.keep / f"{name}.jsonl"
            )
        print(name, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
