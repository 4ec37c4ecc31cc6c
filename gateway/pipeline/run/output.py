"""Encode rows as records: a key, and a value that is the JSON of all columns.

Times are ISO 8601 with milliseconds and Z, and columns without a value are nulls. The columns of
the record that a row comes from, such as `_offset`, are not part of the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Job, Output
from gateway.config.sections.security import SchemaRegistry
from gateway.errors import PipelineError
from gateway.pipeline.inputs import schemas
from gateway.pipeline.inputs.types import RECORD_COLUMN_TYPES, check_case
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
    """Return rows as Spark's Kafka sink takes them: the columns `key` and `value`.

    The key is null without key columns. Values with a schema are encoded by it, as
    `schemas.encode_values` describes.
    """
    from pyspark.sql import functions as F

    if message := check_case(rows.columns):
        raise PipelineError(f"columns {message}")
    names = [name for name in rows.columns if name not in RECORD_COLUMN_TYPES]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in names)), _JSON_OPTIONS)
    records = rows.select(build_key(rows, key_columns).alias("key"), value.alias("value"))
    return schemas.encode_values(records, output, catalogs or {})


def get_key_columns(job: Job) -> tuple[str, ...]:
    """Return the columns of the output's key: those of `to.key`, or those of the grouping."""
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
    """Return the key of a record: the text of a single column, or a JSON array of several."""
    from pyspark.sql import functions as F

    if not key_columns:
        return F.lit(None).cast("string")
    if len(key_columns) == 1:
        # Spark finds the column in whatever case it is written.
        (field,) = rows.select(f"`{key_columns[0]}`").schema
        type_name = field.dataType.simpleString()
        # A cast keeps strings that are not UTF-8, and all digits of decimals. Other types, such as
        # timestamps, have the same text in the key as in the value.
        is_cast = type_name in ("string", "binary") or type_name.startswith("decimal")
        column = F.col(f"`{key_columns[0]}`")
        text = column.cast("string") if is_cast else _build_json(key_columns[0])
        return F.when(column.isNotNull(), text if is_cast else F.trim(text, F.lit('"')))
    return F.concat(F.lit("["), F.concat_ws(",", *map(_build_json, key_columns)), F.lit("]"))


def _build_json(name: str) -> Column:
    from pyspark.sql import functions as F

    # to_json does not take plain values, so `{"k":` and `}` are cut off a struct.
    json_object = F.to_json(F.struct(F.col(f"`{name}`").alias("k")), _JSON_OPTIONS)
    return F.substring(json_object, F.lit(6), F.length(json_object) - F.lit(6))
