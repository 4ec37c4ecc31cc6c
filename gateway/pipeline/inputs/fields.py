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

from gateway.config.sections.pipeline import Input

from . import parsing
from .types import META, shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON = "_reason"
TEXT = "_text"
"""Of values with a schema: their JSON text."""
FAULT = "_fault"
"""Of values with a schema: why they have no text."""
_PARSED = "_parsed"
_HALF = "its text has half of a surrogate pair"
_UNTIMELY = "its timestamp is outside of the years 1 to 9999"


def columns(input: Input, derived: Mapping[str, str] | None = None) -> dict[str, str]:
    """The columns that a job sees, and their types. derived: those of a schema."""
    if input.value.model == "string":
        return {"value": "string", **META}
    of_value = {name: shown(kind) for name, kind in fields_of(input, derived).items()}
    return {**of_value, **META}


def fields_of(input: Input, derived: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """As they are written; those of the schema where none are."""
    return input.value.fields or derived or {}


def typed(
    raw: DataFrame,
    input: Input,
    derived: Mapping[str, str] | None = None,
    *,
    observed: str = "",
    timed: bool = True,
) -> DataFrame:
    """Kafka's columns (value, or its JSON text) as those of the job; what is invalid is left out,
    or ends the job where `onInvalid` says so.

    observed: under this name it is counted what is read (`rows`), and `invalid` of it.
    timed: False where records may have any timestamp.
    """
    read = _read(raw, input, derived, timed)
    if observed:
        read = _counted(read, observed)
    from pyspark.sql import functions as F

    wrong = F.col(REASON)
    if input.on_invalid == "fail":
        said = F.concat_ws(" ", F.lit(f"{input.topic}:"), wrong, *_place())
        wrong = F.when(wrong.isNotNull(), F.raise_error(said)).otherwise(wrong)
    if input.value.model == "string":
        return read.where(wrong.isNull()).select("value", *_meta())
    kept = read.where(wrong.isNull() & F.col("value").isNotNull())
    fields = fields_of(input, derived)
    parsed = F.col(_PARSED)
    columns = (parsing.column_of(parsed, *each).alias(each[0]) for each in fields.items())
    return kept.select(*columns, *_meta())


def _counted(read: DataFrame, name: str) -> DataFrame:
    from pyspark.sql import functions as F

    rows = F.count(F.lit(1)).alias("rows")
    return read.observe(name, rows, F.count(F.col(REASON)).alias("invalid"))


def invalid(raw: DataFrame, input: Input, derived: Mapping[str, str] | None = None) -> DataFrame:
    """Kafka's columns of what `typed` leaves out because it is invalid, and `_reason`."""
    read = _read(raw, input, derived)
    return read.where(read[REASON].isNotNull()).select(*raw.columns, REASON)


def _read(
    raw: DataFrame, input: Input, derived: Mapping[str, str] | None, timed: bool = True
) -> DataFrame:
    """Return the rows with `_parsed` (see `parsing`) and `_reason`, null where they are valid."""
    from pyspark.sql import functions as F

    untimely = F.when(parsing.outside_years(F.col("timestamp")), F.lit(_UNTIMELY))
    given_time = untimely if timed and input.time in META else F.lit(None).cast("string")
    if input.value.model == "string":
        plain = raw.withColumn("value", F.col("value").cast("string"))
        return plain.withColumn(REASON, given_time)
    # Not deterministic, in form: the filter on what is parsed would else be pushed below, and each
    # value be parsed again there.
    once = F.when(F.rand(0) + 1 > 0, _text(raw))  # rand() >= 0 alone is optimized away
    fields = fields_of(input, derived)
    parsed = raw.withColumn(_PARSED, parsing.parse(once, fields, finite=_is_json(raw)))
    faults = F.coalesce(*_faults(raw, input, fields), given_time)
    return parsed.withColumn(REASON, F.when(F.col("value").isNotNull(), faults))


def _is_json(raw: DataFrame) -> bool:
    """Return whether values are JSON themselves, and not text that a codec made of them."""
    return TEXT not in raw.columns


def _text(raw: DataFrame) -> Column:
    from pyspark.sql import functions as F

    return F.col("value" if _is_json(raw) else TEXT).cast("string")


def _faults(raw: DataFrame, input: Input, fields: Mapping[str, str]) -> Iterator[Column]:
    """Yield what may be wrong with a value: each a reason, or null."""
    from pyspark.sql import functions as F

    parsed = F.col(_PARSED)
    if FAULT in raw.columns:
        yield F.col(FAULT)
    half = F.when(parsing.has_half_surrogates(_text(raw)), F.lit(_HALF))
    other = F.coalesce(half, F.lit("its value is no JSON of the columns"))
    yield F.when(~parsing.is_whole(parsed), other)
    for name, kind in fields.items():
        wrong = parsing.out_of_range(parsed, _text(raw), name, kind, finite=_is_json(raw))
        if wrong is not None:
            yield F.when(wrong, F.lit(f"'{name}' is out of the range of {shown(kind)}"))
    if input.time not in META:
        timeless = parsing.column_of(parsed, input.time, fields[input.time]).isNull()
        yield F.when(timeless, F.lit(f"it has no event time, '{input.time}'"))


def _meta() -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(name[1:]).alias(name) for name in META]


def _place() -> list[Column]:
    from pyspark.sql import functions as F

    partition, offset = (F.col(name).cast("string") for name in ("partition", "offset"))
    return [F.lit("at partition"), partition, F.lit("offset"), offset]
