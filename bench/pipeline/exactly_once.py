"""Compare exactly-once output with Spark's own sink: the same 250,000 records in and out, in turns.

JSON of about 95 bytes from a topic of two partitions, parsed and written again, `local[2]`, lz4,
batches of 250,000; the first round is warm-up. The goal is half of the plain sink's rate.

Then small batches: of 150 rows, and the same ones through the same shuffle and a Python function
that does nothing, in turns. The difference is what the transactions cost, of which two are written
at a time: mostly by a process that did not write the batch before.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from support.brokers import KafkaCluster

from gateway.config import Kafka
from gateway.config.sections.job import Fields, Input, Output
from gateway.pipeline import clusters
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.exactly_once import ExactlyOnceOutput
from gateway.pipeline.inputs import source
from gateway.pipeline.run import output

from ..kafka import running_kafka
from ..results import Cell, median
from . import engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BATCH_ROWS, SMALL_BATCHES = 150, 40  # rows of a small batch; how many batches
EVENT_FIELDS = {"user": "string", "amount": "bigint", "pad": "string"}


@dataclass(frozen=True)
class Workload:
    """records: of a batch. rounds: the first one besides."""

    records: int = 250_000
    rounds: int = 3


SMALL = Workload(5_000)


def measure(cell: Cell, workload: Workload) -> None:
    with running_kafka(has_index=True) as kafka, engine.run_spark() as spark:
        _measure_sinks(cell, spark, kafka, workload)
        _measure_small_batches(cell, spark, kafka)


def _measure_sinks(
    cell: Cell, spark: SparkSession, kafka: KafkaCluster, workload: Workload
) -> None:
    clicks, plain, once = (kafka.create_unique_topic(2) for _ in range(3))
    _fill_topic(kafka.bootstrap_servers, clicks, workload.records)
    cluster = Kafka(servers=list(kafka.bootstrap))
    told = {"topic": plain, "kafka.compression.type": "lz4"}
    options = {**clusters.build_spark_options(cluster), **told}

    def write_plain(rows: Any, _: int) -> None:
        rows.write.format("kafka").options(**options).save()

    sinks: dict[str, Callable[[Any, int], object]] = {
        "plain sink": write_plain, "exactly once": _create_output(cluster, once),
    }  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in sinks}
    for epoch in range(workload.rounds + 1):
        for name, sink in sinks.items():
            taken = _time_batch(spark, cluster, clicks, sink, epoch)
            if epoch:
                rates[name].append(workload.records / taken)
    for name, each in rates.items():
        cell.add_row(name, "records", "records/s", *each)
    ratio = median(rates["exactly once"]) / median(rates["plain sink"])
    cell.add_row("exactly once to plain sink", "ratio", "", ratio, n=workload.rounds)


def _create_output(cluster: Kafka, topic: str) -> ExactlyOnceOutput:
    none = Checkpoint("/nowhere")  # its batches have no marks
    return ExactlyOnceOutput(
        uuid.uuid4().hex,
        Output(topic=topic),
        clusters.build_client_config(cluster),
        checkpoint=none,
    )


def _measure_small_batches(cell: Cell, spark: SparkSession, kafka: KafkaCluster) -> None:
    cluster = Kafka(servers=list(kafka.bootstrap))
    writer = _create_output(cluster, kafka.create_unique_topic(2))
    spent: dict[str, list[float]] = {"written": [], "handed through": []}

    def pass_through(batches: Iterator[Any]) -> Iterator[Any]:  # here, for workers have no `bench`
        yield from batches

    def write_noop(rows: Any, _: int) -> None:
        done = rows.repartition(2, "key").mapInArrow(pass_through, rows.schema)
        done.write.format("noop").mode("overwrite").save()

    sinks: dict[str, Callable[[Any, int], object]] = {
        "written": writer,
        "handed through": write_noop,
    }
    for epoch in range(SMALL_BATCHES):
        rows = spark.range(SMALL_BATCH_ROWS).selectExpr(
            "cast(id as string) key", "cast(id as string) value"
        )
        for name, sink in sinks.items():
            began = time.monotonic()
            sink(rows, epoch)
            spent[name].append(time.monotonic() - began)
    warm = {name: each[SMALL_BATCHES // 4 :] for name, each in spent.items()}
    more = 1000 * (median(warm["written"]) - median(warm["handed through"]))
    for name, seconds in warm.items():
        cell.add_times(f"small batch, {name}", [seconds], "time")
    cell.add_row("small batch", "transactions", "ms", more, n=len(warm["written"]))


def _time_batch(
    spark: SparkSession, kafka: Kafka, topic: str, sink: Callable[[Any, int], object], epoch: int
) -> float:
    """Seconds of a query of one batch; the checkpoint is new, the epoch goes on."""
    read = Input(topic=topic, value=Fields(fields=EVENT_FIELDS))
    rows = output.encode_rows(
        source.read_stream(spark, read, kafka, {}), Output(topic="unused"), ["user"]
    )
    spent: list[float] = []

    def time_sink(batch: Any, _: int) -> None:
        began = time.monotonic()
        sink(batch, epoch)
        spent.append(time.monotonic() - began)

    with tempfile.TemporaryDirectory() as checkpoint:
        started = rows.writeStream.foreachBatch(time_sink).option("checkpointLocation", checkpoint)
        started.trigger(availableNow=True).start().awaitTermination()
    return sum(spent)


def _fill_topic(servers: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    pad = "0123456789" * 5
    for number in range(records):
        user = f"user-{number % 5000:05}"
        value = f'{{"user":"{user}","amount":{number},"pad":"{pad}"}}'
        producer.produce(topic, value, user, partition=number % 2)
        producer.poll(0)
    producer.flush(60)
