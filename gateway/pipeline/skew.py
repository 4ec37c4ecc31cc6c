"""Measure how evenly a job's input is distributed over partitions, and over the keys of its state.

The newest records of each input are the sample. One task reads a hot partition, and one task joins
or aggregates a hot key, however many partitions topic and state have; the other tasks wait for it.
The keys of the sample are counted exactly: 10% of 10,000 records mean 9.4 to 10.6% of all records
(95% confidence), if these are distributed like the newest.

The command `skew` calls `measure_skew`, which advises if the load is uneven. The runner calls
`find_join_hot_keys` before the first batch of a join.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gateway.config import Kafka
from gateway.config.sections.job import Input, Job
from gateway.config.sections.pipelines import Aggregate, Enrich, Join, Sessions
from gateway.core.log.record import TopicPartition
from gateway.errors import PipelineError
from gateway.pipeline.inputs.schemas import resolve_fields
from gateway.pipeline.inputs.source import Catalogs, parse_records, read_raw_range
from gateway.pipeline.jobs.join import build_key_text

from .clusters import build_client_config, create_admin_client, find_cluster
from .failures import (
    TIMESTAMP_ADVICE,
    explain_kafka_errors,
    find_unreadable,
    list_causes,
)
from .job_settings import get_inputs
from .spark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OffsetRanges: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
"""The first offset of each partition, and the offset after the last."""
DEFAULT_RECORDS_PER_PARTITION = 10_000
"""The size of a sample, as the average number of records per partition."""
_MAX_REPORT_ROWS = 10
_MIN_HOT_KEY_RECORDS = 10  # a key with fewer records in the sample is not called hot


@dataclass(frozen=True, slots=True)
class SkewReport:
    """The load of one input of a job.

    Attributes:
        columns: The columns by which Spark shuffles its rows.
    """

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
    """Return the sorted texts of the hot keys: those with at least `share` percent of the records.

    A key with fewer than ten records in the sample is not hot, because its share says too little.
    """
    loads = measure_key_loads(sample, columns, 100)  # at most 100 keys have 1% or more
    return sorted(
        load.key for load in loads if load.share >= share and load.records >= _MIN_HOT_KEY_RECORDS
    )


def measure_key_loads(
    sample: DataFrame, columns: Sequence[str], max_keys: int = _MAX_REPORT_ROWS
) -> list[KeyLoad]:
    """Return the loads of the most frequent keys, sorted by frequency, then by text.

    Records without a key are heartbeats and are not counted.
    """
    from pyspark.sql import Window

    keyed = sample.na.drop(subset=list(columns)).groupBy(build_key_text(columns).alias("key"))
    counted = keyed.count().withColumn("all", F.sum("count").over(Window.partitionBy()))
    top = counted.orderBy(F.desc("count"), "key").limit(max_keys).collect()
    return [KeyLoad(row["key"], row["count"], 100 * row["count"] / row["all"]) for row in top]


def measure_partition_loads(sample: DataFrame, ranges: OffsetRanges) -> list[PartitionLoad]:
    """Return the load of each partition, including those without records in the sample."""
    spans = F.max("_timestamp").cast("double") - F.min("_timestamp").cast("double")
    grouped = sample.groupBy("_partition").agg(F.count("*").alias("n"), spans.alias("s"))
    samples = {row["_partition"]: (row["n"], row["s"]) for row in grouped.collect()}
    loads = []
    for tp, (start, end) in sorted(ranges.items()):
        sampled, span = samples.get(tp.partition, (0, None))
        rate = (sampled - 1) / span if span else None  # n records have n - 1 intervals
        loads.append(PartitionLoad(tp.partition, end - start, sampled, rate))
    return loads


def build_report(job: Job, side: str, sample: DataFrame, ranges: OffsetRanges) -> SkewReport:
    columns = get_grouping_columns(job)[side]
    partitions = measure_partition_loads(sample, ranges)
    key_loads = measure_key_loads(sample, columns)
    return SkewReport(
        side=side,
        topic=get_inputs(job)[side].topic,
        columns=columns,
        sampled=sum(load.sampled for load in partitions),
        partitions=tuple(partitions),
        keys=tuple(key_loads),
        advice=tuple(build_advice(job, side, partitions, key_loads)),
    )


def get_grouping_columns(job: Job) -> Mapping[str, tuple[str, ...]]:
    """Return the columns by which Spark shuffles each input; the record's key if by none."""
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
    """Return the offsets of the newest records of each log that has records.

    The share of every log is the same, so that a key has the same share of the sample as of the
    topic.
    """
    records = {tp: end - start for tp, (start, end) in ranges.items() if end > start}
    share = min(1.0, per_partition * len(ranges) / max(1, sum(records.values())))
    return {
        tp: (max(ranges[tp][0], ranges[tp][1] - math.ceil(count * share)), ranges[tp][1])
        for tp, count in records.items()
    }


