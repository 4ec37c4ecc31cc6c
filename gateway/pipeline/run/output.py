"""Rows as records: a key, and a value that is the JSON of all columns.

Times are ISO 8601 with milliseconds and Z; columns without a value are nulls. Columns that begin
with `_` are the record's they came from: they are no part of the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.config.sections import pipelines as config
from gateway.config.sections.catalog import SchemaRegistry
from gateway.config.sections.job import Job, Output
from gateway.pipeline.inputs import schemas
from gateway.pipeline.inputs.types import RECORD_COLUMN_TYPES
from gateway.pipeline.jobs import get_output

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_JSON_OPTIONS = {"ignoreNullFields": "false"}


def encode_rows(
    rows: DataFrame,
    output: Output,
    key_columns: Sequence[str],
    catalogs: Mapping[str, SchemaRegistry] | None = None,
) -> DataFrame:
    """Columns `key` (null without any) and `value`; `headers` and `topic` are passed on."""
    from pyspark.sql import functions as F

    beside = [F.col(name[1:]) for name in ("_headers", "_to") if name in rows.columns]
    names = [name for name in rows.columns if name not in RECORD_COLUMN_TYPES]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in names)), _JSON_OPTIONS)
    made = rows.select(build_key(rows, key_columns).alias("key"), value.alias("value"), *beside)
    return schemas.encode_values(made, output, catalogs or {})


def get_key_columns(job: Job) -> tuple[str, ...]:
    """The columns of the output's key: those given, or what the job groups by."""
    to = get_output(job)
    if to is not None and to.key:
        return to.key
    match job:
        case config.Sessions() | config.Aggregate():
            return job.by
        case config.Join():
            return tuple(each for each in job.on if not job.select or each in job.select)
        case config.Enrich():
            return (job.on,)
    return ()


def build_key(rows: DataFrame, key_columns: Sequence[str]) -> Column:
    """One column as its text, several as a JSON array."""
    from pyspark.sql import functions as F

    if not key_columns:
        return F.lit(None).cast("string")
    if len(key_columns) == 1:
        kind = rows.schema[key_columns[0]].dataType.simpleString()
        plain = kind in ("string", "binary") or kind.startswith("decimal")
        text = F.col(f"`{key_columns[0]}`").cast("string") if plain else _build_json(key_columns[0])
        return F.when(
            F.col(f"`{key_columns[0]}`").isNotNull(),
            F.trim(text, F.lit('"')) if not plain else text,
        )
    return F.concat(F.lit("["), F.concat_ws(",", *map(_build_json, key_columns)), F.lit("]"))


def _build_json(name: str) -> Column:
    """The JSON of one column: {"k":...} without what is around it."""
    from pyspark.sql import functions as F

    whole = F.to_json(F.struct(F.col(f"`{name}`").alias("k")), _JSON_OPTIONS)
    return F.substring(whole, F.lit(6), F.length(whole) - F.lit(6))
