"""A topic as a table: a stream with a watermark, or the records between exact offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config import Kafka
from gateway.config.sections.catalog import SchemaRegistry
from gateway.config.sections.pipeline import Input
from gateway.core.log.record import TopicPartition
from gateway.pipeline.checkpoint.checkpoint import Sources
from gateway.pipeline.spark.connect import spark_options

from . import fields, schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Catalogs = Mapping[str, SchemaRegistry]

__all__ = ["RAW", "Catalogs", "Offsets", "raw_range", "read_range", "read_stream", "typed"]

RAW = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of Kafka's that are read."""


_NAME = "gatewayInput"  # an option that Spark hands on and Kafka's source does not know


class Offsets(NamedTuple):
    """From `start` on, up to before `end`."""

    start: int
    end: int


def read_stream(
    spark: SparkSession,
    input: Input,
    kafka: Kafka,
    catalogs: Catalogs,
    *,
    name: str = "",
    observed: str = "",
    timed: bool = True,
) -> DataFrame:
    """The job's columns, with its watermark.

    name: of the input, for `sources_of`.
    observed: under this name progress says how many `rows` were read and `invalid` ones among them.
    timed: False where the job has no event time, so that its records may have any timestamp.
    Raises PipelineError, RegistryUnavailable, FormatError: of a schema.
    """
    options = spark_options(kafka) | _options(input) | {"subscribe": input.topic, _NAME: name}
    loaded = spark.readStream.format("kafka").options(**options).load()
    table = typed(loaded.select(*_needed(input)), input, catalogs, observed=observed, timed=timed)
    return table.withWatermark(input.time, f"{input.watermark * 1000:.0f} milliseconds")


def sources_of(rows: DataFrame) -> Sources:
    """Return which inputs the sources of a query are that these rows are of.

    Spark numbers sources as it meets them in the analysed plan, an equal one once; a batch's
    offsets have a line for each place (4.2.0).
    """
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    found: list[tuple[Any, str]] = []
    for leaf in (leaves.apply(at) for at in range(leaves.length())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            found.append((leaf, str(leaf.extraOptions().get(_NAME))))
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
    return typed(raw_range(spark, kafka, ranges), input, catalogs)


def raw_range(
    spark: SparkSession, kafka: Kafka, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> DataFrame:
    """Kafka's columns of the records in these ranges, with their headers."""
    wanted = {
        "assign": _assigned(ranges, None),
        "startingOffsets": _assigned(ranges, 0),
        "endingOffsets": _assigned(ranges, 1),
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    loaded = spark.read.format("kafka").options(**spark_options(kafka), **wanted).load()
    return loaded.select(*RAW)


def typed(
    raw: DataFrame,
    input: Input,
    catalogs: Catalogs | None = None,
    *,
    observed: str = "",
    timed: bool = True,
) -> DataFrame:
    """Kafka's columns as the job's. catalogs: for values with a schema."""
    decoded, derived = schemas.decoded(raw, input, catalogs or {})
    return fields.typed(decoded, input, derived, observed=observed, timed=timed)


def invalid(raw: DataFrame, input: Input, catalogs: Catalogs | None = None) -> DataFrame:
    """Kafka's columns of what `typed` leaves out as invalid, and `_reason`."""
    decoded, derived = schemas.decoded(raw, input, catalogs or {})
    found = fields.invalid(decoded, input, derived)
    return found.select(*raw.columns, fields.REASON)


def _needed(input: Input) -> tuple[str, ...]:
    return tuple(name for name in RAW if name != "headers")


def _options(input: Input) -> dict[str, str]:
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


def _assigned(ranges: Mapping[TopicPartition, tuple[int, int]], which: int | None) -> str:
    """Spark's JSON: topic -> partitions, or topic -> partition -> offset."""
    found: dict[str, Any] = {}
    for tp, bounds in ranges.items():
        if which is None:
            found.setdefault(tp.topic, []).append(tp.partition)
        else:
            found.setdefault(tp.topic, {})[str(tp.partition)] = bounds[which]
    return json.dumps(found)