def measure_skew(
    spark: SparkSession,
    job: Job,
    clusters: Mapping[str, Kafka],
    catalogs: Catalogs,
    per_partition: int,
) -> list[SkewReport]:
    reports = []
    for side, input in get_inputs(job).items():
        kafka = find_cluster(clusters, input.kafka)
        log_ranges = fetch_log_ranges(kafka, input.topic)
        sample_ranges = select_newest(log_ranges, per_partition)
        if not sample_ranges:
            raise PipelineError(f"topic {input.topic} has no records; try again when it has")
        with _name_unreadable():
            records = read_sample(spark, input, kafka, catalogs, sample_ranges).cache()
            try:
                reports.append(build_report(job, side, records, log_ranges))
            finally:
                records.unpersist()
    return reports


def find_join_hot_keys(
    spark: SparkSession, job: Join, clusters: Mapping[str, Kafka], catalogs: Catalogs
) -> list[str]:
    """Return the keys that are hot on the left side of a join, if its `salt.keys` is `auto`.

    The caller must store them with the checkpoint, because state of other hot keys would lose
    pairs: `jobs.join` explains why.
    """
    if job.salt is None or job.salt.keys != "auto":
        return []
    kafka = find_cluster(clusters, job.left.kafka)
    sample_ranges = select_newest(
        fetch_log_ranges(kafka, job.left.topic), DEFAULT_RECORDS_PER_PARTITION
    )
    if not sample_ranges:
        return []
    with _name_unreadable():
        records = read_sample(spark, job.left, kafka, catalogs, sample_ranges)
        return find_hot_keys(records, tuple(job.on), job.salt.share)


def render_report(report: SkewReport) -> str:
    lines = [f"{report.side}: {report.topic}, the newest {report.sampled:,} records", ""]
    busiest = sorted(report.partitions, key=lambda load: (load.rate or 0, load.records))[::-1]
    lines.append("  PARTITION     RECORDS   RECORDS/S")
    for load in busiest[:_MAX_REPORT_ROWS]:
        rate = "-" if load.rate is None else f"{load.rate:,.1f}"
        lines.append(f"  {load.partition:9}  {load.records:10,}  {rate:>10}")
    if len(busiest) > _MAX_REPORT_ROWS:
        lines.append(f"  and {len(busiest) - _MAX_REPORT_ROWS} with lower rates")
    lines += ["", f"  SHARE     RECORDS  KEY ({', '.join(report.columns)})"]
    lines += [f"  {load.share:4.1f}%  {load.records:10,}  {load.key}" for load in report.keys]
    lines += ["", *(f"  {text}" for text in report.advice or ("Even enough: nothing to set.",))]
    return "\n".join(lines)


def read_sample(
    spark: SparkSession, input: Input, kafka: Kafka, catalogs: Catalogs, ranges: OffsetRanges
) -> DataFrame:
    """Return the records of a sample, with the input's columns."""
    input = resolve_fields(input, catalogs)
    return parse_records(read_raw_range(spark, kafka, ranges), input, catalogs)


@contextmanager
def _name_unreadable() -> Iterator[None]:
    """Raise PipelineError if Spark cannot read a record of the sample."""
    try:
        yield
    except Exception as error:
        if unreadable := find_unreadable(list_causes(error)):
            raise PipelineError(f"{unreadable}; {TIMESTAMP_ADVICE}") from error
        raise


