"""Exactly once beside Spark's own sink: the same 250,000 records in and out, in turns.

JSON of about 95 bytes from a topic of two partitions, parsed and written again, `local[2]`, lz4,
batches of 250,000; the first round is warm-up. What it must reach: half of the plain sink's rate.

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
from gateway.config.sections.pipeline import Fields, Input, Output, Spark
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.exactly_once import Writer
from gateway.pipeline.inputs import source
from gateway.pipeline.run import output
from gateway.pipeline.spark import connect
from gateway.pipeline.spark.session import session

from ..figure import Figure, median, times
from ..kafka import RealKafka, real_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS, ROUNDS = 250_000, 3
FEW, TURNS = 150, 40  # rows of a small batch; how many batches
SMALL = 5_000  # records
COLUMNS = {"user": "string", "amount": "bigint", "pad": "string"}


def measure(records: int = RECORDS, rounds: int = ROUNDS) -> list[Figure]:
    with real_kafka(1, indexed=True) as kafka:
        spark = session(Spark(master="local[2]"), "bench")
        try:
            return _measured(spark, kafka, records, rounds)
        finally:
            spark.stop()
            kafka.forget_topics()


def _measured(spark: SparkSession, kafka: RealKafka, records: int, rounds: int) -> list[Figure]:
    servers = list(kafka.bootstrap)
    clicks, plain, once = (kafka.topic(partitions=2) for _ in range(3))
    _fill(",".join(servers), clicks, records)
    cluster = Kafka(servers=servers)
    writer = _writer(cluster, once)
    options = connect.spark_options(cluster) | {"topic": plain, "kafka.compression.type": "lz4"}

    def put(rows: Any, _: int) -> None:
        rows.write.format("kafka").options(**options).save()

    sinks: dict[str, Callable[[Any, int], object]] = {"plain sink": put, "exactly once": writer}
    rates: dict[str, list[float]] = {name: [] for name in sinks}
    for epoch in range(rounds + 1):
        for name, sink in sinks.items():
            taken = _batch(spark, cluster, clicks, sink, epoch)
            if epoch:
                rates[name].append(records / taken)
    found = {name: sorted(each)[len(each) // 2] for name, each in rates.items()}
    figures = [Figure(name, rate, "records/s") for name, rate in found.items()]
    ratio = found["exactly once"] / found["plain sink"]
    figures.append(Figure("exactly once to plain sink", ratio, "x"))
    return figures + _small(spark, cluster, kafka.topic(partitions=2))


def _writer(cluster: Kafka, topic: str) -> Writer:
    none = Checkpoint("/nowhere")  # its batches have no marks
    return Writer(uuid.uuid4().hex, Output(topic=topic), connect.client(cluster), checkpoint=none)


def _small(spark: SparkSession, cluster: Kafka, topic: str) -> list[Figure]:
    writer = _writer(cluster, topic)
    spent: dict[str, list[float]] = {"written": [], "handed through": []}

    def passed(batches: Iterator[Any]) -> Iterator[Any]:  # here, for workers have no `bench`
        yield from batches

    def through(rows: Any, _: int) -> None:
        done = rows.repartition(2, "key").mapInArrow(passed, rows.schema)
        done.write.format("noop").mode("overwrite").save()

    sinks: dict[str, Callable[[Any, int], object]] = {"written": writer, "handed through": through}
    for epoch in range(TURNS):
        rows = spark.range(FEW).selectExpr("cast(id as string) key", "cast(id as string) value")
        for name, sink in sinks.items():
            began = time.monotonic()
            sink(rows, epoch)
            spent[name].append(time.monotonic() - began)
    warm = {name: each[TURNS // 4 :] for name, each in spent.items()}
    more = 1000 * (median(warm["written"]) - median(warm["handed through"]))
    figures = [each for name in warm for each in times(f"small batch, {name}", warm[name])]
    return [*figures, Figure("small batch, transactions", more, "ms", len(warm["written"]))]


def _batch(
    spark: SparkSession, kafka: Kafka, topic: str, sink: Callable[[Any, int], object], epoch: int
) -> float:
    """Seconds of a query of one batch; the checkpoint is new, the epoch goes on."""
    read = Input(topic=topic, value=Fields(fields=COLUMNS))
    rows = output.encoded(
        source.read_stream(spark, read, kafka, {}), Output(topic="unused"), ["user"]
    )
    spent: list[float] = []

    def timed(batch: Any, _: int) -> None:
        began = time.monotonic()
        sink(batch, epoch)
        spent.append(time.monotonic() - began)

    with tempfile.TemporaryDirectory() as checkpoint:
        started = rows.writeStream.foreachBatch(timed).option("checkpointLocation", checkpoint)
        started.trigger(availableNow=True).start().awaitTermination()
    return sum(spent)


def _fill(servers: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    pad = "0123456789" * 5
    for number in range(records):
        user = f"user-{number % 5000:05}"
        value = f'{{"user":"{user}","amount":{number},"pad":"{pad}"}}'
        producer.produce(topic, value, user, partition=number % 2)
        producer.poll(0)
    producer.flush(60)
