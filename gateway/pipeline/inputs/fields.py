"""Convert the records of an input to columns, and find invalid ones.

Spark itself reads JSON. Values in Avro, Protobuf and JSON Schema are first converted to JSON text
in Python, by Arrow batches (see `schemas`). So types, times and invalid values mean the same for
all models.

A record is invalid if its value is not exactly one JSON object of the types of its columns, if a
value is out of the range of its type, or if its event time is missing or outside of the years 1 to
9999. A tombstone (a record without a value) is not an event and is left out; with the model
`string` it is a null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gateway.config.sections.job import Input

from . import parsing
from .types import RECORD_COLUMN_TYPES, get_column_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON_COLUMN = "_reason"
TEXT_COLUMN = "_text"
"""The JSON text of values with a schema."""
FAULT_COLUMN = "_fault"
"""Why a value with a schema has no JSON text."""
RAW_COLUMN = "_raw_record"
"""A column of the records that `parse_values` keeps if they have it."""
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


def parse_values(
    raw: DataFrame,
    input: Input,
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
    parsed_rows = _parse_rows(raw, input, has_event_time)
    if metrics_name:
        parsed_rows = _observe_counts(parsed_rows, metrics_name)
    from pyspark.sql import functions as F

    reason = F.col(REASON_COLUMN)
    if input.on_invalid == "fail":
        message = F.concat_ws(" ", F.lit(f"{input.topic}:"), reason, *_build_location())
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


def _observe_counts(parsed: DataFrame, metrics_name: str) -> DataFrame:
    from pyspark.sql import functions as F

    rows = F.count(F.lit(1)).alias("rows")
    return parsed.observe(metrics_name, rows, F.count(F.col(REASON_COLUMN)).alias("invalid"))


def select_invalid_values(raw: DataFrame, input: Input) -> DataFrame:
    """Return the records that `parse_values` leaves out as invalid, with the column `_reason`."""
    rows = _parse_rows(raw, input)
    return rows.where(rows[REASON_COLUMN].isNotNull()).select(*raw.columns, REASON_COLUMN)


def _parse_rows(raw: DataFrame, input: Input, has_event_time: bool = True) -> DataFrame:
    """Add the columns `_parsed` (see `parsing`) and `_reason`, which is null for valid records."""
    from pyspark.sql import functions as F

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
    return TEXT_COLUMN not in raw.columns


def _get_text(raw: DataFrame) -> Column:
    from pyspark.sql import functions as F

    return F.col("value" if _has_json_values(raw) else TEXT_COLUMN).cast("string")


def _iter_faults(raw: DataFrame, input: Input, fields: Mapping[str, str]) -> Iterator[Column]:
    """Yield a column for each possible fault of a value: the reason, or null."""
    from pyspark.sql import functions as F

    parsed = F.col(_PARSED_COLUMN)
    if FAULT_COLUMN in raw.columns:
        yield F.col(FAULT_COLUMN)
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
    from pyspark.sql import functions as F

    kept = [F.col(name) for name in raw.columns if name == RAW_COLUMN]
    return [*(F.col(name[1:]).alias(name) for name in RECORD_COLUMN_TYPES), *kept]


def _build_location() -> list[Column]:
    from pyspark.sql import functions as F

    partition, offset = (F.col(name).cast("string") for name in ("partition", "offset"))
    return [F.lit("at partition"), partition, F.lit("offset"), offset]
