"""Read a topic as a table: as a stream with a watermark, or the records of exact offsets.

Spark itself reads JSON. Values in Avro, Protobuf and JSON Schema are first converted to JSON text
in Python, by Arrow batches (see `schemas`). So types, times and invalid values mean the same for
all models.

A record is invalid if its value is not exactly one JSON object of the types of its columns, if a
value is out of the range of its type, or if its event time is missing or outside of the years 1 to
9999. A tombstone (a record without a value) is not an event and is left out; with the model
`string` it is a null.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gateway.config import Kafka
from gateway.config.sections.job import Input
from gateway.config.sections.security import SchemaRegistry
from gateway.core.log.record import TopicPartition
from gateway.pipeline.checkpoint.checkpoint import Sources
from gateway.pipeline.clusters import build_spark_options
from gateway.pipeline.spark import F
from gateway.pipeline.spark.internals import get_analyzed_plan, iterate

from . import parsing, schemas
from .types import HEADERS_COLUMN, RECORD_COLUMN_TYPES, get_column_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Catalogs = Mapping[str, SchemaRegistry]

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of Spark's Kafka source that are read."""

# Spark has `headers` only with `includeHeaders`, and jobs do not use them: the records of dead
# letters, which keep them, are read again by `read_raw_range`.
_STREAM_COLUMNS = tuple(name for name in KAFKA_COLUMNS if name != "headers")

# Spark keeps this option in its plan, and its Kafka source ignores it. `list_source_labels` reads
# it.
_LABEL_OPTION = "gatewayInput"
_LABEL_SEPARATOR = "|"  # between the name of the input and the label's own part


def read_stream(
    spark: SparkSession,
    input: Input,
    kafka: Kafka,
    catalogs: Catalogs,
    *,
    label: str = "",
    metrics_name: str = "",
    has_event_time: bool = True,
    has_headers: bool = False,
) -> DataFrame:
    """Return an input, as of `resolve_fields`, as a stream of its columns, with its watermark.

    Args:
        label: As of `load_stream`.
        metrics_name: The name under which the query's progress counts the `rows` that were read,
            and the `invalid` ones among them. "" counts nothing.
        has_event_time: False if the job does not use event time, so that records may have any
            timestamp.
        has_headers: Whether there is a column `_headers`.
    """
    records = load_stream(spark, input, kafka, label, has_headers=has_headers)
    table = parse_records(
        records.withColumnRenamed("headers", HEADERS_COLUMN),
        input,
        catalogs,
        metrics_name=metrics_name,
        has_event_time=has_event_time,
    )
    return table.withWatermark(input.time, f"{input.watermark * 1000:.0f} milliseconds")


def load_stream(
    spark: SparkSession, input: Input, kafka: Kafka, label: str, *, has_headers: bool
) -> DataFrame:
    """Return the records of an input as Spark reads them.

    Args:
        label: A text that `list_source_labels` finds in the plan: the name of the input, to which
            `create_label` may have added an id.
    """
    options = (
        build_spark_options(kafka)
        | _build_source_options(input)
        | {"subscribe": input.topic, _LABEL_OPTION: label}
        | ({"includeHeaders": "true"} if has_headers else {})
    )
    loaded = spark.readStream.format("kafka").options(**options).load()
    return loaded.select(*(KAFKA_COLUMNS if has_headers else _STREAM_COLUMNS))


def observe_rows(name: str, table: DataFrame) -> DataFrame:
    """Return a table whose filters stay above its watermark, and whose rows are counted.

    Only rows that pass a filter below the watermark would end windows, and the last windows would
    never end. Spark pushes no filter through `observe`. (It does push one through another filter,
    even one with `rand()`.) Progress has the number of rows as `read <name>`.
    """
    return table.observe(f"read {name}", F.count(F.lit(1)).alias("rows"))


def create_label(name: str) -> str:
    """Return a label that no other stream has, whatever their names are."""
    return f"{name}{_LABEL_SEPARATOR}{uuid.uuid4().hex}"


