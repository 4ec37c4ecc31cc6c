"""The columns of an input: what a record's value becomes.

JSON is read by Spark itself. Avro, Protobuf and JSON Schema are made JSON text by Arrow batches in
Python first (see `schemas`), so that types, times and what is invalid mean the same in all.

A record is invalid if its value is not one JSON value of the types of its columns, one of them is
out of the range of its type, or its event time is missing or outside of the years 1 to 9999. A
tombstone (no value) is no event and passed over; with model string it is a null.
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
"""Of values with a schema: their JSON text."""
FAULT_COLUMN = "_fault"
"""Of values with a schema: why they have no text."""
_PARSED_COLUMN = "_parsed"
_HALF_SURROGATE_REASON = "its text has half of a surrogate pair"
_TIMESTAMP_REASON = "its timestamp is outside of the years 1 to 9999"


def get_columns(input: Input, schema_columns: Mapping[str, str] | None = None) -> dict[str, str]:
    """The columns that a job sees, and their types. derived: those of a schema."""
    if input.value.model == "string":
        return {"value": "string", **RECORD_COLUMN_TYPES}
    of_value = {
        name: get_column_type(kind) for name, kind in get_fields(input, schema_columns).items()
    }
    return {**of_value, **RECORD_COLUMN_TYPES}


def get_fields(input: Input, schema_columns: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """As they are written; those of the schema where none are."""
    return input.value.fields or schema_columns or {}


def parse_values(
    raw: DataFrame,
    input: Input,
    schema_columns: Mapping[str, str] | None = None,
    *,
    metrics_name: str = "",
    has_event_time: bool = True,
) -> DataFrame:
    """Kafka's columns (value, or its JSON text) as those of the job; what is invalid is left out,
    or ends the job where `onInvalid` says so.

    observed: under this name it is counted what is read (`rows`), and `invalid` of it.
    timed: False where records may have any timestamp.
    """
    read = _parse_rows(raw, input, schema_columns, has_event_time)
    if metrics_name:
        read = _observe_counts(read, metrics_name)
    from pyspark.sql import functions as F

    wrong = F.col(REASON_COLUMN)
    if input.on_invalid == "fail":
        said = F.concat_ws(" ", F.lit(f"{input.topic}:"), wrong, *_build_location())
        wrong = F.when(wrong.isNotNull(), F.raise_error(said)).otherwise(wrong)
    if input.value.model == "string":
        return read.where(wrong.isNull()).select("value", *_select_record_columns())
    kept = read.where(wrong.isNull() & F.col("value").isNotNull())
    fields = get_fields(input, schema_columns)
    parsed = F.col(_PARSED_COLUMN)
    columns = (parsing.get_column(parsed, *each).alias(each[0]) for each in fields.items())
    return kept.select(*columns, *_select_record_columns())


def _observe_counts(parsed: DataFrame, metrics_name: str) -> DataFrame:
    from pyspark.sql import functions as F

    rows = F.count(F.lit(1)).alias("rows")
    return parsed.observe(metrics_name, rows, F.count(F.col(REASON_COLUMN)).alias("invalid"))


def select_invalid_values(
    raw: DataFrame, input: Input, schema_columns: Mapping[str, str] | None = None
) -> DataFrame:
    """Kafka's columns of what `typed` leaves out because it is invalid, and `_reason`."""
    read = _parse_rows(raw, input, schema_columns)
    return read.where(read[REASON_COLUMN].isNotNull()).select(*raw.columns, REASON_COLUMN)


def _parse_rows(
    raw: DataFrame,
    input: Input,
    schema_columns: Mapping[str, str] | None,
    has_event_time: bool = True,
) -> DataFrame:
    """Return the rows with `_parsed` (see `parsing`) and `_reason`, null where they are valid."""
    from pyspark.sql import functions as F

    untimely = F.when(parsing.is_outside_years(F.col("timestamp")), F.lit(_TIMESTAMP_REASON))
    given_time = (
        untimely
        if has_event_time and input.time in RECORD_COLUMN_TYPES
        else F.lit(None).cast("string")
    )
    if input.value.model == "string":
        plain = raw.withColumn("value", F.col("value").cast("string"))
        return plain.withColumn(REASON_COLUMN, given_time)
    # Not deterministic, in form: the filter on what is parsed would else be pushed below, and each
    # value be parsed again there.
    once = F.when(F.rand(0) + 1 > 0, _get_text(raw))  # rand() >= 0 alone is optimized away
    fields = get_fields(input, schema_columns)
    parsed = raw.withColumn(
        _PARSED_COLUMN, parsing.parse_json(once, fields, require_finite=_has_json_values(raw))
    )
    faults = F.coalesce(*_iter_faults(raw, input, fields), given_time)
    return parsed.withColumn(REASON_COLUMN, F.when(F.col("value").isNotNull(), faults))


def _has_json_values(raw: DataFrame) -> bool:
    """Return whether values are JSON themselves, and not text that a codec made of them."""
    return TEXT_COLUMN not in raw.columns


def _get_text(raw: DataFrame) -> Column:
    from pyspark.sql import functions as F

    return F.col("value" if _has_json_values(raw) else TEXT_COLUMN).cast("string")


def _iter_faults(raw: DataFrame, input: Input, fields: Mapping[str, str]) -> Iterator[Column]:
    """Yield what may be wrong with a value: each a reason, or null."""
    from pyspark.sql import functions as F

    parsed = F.col(_PARSED_COLUMN)
    if FAULT_COLUMN in raw.columns:
        yield F.col(FAULT_COLUMN)
    half = F.when(parsing.has_half_surrogates(_get_text(raw)), F.lit(_HALF_SURROGATE_REASON))
    other = F.coalesce(half, F.lit("its value is no JSON of the columns"))
    yield F.when(~parsing.is_whole(parsed), other)
    for name, kind in fields.items():
        wrong = parsing.is_out_of_range(
            parsed, _get_text(raw), name, kind, require_finite=_has_json_values(raw)
        )
        if wrong is not None:
            yield F.when(wrong, F.lit(f"'{name}' is out of the range of {get_column_type(kind)}"))
    if input.time not in RECORD_COLUMN_TYPES:
        timeless = parsing.get_column(parsed, input.time, fields[input.time]).isNull()
        yield F.when(timeless, F.lit(f"it has no event time, '{input.time}'"))


def _select_record_columns() -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(name[1:]).alias(name) for name in RECORD_COLUMN_TYPES]


def _build_location() -> list[Column]:
    from pyspark.sql import functions as F

    partition, offset = (F.col(name).cast("string") for name in ("partition", "offset"))
    return [F.lit("at partition"), partition, F.lit("offset"), offset]
