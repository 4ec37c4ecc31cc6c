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
from gateway.config.sections.job import Input, Job
from gateway.config.sections.pipelines import Aggregate, Enrich, Join, Sessions
from gateway.core.log.record import TopicPartition
from gateway.errors import PipelineError
from gateway.pipeline.inputs.source import Catalogs, read_range
from gateway.pipeline.jobs.join import build_key_text
from gateway.pipeline.run.failures import build_kafka_error, find_unreadable, list_causes
from gateway.pipeline.spark.client_config import build_client_config, find_cluster

from .jobs import get_inputs
from .loads import KeyLoad, PartitionLoad, build_advice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OffsetRanges: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
DEFAULT_RECORDS_PER_PARTITION = 10_000
"""Records of each partition, on the average, that are looked at."""
_MAX_REPORT_ROWS = 10  # keys of a report
_MIN_HOT_KEY_RECORDS = 10  # records of a hot key
_MAX_READ_ATTEMPTS = (
    20  # reads of a sample, before a partition with records that Spark cannot read is left out
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SkewReport:
    """One input of a job. side: its name in the job. advice: what to set, in order of weight."""

    side: str
    topic: str
    columns: tuple[str, ...]
    sampled: int
    partitions: tuple[PartitionLoad, ...]
    keys: tuple[KeyLoad, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "topic": self.topic,
            "by": list(self.columns),
            "sampled": self.sampled,
            "partitions": [load._asdict() for load in self.partitions],
            "keys": [load._asdict() for load in self.keys],
            "advice": list(self.advice),
        }


def find_hot_keys(sample: DataFrame, columns: Sequence[str], share: float) -> list[str]:
    """Texts of the keys that have at least `share` percent of the records with a key, and ten of
    them: a smaller sample says nothing. Sorted."""
    loads = measure_key_loads(sample, columns, 100)
    return sorted(
        load.key for load in loads if load.share >= share and load.records >= _MIN_HOT_KEY_RECORDS
    )


def measure_key_loads(
    sample: DataFrame, columns: Sequence[str], max_keys: int = _MAX_REPORT_ROWS
) -> list[KeyLoad]:
    """The keys with the most records, in that order; equal ones by their text. Without a key,
    a record is a heartbeat and not counted."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    there = sample.na.drop(subset=list(columns)).groupBy(build_key_text(columns).alias("key"))
    counted = there.count().withColumn("all", F.sum("count").over(Window.partitionBy()))
    top = counted.orderBy(F.desc("count"), "key").limit(max_keys).collect()
    return [KeyLoad(row["key"], row["count"], 100 * row["count"] / row["all"]) for row in top]


def measure_partition_loads(sample: DataFrame, ranges: OffsetRanges) -> list[PartitionLoad]:
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


def build_report(job: Job, side: str, sample: DataFrame, ranges: OffsetRanges) -> SkewReport:
    """Of the input `side` of the job. logs: begin and end of each partition's."""
    columns = get_grouping_columns(job)[side]
    partitions = measure_partition_loads(sample, ranges)
    found = measure_key_loads(sample, columns)
    return SkewReport(
        side=side,
        topic=get_inputs(job)[side].topic,
        columns=columns,
        sampled=sum(load.sampled for load in partitions),
        partitions=tuple(partitions),
        keys=tuple(found),
        advice=tuple(build_advice(job, side, partitions, found)),
    )


def get_grouping_columns(job: Job) -> Mapping[str, tuple[str, ...]]:
    """The columns of each input that its rows are gathered by; a record's key where a job has
    none of its own."""
    match job:
        case Join():
            return {"left": tuple(job.on), "right": tuple(job.on.values())}
        case Sessions() | Aggregate() if job.by:
            return {"from": job.by}
        case Enrich():
            return {"from": (job.on,)}
    return dict.fromkeys(get_inputs(job), ("_key",))


def select_newest(
    ranges: OffsetRanges, per_partition: int
) -> dict[TopicPartition, tuple[int, int]]:
    """The last offsets of each log: so many on the average, of a longer one more, so that a key
    has the share in the sample that it has in the topic."""
    records = {tp: end - start for tp, (start, end) in ranges.items() if end > start}
    part = min(1.0, per_partition * len(ranges) / max(1, sum(records.values())))
    return {
        tp: (max(ranges[tp][0], ranges[tp][1] - math.ceil(count * part)), ranges[tp][1])
        for tp, count in records.items()
    }


def measure_skew(
    spark: SparkSession,
    job: Job,
    clusters: Mapping[str, Kafka],
    catalogs: Catalogs,
    per_partition: int,
) -> list[SkewReport]:
    """Of each input. Raises PipelineError: no such topic, or no records."""
    reports = []
    for side, input in get_inputs(job).items():
        kafka = find_cluster(clusters, input.kafka)
        bounds = fetch_log_ranges(kafka, input.topic)
        newest_ones = select_newest(bounds, per_partition)
        if not newest_ones:
            raise PipelineError(f"topic {input.topic} has no records; try again when it has")

        def build_input_report(
            records: DataFrame, side: str = side, bounds: OffsetRanges = bounds
        ) -> SkewReport:
            try:
                return build_report(job, side, records.cache(), bounds)
            finally:
                records.unpersist()

        reports.append(read_sample(spark, input, kafka, catalogs, newest_ones, build_input_report))
    return reports


def find_join_hot_keys(
    spark: SparkSession, job: Join, clusters: Mapping[str, Kafka], catalogs: Catalogs
) -> list[str]:
    """The keys that a join spreads where its settings leave that open: those hot on its left side
    now. To be asked once, before the first batch, and kept beside the checkpoint: see `join`."""
    if job.salt is None or job.salt.keys != "auto":
        return []
    kafka = find_cluster(clusters, job.left.kafka)
    newest_ones = select_newest(
        fetch_log_ranges(kafka, job.left.topic), DEFAULT_RECORDS_PER_PARTITION
    )
    if not newest_ones:
        return []
    columns, share = tuple(job.on), job.salt.share

    def find_keys(records: DataFrame) -> list[str]:
        return find_hot_keys(records, columns, share)

    return read_sample(spark, job.left, kafka, catalogs, newest_ones, find_keys)


def render_report(report: SkewReport) -> str:
    """For people."""
    lines = [f"{report.side}: {report.topic}, the newest {report.sampled:,} records", ""]
    busiest = sorted(report.partitions, key=lambda load: (load.rate or 0, load.records))[::-1]
    lines.append("  PARTITION     RECORDS   RECORDS/S")
    for load in busiest[:_MAX_REPORT_ROWS]:
        rate = "-" if load.rate is None else f"{load.rate:,.1f}"
        lines.append(f"  {load.partition:9}  {load.records:10,}  {rate:>10}")
    if len(busiest) > _MAX_REPORT_ROWS:
        lines.append(f"  and {len(busiest) - _MAX_REPORT_ROWS} with less")
    lines += ["", f"  SHARE     RECORDS  KEY ({', '.join(report.columns)})"]
    lines += [f"  {load.share:4.1f}%  {load.records:10,}  {load.key}" for load in report.keys]
    lines += ["", *(f"  {text}" for text in report.advice or ("Even enough: nothing to set.",))]
    return "\n".join(lines)


def read_sample(
    spark: SparkSession,
    input: Input,
    kafka: Kafka,
    catalogs: Catalogs,
    ranges: OffsetRanges,
    read: Callable[[DataFrame], T],
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
            return read(read_range(spark, input, kafka, catalogs, ranges))
        except Exception as error:
            found = find_unreadable(list_causes(error))
            if found is None:
                raise
            tp = TopicPartition(found.topic, found.partition)
            if tp not in ranges:
                raise
            tries += 1
            ranges = exclude_offset(
                ranges, tp, found.offset if tries < _MAX_READ_ATTEMPTS else None
            )


def exclude_offset(ranges: OffsetRanges, tp: TopicPartition, offset: int | None) -> OffsetRanges:
    """Return ranges without an offset: of its partition the longer part; with None, no part."""
    start, end = ranges[tp]
    parts = [] if offset is None else [(start, offset), (offset + 1, end)]
    longest = max(parts, key=lambda part: part[1] - part[0], default=(start, start))
    return {**ranges, tp: longest}


def fetch_log_ranges(
    kafka: Kafka, topic: str, timeout_s: float = 30.0
) -> dict[TopicPartition, tuple[int, int]]:
    """Begin and end of each partition's log. wait: seconds. Raises PipelineError."""
    from confluent_kafka import KafkaException
    from confluent_kafka import admin as asking

    options: dict[str, Any] = build_client_config(kafka)
    admin, specs = asking.AdminClient(options), getattr(asking, "OffsetSpec")  # noqa: B009
    try:
        told = admin.list_topics(topic, timeout=timeout_s).topics[topic]
        if told.error is not None:
            raise PipelineError(f"topic {topic}: {told.error.str()}; make it, or name another")
        starts, ends = (
            _list_offsets(admin, topic, told.partitions, spec, timeout_s)
            for spec in (specs.earliest(), specs.latest())
        )
    except KafkaException as error:
        raise build_kafka_error(f"topic {topic}", error) from error
    return {tp: (start, ends[tp]) for tp, start in starts.items()}


def _list_offsets(
    admin: Any, topic: str, partitions: Iterable[int], spec: Any, timeout_s: float
) -> dict[TopicPartition, int]:
    from confluent_kafka import TopicPartition as Partition

    asked = {Partition(topic, number): spec for number in partitions}
    told = admin.list_offsets(asked, request_timeout=timeout_s)
    return {
        TopicPartition(topic, each.partition): future.result(timeout_s).offset
        for each, future in told.items()
    }
