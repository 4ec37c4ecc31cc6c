"""Read a topic as a table: as a stream with a watermark, or the records of exact offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config import Kafka
from gateway.config.sections.job import Input
from gateway.config.sections.security import SchemaRegistry
from gateway.core.log.record import TopicPartition
from gateway.pipeline.checkpoint.checkpoint import Sources
from gateway.pipeline.spark.client_config import build_spark_options

from . import fields, schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Catalogs = Mapping[str, SchemaRegistry]

__all__ = [
    "KAFKA_COLUMNS",
    "Catalogs",
    "OffsetRange",
    "parse_records",
    "read_range",
    "read_raw_range",
    "read_stream",
]

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of Spark's Kafka source that are read."""

# Spark has `headers` only with `includeHeaders`. No job uses them: the records of dead letters,
# which keep them, are read again by `read_raw_range`.
_STREAM_COLUMNS = tuple(name for name in KAFKA_COLUMNS if name != "headers")

# Spark keeps this option in its plan, and its Kafka source ignores it. `find_sources` reads it.
_INPUT_NAME_OPTION = "gatewayInput"


class OffsetRange(NamedTuple):
    start: int
    end: int


def read_stream(
    spark: SparkSession,
    input: Input,
    kafka: Kafka,
    catalogs: Catalogs,
    *,
    input_name: str = "",
    metrics_name: str = "",
    has_event_time: bool = True,
) -> DataFrame:
    """Return an input, as of `resolve_fields`, as a stream of its columns, with its watermark.

    Args:
        input_name: The name of the input, which `find_sources` finds in the plan.
        metrics_name: The name under which the query's progress counts the `rows` that were read,
            and the `invalid` ones among them. "" counts nothing.
        has_event_time: False if the job does not use event time, so that records may have any
            timestamp.
    """
    options = (
        build_spark_options(kafka)
        | _build_source_options(input)
        | {"subscribe": input.topic, _INPUT_NAME_OPTION: input_name}
    )
    loaded = spark.readStream.format("kafka").options(**options).load()
    table = parse_records(
        loaded.select(*_STREAM_COLUMNS),
        input,
        catalogs,
        metrics_name=metrics_name,
        has_event_time=has_event_time,
    )
    return table.withWatermark(input.time, f"{input.watermark * 1000:.0f} milliseconds")


def find_sources(rows: DataFrame) -> Sources:
    """Return which input each source of a query is.

    Spark numbers the directories of sources in the order of the analysed plan, and equal sources
    have one number. The offsets of a batch have a line for each occurrence in the plan (4.2.0).
    """
    # PySpark does not expose the plan, so this goes through Py4J.
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    relations: list[tuple[Any, str]] = []
    for leaf in (leaves.apply(i) for i in range(leaves.length())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            relations.append((leaf, str(leaf.extraOptions().get(_INPUT_NAME_OPTION))))
    distinct = [
        name
        for i, (relation, name) in enumerate(relations)
        if not any(relation.equals(earlier) for earlier, _ in relations[:i])
    ]
    return Sources(tuple(name for _, name in relations), tuple(distinct))


def read_range(
    spark: SparkSession,
    input: Input,
    kafka: Kafka,
    catalogs: Catalogs,
    ranges: Mapping[TopicPartition, tuple[int, int]],
) -> DataFrame:
    """Return the records of ranges of offsets, without those that retention has deleted."""
    resolved = schemas.resolve_fields(input, catalogs)
    return parse_records(read_raw_range(spark, kafka, ranges), resolved, catalogs)


def read_raw_range(
    spark: SparkSession, kafka: Kafka, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> DataFrame:
    options = {
        "assign": _format_ranges(ranges, None),
        "startingOffsets": _format_ranges(ranges, 0),
        "endingOffsets": _format_ranges(ranges, 1),
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    loaded = spark.read.format("kafka").options(**build_spark_options(kafka), **options).load()
    return loaded.select(*KAFKA_COLUMNS)


def parse_records(
    raw: DataFrame,
    input: Input,
    catalogs: Catalogs | None = None,
    *,
    metrics_name: str = "",
    has_event_time: bool = True,
) -> DataFrame:
    decoded = schemas.decode_values(raw, input, catalogs or {})
    return fields.parse_values(
        decoded, input, metrics_name=metrics_name, has_event_time=has_event_time
    )


def select_invalid_records(
    raw: DataFrame, input: Input, catalogs: Catalogs | None = None
) -> DataFrame:
    """Return the records that `parse_records` leaves out as invalid, with the column `_reason`."""
    decoded = schemas.decode_values(raw, input, catalogs or {})
    invalid = fields.select_invalid_values(decoded, input)
    return invalid.select(*raw.columns, fields.REASON_COLUMN)


def _build_source_options(input: Input) -> dict[str, str]:
    options = {
        "startingOffsets": input.start,
        # Gap records report what retention has deleted. Spark itself could only end the job.
        "failOnDataLoss": "true" if input.on_data_loss == "fail" else "false",
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": input.max_records,
        "minPartitions": input.min_partitions,
        "maxRecordsPerPartition": input.max_records_per_partition,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def _format_ranges(
    ranges: Mapping[TopicPartition, tuple[int, int]], bound_index: int | None
) -> str:
    """Return JSON of partitions (index None), start offsets (0) or end offsets (1)."""
    topics: dict[str, Any] = {}
    for tp, bounds in ranges.items():
        if bound_index is None:
            topics.setdefault(tp.topic, []).append(tp.partition)
        else:
            topics.setdefault(tp.topic, {})[str(tp.partition)] = bounds[bound_index]
    return json.dumps(topics)
