"""Is a topic's load even: over its partitions, and over the keys that a job gathers rows by?

Both are told of the newest records. A hot partition makes one task read what others wait for; a hot
key makes one task join or gather it, however many partitions the topic and the state have. Keys
are counted exactly, of a sample: 10% of 10,000 records stand for 9.4 to 10.6% of all, if those are
like the newest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gateway.config import Kafka
from gateway.config.sections.pipeline import Input, Job
from gateway.config.sections.pipelines import Aggregate, Enrich, Join, Sessions
from gateway.core.log.record import TopicPartition
from gateway.errors import PipelineError
from gateway.pipeline.inputs.source import Catalogs, read_range
from gateway.pipeline.jobs.join import key_text
from gateway.pipeline.run.failures import causes, find_unreadable, of_kafka
from gateway.pipeline.spark.connect import client, cluster_of

from .jobs import inputs
from .loads import KeyLoad, PartitionLoad, advice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Ranges: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
LAST = 10_000
"""Records of each partition, on the average, that are looked at."""
_SHOWN = 10  # keys of a report
_ENOUGH = 10  # records of a hot key
_TRIES = 20  # reads of a sample, before a partition with records that Spark cannot read is left out

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Skew:
    """One input of a job. side: its name in the job. advice: what to set, in order of weight."""

    side: str
    topic: str
    columns: tuple[str, ...]
    sampled: int
    partitions: tuple[PartitionLoad, ...]
    keys: tuple[KeyLoad, ...]
    advice: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "topic": self.topic,
            "by": list(self.columns),
            "sampled": self.sampled,
            "partitions": [load._asdict() for load in self.partitions],
            "keys": [load._asdict() for load in self.keys],
            "advice": list(self.advice),
        }


def hot_keys(sample: DataFrame, columns: Sequence[str], share: float) -> list[str]:
    """Texts of the keys that have at least `share` percent of the records with a key, and ten of
    them: a smaller sample says nothing. Sorted."""
    loads = key_loads(sample, columns, 100)
    return sorted(load.key for load in loads if load.share >= share and load.records >= _ENOUGH)


def key_loads(sample: DataFrame, columns: Sequence[str], most: int = _SHOWN) -> list[KeyLoad]:
    """The keys with the most records, in that order; equal ones by their text. Without a key,
    a record is a heartbeat and not counted."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    there = sample.na.drop(subset=list(columns)).groupBy(key_text(columns).alias("key"))
    counted = there.count().withColumn("all", F.sum("count").over(Window.partitionBy()))
    top = counted.orderBy(F.desc("count"), "key").limit(most).collect()
    return [KeyLoad(row["key"], row["count"], 100 * row["count"] / row["all"]) for row in top]


def partition_loads(sample: DataFrame, ranges: Ranges) -> list[PartitionLoad]:
    """ranges: begin and end of each log. By partition; of those without a record, too."""
    from pyspark.sql import functions as F

    spans = F.max("_timestamp").cast("double") - F.min("_timestamp").cast("double")
    grouped = sample.groupBy("_partition").agg(F.count("*").alias("n"), spans.alias("s"))
    found = {row["_partition"]: (row["n"], row["s"]) for row in grouped.collect()}
    loads = []
    for tp, (start, end) in sorted(ranges.items()):
        sampled, span = found.get(tp.partition, (0, None))
        rate = (sampled - 1) / span if span else None
        loads.append(PartitionLoad(tp.partition, end - start, sampled, rate))
    return loads


def report(job: Job, side: str, sample: DataFrame, logs: Ranges) -> Skew:
    """Of the input `side` of the job. logs: begin and end of each partition's."""
    columns = gathered(job)[side]
    partitions = partition_loads(sample, logs)
    found = key_loads(sample, columns)
    return Skew(
        side=side,
        topic=inputs(job)[side].topic,
        columns=columns,
        sampled=sum(load.sampled for load in partitions),
        partitions=tuple(partitions),
        keys=tuple(found),
        advice=tuple(advice(job, side, partitions, found)),
    )


def gathered(job: Job) -> Mapping[str, tuple[str, ...]]:
    """The columns of each input that its rows are gathered by; a record's key where a job has
    none of its own."""
    match job:
        case Join():
            return {"left": tuple(job.on), "right": tuple(job.on.values())}
        case Sessions() | Aggregate() if job.by:
            return {"from": job.by}
        case Enrich():
            return {"from": (job.on,)}
    return dict.fromkeys(inputs(job), ("_key",))


def newest(logs: Ranges, last: int) -> dict[TopicPartition, tuple[int, int]]:
    """The last offsets of each log: so many on the average, of a longer one more, so that a key
    has the share in the sample that it has in the topic."""
    records = {tp: end - start for tp, (start, end) in logs.items() if end > start}
    part = min(1.0, last * len(logs) / max(1, sum(records.values())))
    return {
        tp: (max(logs[tp][0], logs[tp][1] - math.ceil(count * part)), logs[tp][1])
        for tp, count in records.items()
    }