def fetch_log_ranges(
    kafka: Kafka, topic: str, timeout_s: float = 30.0
) -> dict[TopicPartition, tuple[int, int]]:
    from confluent_kafka import TopicPartition as Partition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # the types lack it

    specs: Any = OffsetSpec
    admin = create_admin_client(build_client_config(kafka))
    with explain_kafka_errors(f"topic {topic}"):
        metadata = admin.list_topics(topic, timeout=timeout_s).topics[topic]
        if metadata.error is not None:
            problem = f"topic {topic}: {metadata.error.str()}"
            raise PipelineError(f"{problem}; create it, or correct its name")
        places = [Partition(topic, number) for number in metadata.partitions]
        starts, ends = (
            admin.list_offsets(dict.fromkeys(places, spec), request_timeout=timeout_s)
            for spec in (specs.earliest(), specs.latest())
        )
        return {
            TopicPartition(topic, place.partition): (
                starts[place].result(timeout_s).offset,
                ends[place].result(timeout_s).offset,
            )
            for place in places
        }


DEFAULT_HOT_SHARE_PERCENT = 10.0
"""The percentage of the records from which on a key is hot, unless `salt.share` of the job sets
another."""
_HOT_PARTITION_RATIO = 3.0  # a partition is hot from this multiple of the others' average on


class PartitionLoad(NamedTuple):
    """The load of a partition.

    Attributes:
        rate: Records per second over the time that the sample spans; None if the sample has fewer
            than two records, or all have the same timestamp.
    """

    partition: int
    records: int
    sampled: int
    rate: float | None


class KeyLoad(NamedTuple):
    """The load of a key; `share` is its percentage of the sampled records with a key."""

    key: str
    records: int
    share: float


def build_advice(
    job: Job, side: str, partitions: Sequence[PartitionLoad], key_loads: Sequence[KeyLoad]
) -> Iterable[str]:
    """Yield the advised changes of a job; none if the load is even."""
    salt = job.salt if isinstance(job, Join) else None
    share = salt.share if salt is not None else DEFAULT_HOT_SHARE_PERCENT
    hot = [load for load in key_loads if load.share >= share]
    yield from _advise_on_partitions(get_inputs(job)[side], side, partitions)
    if hot:
        hot_keys = ", ".join(f"{load.key} ({load.share:.0f}%)" for load in hot)
        yield from (f"{hot_keys}: {advice}" for advice in _advise_on_keys(job, side))


def _advise_on_partitions(
    input: Input, side: str, partitions: Sequence[PartitionLoad]
) -> Iterable[str]:
    weights = [load.rate or 0.0 for load in partitions]
    if not any(weights):
        weights = [float(load.records) for load in partitions]
    total = sum(weights)
    if len(partitions) < 2 or not total:
        return
    hottest = max(range(len(weights)), key=weights.__getitem__)
    share = weights[hottest] / total
    others = (1 - share) / (len(partitions) - 1)
    if (
        share < _HOT_PARTITION_RATIO * others
        or input.max_records_per_partition
        or input.min_partitions
    ):
        return
    yield (
        f"partition {partitions[hottest].partition} has {100 * share:.0f}% of the records, others "
        f"{100 * others:.1f}% each: set {side}.maxRecordsPerPartition, so that several tasks read "
        "it; the topic needs no more partitions for that"
    )


def _advise_on_keys(job: Job, side: str) -> Iterable[str]:
    match job:
        case Join():
            if finer := sorted(_find_shared_fields(job) - set(job.on)):
                yield (
                    f"add one of {', '.join(finer)} to `on`, if it means the same on both sides: a "
                    "finer key costs nothing"
                )
            if job.salt is None:
                yield (
                    "set salt: {} to spread them, with a new checkpoint; the right side's rows "
                    "with these keys are kept once for each bucket"
                )
        case Sessions():
            yield (
                "one task handles all sessions of a key, whatever state.partitions is: add a "
                "column to `by`, such as the device, or give these keys a separate job"
            )
        case Aggregate() if job.distinct or job.top:
            yield (
                "Spark counts the records of each task before it shuffles them: harmless unless "
                "a task is slow"
            )


def _find_shared_fields(job: Join) -> set[str]:
    left, right = (set(side.value.fields) for side in (job.left, job.right))
    return (left & right) - {job.left.time, job.right.time}
