"""Rows as records: a key, and a value that is the JSON of all columns.

Times are ISO 8601 with milliseconds and Z; columns without a value are nulls. Columns that begin
with `_` are the record's they came from: they are no part of the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.config.sections import pipelines as config
from gateway.config.sections.catalog import SchemaRegistry
from gateway.config.sections.pipeline import Job, Output
from gateway.pipeline.inputs import schemas
from gateway.pipeline.inputs.types import META
from gateway.pipeline.jobs import output

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_JSON = {"ignoreNullFields": "false"}


def encoded(
    rows: DataFrame,
    output: Output,
    key: Sequence[str],
    catalogs: Mapping[str, SchemaRegistry] | None = None,
) -> DataFrame:
    """Columns `key` (null without any) and `value`; `headers` and `topic` are passed on."""
    from pyspark.sql import functions as F

    beside = [F.col(name[1:]) for name in ("_headers", "_to") if name in rows.columns]
    names = [name for name in rows.columns if name not in META]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in names)), _JSON)
    made = rows.select(key_of(rows, key).alias("key"), value.alias("value"), *beside)
    return schemas.encoded(made, output, catalogs or {})


def keys(job: Job) -> tuple[str, ...]:
    """The columns of the output's key: those given, or what the job groups by."""
    to = output(job)
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


def key_of(rows: DataFrame, key: Sequence[str]) -> Column:
    """One column as its text, several as a JSON array."""
    from pyspark.sql import functions as F

    if not key:
        return F.lit(None).cast("string")
    if len(key) == 1:
        kind = rows.schema[key[0]].dataType.simpleString()
        plain = kind in ("string", "binary") or kind.startswith("decimal")
        text = F.col(f"`{key[0]}`").cast("string") if plain else _json(key[0])
        return F.when(
            F.col(f"`{key[0]}`").isNotNull(), F.trim(text, F.lit('"')) if not plain else text
        )
    return F.concat(F.lit("["), F.concat_ws(",", *map(_json, key)), F.lit("]"))


def _json(name: str) -> Column:
    """The JSON of one column: {"k":...} without what is around it."""
    from pyspark.sql import functions as F

    whole = F.to_json(F.struct(F.col(f"`{name}`").alias("k")), _JSON)
    return F.substring(whole, F.lit(6), F.length(whole) - F.lit(6))