def measured(
    spark: SparkSession,
    job: Job,
    clusters: Mapping[str, Kafka],
    catalogs: Catalogs,
    last: int,
) -> list[Skew]:
    """Of each input. Raises PipelineError: no such topic, or no records."""
    reports = []
    for side, input in inputs(job).items():
        kafka = cluster_of(clusters, input.kafka)
        bounds = logs(kafka, input.topic)
        newest_ones = newest(bounds, last)
        if not newest_ones:
            raise PipelineError(f"topic {input.topic} has no records; try again when it has")

        def look(records: DataFrame, side: str = side, bounds: Ranges = bounds) -> Skew:
            try:
                return report(job, side, records.cache(), bounds)
            finally:
                records.unpersist()

        reports.append(sample(spark, input, kafka, catalogs, newest_ones, look))
    return reports


def found_hot(
    spark: SparkSession, job: Join, clusters: Mapping[str, Kafka], catalogs: Catalogs
) -> list[str]:
    """The keys that a join spreads where its settings leave that open: those hot on its left side
    now. To be asked once, before the first batch, and kept beside the checkpoint: see `join`."""
    if job.salt is None or job.salt.keys != "auto":
        return []
    kafka = cluster_of(clusters, job.left.kafka)
    newest_ones = newest(logs(kafka, job.left.topic), LAST)
    if not newest_ones:
        return []
    columns, share = tuple(job.on), job.salt.share

    def look(records: DataFrame) -> list[str]:
        return hot_keys(records, columns, share)

    return sample(spark, job.left, kafka, catalogs, newest_ones, look)


def table(found: Skew) -> str:
    """For people."""
    lines = [f"{found.side}: {found.topic}, the newest {found.sampled:,} records", ""]
    busiest = sorted(found.partitions, key=lambda load: (load.rate or 0, load.records))[::-1]
    lines.append("  PARTITION     RECORDS   RECORDS/S")
    for load in busiest[:_SHOWN]:
        rate = "-" if load.rate is None else f"{load.rate:,.1f}"
        lines.append(f"  {load.partition:9}  {load.records:10,}  {rate:>10}")
    if len(busiest) > _SHOWN:
        lines.append(f"  and {len(busiest) - _SHOWN} with less")
    lines += ["", f"  SHARE     RECORDS  KEY ({', '.join(found.columns)})"]
    lines += [f"  {load.share:4.1f}%  {load.records:10,}  {load.key}" for load in found.keys]
    lines += ["", *(f"  {text}" for text in found.advice or ("Even enough: nothing to set.",))]
    return "\n".join(lines)


def sample(
    spark: SparkSession,
    input: Input,
    kafka: Kafka,
    catalogs: Catalogs,
    ranges: Ranges,
    look: Callable[[DataFrame], T],
) -> T:
    """Return what is seen in some records, as the job has them.

    Where Spark cannot read a record, the sample has those before or behind it, whichever are more:
    see `unreadable`.

    Args:
        spark: A session.
        input: The settings of the input.
        kafka: Its cluster.
        catalogs: Of its schemas.
        ranges: Where the records are.
        look: Reads them.
    """
    tries = 0
    while True:
        try:
            return look(read_range(spark, input, kafka, catalogs, ranges))
        except Exception as error:
            found = find_unreadable(causes(error))
            if found is None:
                raise
            tp = TopicPartition(found.topic, found.partition)
            if tp not in ranges:
                raise
            tries += 1
            ranges = leave_out(ranges, tp, found.offset if tries < _TRIES else None)


def leave_out(ranges: Ranges, tp: TopicPartition, offset: int | None) -> Ranges:
    """Return ranges without an offset: of its partition the longer part; with None, no part."""
    start, end = ranges[tp]
    parts = [] if offset is None else [(start, offset), (offset + 1, end)]
    longest = max(parts, key=lambda part: part[1] - part[0], default=(start, start))
    return {**ranges, tp: longest}


def logs(kafka: Kafka, topic: str, wait: float = 30.0) -> dict[TopicPartition, tuple[int, int]]:
    """Begin and end of each partition's log. wait: seconds. Raises PipelineError."""
    from confluent_kafka import KafkaException
    from confluent_kafka import admin as asking

    options: dict[str, Any] = client(kafka)
    admin, specs = asking.AdminClient(options), getattr(asking, "OffsetSpec")  # noqa: B009
    try:
        told = admin.list_topics(topic, timeout=wait).topics[topic]
        if told.error is not None:
            raise PipelineError(f"topic {topic}: {told.error.str()}; make it, or name another")
        starts, ends = (
            _offsets(admin, topic, told.partitions, spec, wait)
            for spec in (specs.earliest(), specs.latest())
        )
    except KafkaException as error:
        raise of_kafka(f"topic {topic}", error) from error
    return {tp: (start, ends[tp]) for tp, start in starts.items()}


def _offsets(
    admin: Any, topic: str, partitions: Iterable[int], spec: Any, wait: float
) -> dict[TopicPartition, int]:
    from confluent_kafka import TopicPartition as Partition

    asked = {Partition(topic, number): spec for number in partitions}
    told = admin.list_offsets(asked, request_timeout=wait)
    return {
        TopicPartition(topic, each.partition): future.result(wait).offset
        for each, future in told.items()
    }
