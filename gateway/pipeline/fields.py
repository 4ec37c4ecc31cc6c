"""The columns of an input: what a record's value becomes.

JSON is read by Spark itself. Avro, Protobuf and JSON Schema are made JSON text by Arrow batches in
Python first (see `schemas`), so that types, times and what is invalid mean the same in all.

A record is invalid if its value is no JSON of the types of its columns, or its event time is
missing. A tombstone (no value) is no event and passed over; with model string it is a null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.config.pipeline import Input

from .types import META, MILLIS, shown, spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON = "_reason"
TEXT = "_text"
"""Of values with a schema: their JSON text."""
FAULT = "_fault"
"""Of values with a schema: why they have no text."""
_CORRUPT = "_corrupt_record"
_HEARD = "_heard"


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
) -> DataFrame:
    """Kafka's columns (value, or its JSON text) as those of the job; what is invalid is left out,
    or ends the job where `onInvalid` says so.

    observed: under this name it is counted what is read (`rows`), and `invalid` of it.
    """
    read = _read(raw, input, derived)
    if observed:
        read = _counted(read, observed)
    if input.value.model == "string":
        return read.select("value", *_meta())
    from pyspark.sql import functions as F

    wrong = F.col(REASON)
    if input.on_invalid == "fail":
        said = F.concat_ws(" ", F.lit(f"{input.topic}:"), wrong, *_place())
        wrong = F.when(wrong.isNotNull(), F.raise_error(said)).otherwise(wrong)
    kept = read.where(wrong.isNull() & F.col("value").isNotNull())
    fields = fields_of(input, derived)
    return kept.select(*(_shown(name, kind) for name, kind in fields.items()), *_meta())


def _counted(read: DataFrame, name: str) -> DataFrame:
    from pyspark.sql import functions as F

    rows = F.count(F.lit(1)).alias("rows")
    return read.observe(name, rows, F.count(F.col(REASON)).alias("invalid"))


def invalid(raw: DataFrame, input: Input, derived: Mapping[str, str] | None = None) -> DataFrame:
    """Kafka's columns of what `typed` leaves out because it is invalid, and `_reason`."""
    read = _read(raw, input, derived)
    return read.where(read[REASON].isNotNull()).select(*raw.columns, REASON)


def _read(raw: DataFrame, input: Input, derived: Mapping[str, str] | None) -> DataFrame:
    """With `_heard`, a struct of the columns, and `_reason`, null where it is valid."""
    from pyspark.sql import functions as F

    if input.value.model == "string":
        plain = raw.withColumn("value", F.col("value").cast("string"))
        return plain.withColumn(REASON, F.lit(None).cast("string"))
    fields = fields_of(input, derived)
    ddl = ", ".join(
        [*(f"`{name}` {spark(kind)}" for name, kind in fields.items()), f"{_CORRUPT} string"]
    )
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = F.col(TEXT if TEXT in raw.columns else "value").cast("string")
    # Not deterministic, in form: the filter on what is parsed would else be pushed below, and each
    # value be parsed again there.
    once = F.when(F.rand(0) + 1 > 0, text)  # rand() >= 0 alone is optimized away
    parsed = raw.withColumn(_HEARD, F.from_json(once, ddl, options))
    return parsed.withColumn(REASON, _reason(input, raw.columns))


def _reason(input: Input, given: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    there = F.col("value").isNotNull()
    heard = F.col(_HEARD).isNull() | F.col(f"{_HEARD}.{_CORRUPT}").isNotNull()
    why = [F.when(there & heard, F.lit("its value is no JSON of the columns"))]
    if FAULT in given:
        why.insert(0, F.col(FAULT))
    if input.time not in META:
        timeless = F.col(f"{_HEARD}.{input.time}").isNull()
        why.append(F.when(there & timeless, F.lit(f"it has no event time, '{input.time}'")))
    return F.coalesce(*why)


def _shown(name: str, kind: str) -> Column:
    from pyspark.sql import functions as F

    read = F.col(f"{_HEARD}.{name}")
    millis = kind.strip().lower() == MILLIS
    return (F.timestamp_millis(read) if millis else read).alias(name)


def _meta() -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(name[1:]).alias(name) for name in META]


def _place() -> list[Column]:
    from pyspark.sql import functions as F

    partition, offset = (F.col(name).cast("string") for name in ("partition", "offset"))
    return [F.lit("at partition"), partition, F.lit("offset"), offset]
