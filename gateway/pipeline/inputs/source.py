"""A topic as a table: a stream with a watermark, or the records between exact offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config import Kafka
from gateway.config.sections.catalog import SchemaRegistry
from gateway.config.sections.job import Input
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
"""The columns of Kafka's that are read."""


_INPUT_NAME_OPTION = (
    "gatewayInput"  # an option that Spark hands on and Kafka's source does not know
)


class OffsetRange(NamedTuple):
    """From `start` on, up to before `end`."""

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
    """The job's columns, with its watermark.

    name: of the input, for `sources_of`.
    observed: under this name progress says how many `rows` were read and `invalid` ones among them.
    timed: False where the job has no event time, so that its records may have any timestamp.
    Raises PipelineError, RegistryUnavailable, FormatError: of a schema.
    """
    options = (
        build_spark_options(kafka)
        | _build_source_options(input)
        | {"subscribe": input.topic, _INPUT_NAME_OPTION: input_name}
    )
    loaded = spark.readStream.format("kafka").options(**options).load()
    table = parse_records(
        loaded.select(*_list_stream_columns(input)),
        input,
        catalogs,
        metrics_name=metrics_name,
        has_event_time=has_event_time,
    )
    return table.withWatermark(input.time, f"{input.watermark * 1000:.0f} milliseconds")


def find_sources(rows: DataFrame) -> Sources:
    """Return which inputs the sources of a query are that these rows are of.

    Spark numbers sources as it meets them in the analysed plan, an equal one once; a batch's
    offsets have a line for each place (4.2.0).
    """
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    found: list[tuple[Any, str]] = []
    for leaf in (leaves.apply(at) for at in range(leaves.length())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            found.append((leaf, str(leaf.extraOptions().get(_INPUT_NAME_OPTION))))
    distinct = [
        name
        for at, (leaf, name) in enumerate(found)
        if not any(leaf.equals(before) for before, _ in found[:at])
    ]
    return Sources(tuple(name for _, name in found), tuple(distinct))


def read_range(
    spark: SparkSession,
    input: Input,
    kafka: Kafka,
    catalogs: Catalogs,
    ranges: Mapping[TopicPartition, tuple[int, int]],
) -> DataFrame:
    """The job's columns of the records in these ranges: from the first offset of each up to before
    the second. What retention took is left out."""
    return parse_records(read_raw_range(spark, kafka, ranges), input, catalogs)


def read_raw_range(
    spark: SparkSession, kafka: Kafka, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> DataFrame:
    """Kafka's columns of the records in these ranges, with their headers."""
    wanted = {
        "assign": _format_ranges(ranges, None),
        "startingOffsets": _format_ranges(ranges, 0),
        "endingOffsets": _format_ranges(ranges, 1),
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    loaded = spark.read.format("kafka").options(**build_spark_options(kafka), **wanted).load()
    return loaded.select(*KAFKA_COLUMNS)


def parse_records(
    raw: DataFrame,
    input: Input,
    catalogs: Catalogs | None = None,
    *,
    metrics_name: str = "",
    has_event_time: bool = True,
) -> DataFrame:
    """Kafka's columns as the job's. catalogs: for values with a schema."""
    decoded, derived = schemas.decode_values(raw, input, catalogs or {})
    return fields.parse_values(
        decoded, input, derived, metrics_name=metrics_name, has_event_time=has_event_time
    )


def select_invalid_records(
    raw: DataFrame, input: Input, catalogs: Catalogs | None = None
) -> DataFrame:
    """Kafka's columns of what `typed` leaves out as invalid, and `_reason`."""
    decoded, derived = schemas.decode_values(raw, input, catalogs or {})
    found = fields.select_invalid_values(decoded, input, derived)
    return found.select(*raw.columns, fields.REASON_COLUMN)


def _list_stream_columns(input: Input) -> tuple[str, ...]:
    return tuple(name for name in KAFKA_COLUMNS if name != "headers")


def _build_source_options(input: Input) -> dict[str, str]:
    found = {
        "startingOffsets": input.start,
        # What retention took is told by gap records; Spark itself would only end the job.
        "failOnDataLoss": "true" if input.on_data_loss == "fail" else "false",
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": input.max_records,
        "minPartitions": input.min_partitions,
        "maxRecordsPerPartition": input.max_records_per_partition,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _format_ranges(
    ranges: Mapping[TopicPartition, tuple[int, int]], bound_index: int | None
) -> str:
    """Spark's JSON: topic -> partitions, or topic -> partition -> offset."""
    found: dict[str, Any] = {}
    for tp, bounds in ranges.items():
        if bound_index is None:
            found.setdefault(tp.topic, []).append(tp.partition)
        else:
            found.setdefault(tp.topic, {})[str(tp.partition)] = bounds[bound_index]
    return json.dumps(found)