def list_source_labels(rows: DataFrame) -> list[str | None]:
    """Return the label of each stream that a query reads; None for one without a label."""
    leaves = iterate(get_analyzed_plan(rows, inline_ctes=True).collectLeaves())
    return [_get_label(leaf) for leaf in leaves if leaf.isStreaming()]


def _get_label(leaf: Any) -> str | None:
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return None
    label: str | None = leaf.extraOptions().get(_LABEL_OPTION)
    return label


def find_sources(rows: DataFrame) -> Sources:
    """Return which input each source of a query is.

    Spark numbers the directories of sources in the order of the analysed plan, and equal sources
    have one number. The offsets of a batch have a line for each occurrence in the plan (4.2.0).
    """
    relations: list[tuple[Any, str]] = []
    for leaf in iterate(get_analyzed_plan(rows).collectLeaves()):
        if (label := _get_label(leaf)) is not None:
            relations.append((leaf, label.partition(_LABEL_SEPARATOR)[0]))
    distinct = [
        name
        for i, (relation, name) in enumerate(relations)
        if not any(relation.equals(earlier) for earlier, _ in relations[:i])
    ]
    return Sources(tuple(name for _, name in relations), tuple(distinct))


def read_raw_range(
    spark: SparkSession, kafka: Kafka, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> DataFrame:
    """Return the records of ranges of offsets, without those that retention has deleted."""
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


REASON_COLUMN = "_reason"
RAW_COLUMN = "_raw_record"
"""A column of the records that `parse_records` keeps if they have it."""
_PARSED_COLUMN = "_parsed"
_HALF_SURROGATE_REASON = "its text has half of a surrogate pair"
_TIMESTAMP_REASON = "its timestamp is outside of the years 1 to 9999"


def get_columns(input: Input) -> dict[str, str]:
    if input.value.model == "string":
        return {"value": "string", **RECORD_COLUMN_TYPES}
    value_columns = {
        name: get_column_type(type_text) for name, type_text in input.value.fields.items()
    }
    return {**value_columns, **RECORD_COLUMN_TYPES}


def parse_records(
    raw: DataFrame,
    input: Input,
    catalogs: Catalogs | None = None,
    *,
    metrics_name: str = "",
    has_event_time: bool = True,
) -> DataFrame:
    """Convert the columns of Kafka to those of the job.

    Invalid records are left out, or end the job if `onInvalid` is `fail`.

    Args:
        metrics_name: The name under which the `rows` that were read and the `invalid` ones among
            them are counted. "" counts nothing.
        has_event_time: False if records may have any timestamp.
    """
    raw = schemas.decode_values(raw, input, catalogs or {})
    parsed_rows, reason = _parse_rows(raw, input, has_event_time), F.col(REASON_COLUMN)
    if metrics_name:
        rows, invalid = F.count(F.lit(1)).alias("rows"), F.count(reason).alias("invalid")
        parsed_rows = parsed_rows.observe(metrics_name, rows, invalid)
    if input.on_invalid == "fail":
        partition, offset = (F.col(name).cast("string") for name in ("partition", "offset"))
        place = (F.lit("at partition"), partition, F.lit("offset"), offset)
        message = F.concat_ws(" ", F.lit(f"{input.topic}:"), reason, *place)
        reason = F.when(reason.isNotNull(), F.raise_error(message)).otherwise(reason)
    if input.value.model == "string":
        return parsed_rows.where(reason.isNull()).select("value", *_select_record_columns(raw))
    valid = parsed_rows.where(reason.isNull() & F.col("value").isNotNull())
    parsed = F.col(_PARSED_COLUMN)
    text = _get_text(raw)
    columns = (
        parsing.get_column(parsed, text, _get_json_name(input, name), type_text).alias(name)
        for name, type_text in input.value.fields.items()
    )
    return valid.select(*columns, *_select_record_columns(raw))


def select_invalid_records(
    raw: DataFrame, input: Input, catalogs: Catalogs | None = None
) -> DataFrame:
    """Return the records that `parse_records` leaves out as invalid, with the column `_reason`."""
    rows = _parse_rows(schemas.decode_values(raw, input, catalogs or {}), input)
    return rows.where(rows[REASON_COLUMN].isNotNull()).select(*raw.columns, REASON_COLUMN)


def _parse_rows(raw: DataFrame, input: Input, has_event_time: bool = True) -> DataFrame:
    """Add the columns `_parsed` (see `parsing`) and `_reason`, which is null for valid records."""
    # The record's own timestamp only matters if it is the event time.
    out_of_years = F.when(parsing.is_outside_years(F.col("timestamp")), F.lit(_TIMESTAMP_REASON))
    timestamp_fault = (
        out_of_years
        if has_event_time and input.time in RECORD_COLUMN_TYPES
        else F.lit(None).cast("string")
    )
    if input.value.model == "string":
        plain = raw.withColumn("value", F.col("value").cast("string"))
        return plain.withColumn(REASON_COLUMN, timestamp_fault)
    # This always true condition makes the expression formally non-deterministic. Otherwise Spark
    # pushes the filter on the parsed value below the projection, and parses each value once more.
    text = F.when(F.rand(0) + 1 > 0, _get_text(raw))  # rand() >= 0 alone is optimized away
    fields = input.value.fields
    types = {_get_json_name(input, name): type_text for name, type_text in fields.items()}
    parsed = raw.withColumn(
        _PARSED_COLUMN, parsing.parse_json(text, types, require_finite=_has_json_values(raw))
    )
    faults = F.coalesce(*_iter_faults(raw, input, fields), timestamp_fault)
    return parsed.withColumn(REASON_COLUMN, F.when(F.col("value").isNotNull(), faults))


def _get_json_name(input: Input, column: str) -> str:
    return input.value.json_names.get(column, column)


def _has_json_values(raw: DataFrame) -> bool:
    """Return whether the values are JSON themselves, not text that a codec has made of them."""
    return schemas.TEXT_COLUMN not in raw.columns


def _get_text(raw: DataFrame) -> Column:
    return F.col("value" if _has_json_values(raw) else schemas.TEXT_COLUMN).cast("string")


def _iter_faults(raw: DataFrame, input: Input, fields: Mapping[str, str]) -> Iterator[Column]:
    """Yield a column for each possible fault of a value: the reason, or null."""
    parsed = F.col(_PARSED_COLUMN)
    if schemas.FAULT_COLUMN in raw.columns:
        yield F.col(schemas.FAULT_COLUMN)
    surrogate = F.when(parsing.has_half_surrogates(_get_text(raw)), F.lit(_HALF_SURROGATE_REASON))
    reason = F.coalesce(surrogate, F.lit("its value is no JSON of the columns"))
    yield F.when(~parsing.is_whole(parsed), reason)
    for name, type_text in fields.items():
        out_of_range = parsing.is_out_of_range(
            parsed,
            _get_text(raw),
            _get_json_name(input, name),
            type_text,
            require_finite=_has_json_values(raw),
        )
        if out_of_range is not None:
            column_type = get_column_type(type_text)
            yield F.when(out_of_range, F.lit(f"'{name}' is out of the range of {column_type}"))
    if input.time not in RECORD_COLUMN_TYPES:
        time = parsing.get_column(
            parsed, _get_text(raw), _get_json_name(input, input.time), fields[input.time]
        )
        yield F.when(time.isNull(), F.lit(f"it has no event time, '{input.time}'"))


def _select_record_columns(raw: DataFrame) -> list[Column]:
    kept = [F.col(name) for name in raw.columns if name in (RAW_COLUMN, HEADERS_COLUMN)]
    return [*(F.col(name[1:]).alias(name) for name in RECORD_COLUMN_TYPES), *kept]
