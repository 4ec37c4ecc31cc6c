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
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from gateway.config import Kafka
from gateway.config.sections.job import Fields, Input, Output, Spark
from gateway.pipeline import clusters
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.exactly_once import ExactlyOnceOutput
from gateway.pipeline.inputs import source
from gateway.pipeline.run import output
from gateway.pipeline.spark.session import create_session

from ..figure import Figure, median, summarize_times
from ..kafka import RealKafka, real_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_RECORDS, DEFAULT_ROUNDS = 250_000, 3
SMALL_BATCH_ROWS, SMALL_BATCHES = 150, 40  # rows of a small batch; how many batches
SMALL = 5_000  # records
EVENT_FIELDS = {"user": "string", "amount": "bigint", "pad": "string"}


def measure(records: int = DEFAULT_RECORDS, rounds: int = DEFAULT_ROUNDS) -> list[Figure]:
    with real_kafka(1, has_index=True) as kafka:
        spark = create_session(Spark(master="local[2]"), "bench")
        try:
            return _measure_sinks(spark, kafka, records, rounds)
        finally:
            spark.stop()
            kafka.delete_topics()


def _measure_sinks(
    spark: SparkSession, kafka: RealKafka, records: int, rounds: int
) -> list[Figure]:
    servers = list(kafka.bootstrap)
    clicks, plain, once = (kafka.create_topic(partitions=2) for _ in range(3))
    _fill_topic(",".join(servers), clicks, records)
    cluster = Kafka(servers=servers)
    writer = _create_output(cluster, once)
    options = clusters.build_spark_options(cluster) | {
        "topic": plain,
        "kafka.compression.type": "lz4",
    }

    def write_plain(rows: Any, _: int) -> None:
        rows.write.format("kafka").options(**options).save()

    sinks: dict[str, Callable[[Any, int], object]] = {
        "plain sink": write_plain,
        "exactly once": writer,
    }
    rates: dict[str, list[float]] = {name: [] for name in sinks}
    for epoch in range(rounds + 1):
        for name, sink in sinks.items():
            taken = _time_batch(spark, cluster, clicks, sink, epoch)
            if epoch:
                rates[name].append(records / taken)
    found = {name: sorted(each)[len(each) // 2] for name, each in rates.items()}
    figures = [Figure(name, rate, "records/s") for name, rate in found.items()]
    ratio = found["exactly once"] / found["plain sink"]
    figures.append(Figure("exactly once to plain sink", ratio, "x"))
    return figures + _measure_small_batches(spark, cluster, kafka.create_topic(partitions=2))


def _create_output(cluster: Kafka, topic: str) -> ExactlyOnceOutput:
    none = Checkpoint("/nowhere")  # its batches have no marks
    return ExactlyOnceOutput(
        uuid.uuid4().hex,
        Output(topic=topic),
        clusters.build_client_config(cluster),
        checkpoint=none,
    )


def _measure_small_batches(spark: SparkSession, cluster: Kafka, topic: str) -> list[Figure]:
    writer = _create_output(cluster, topic)
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
    figures = [
        each for name in warm for each in summarize_times(f"small batch, {name}", warm[name])
    ]
    return [*figures, Figure("small batch, transactions", more, "ms", len(warm["written"]))]


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
