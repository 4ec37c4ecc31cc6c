"""The columns of a table, out of the JSON that it holds for each key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.pipeline.types import MILLIS, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def parsed(rows: DataFrame, json: str, fields: Mapping[str, str]) -> DataFrame:
    """With the fields in place of the column `json`; nulls where it is null, or no JSON of them."""
    from pyspark.sql import functions as F

    ddl = ", ".join(f"`{name}` {spark(kind)}" for name, kind in fields.items())
    others = [F.col(f"`{name}`") for name in rows.columns if name != json]
    row = rows.withColumn(json, F.from_json(F.col(json).cast("string"), ddl))
    found = {name: F.col(f"`{json}`.`{name}`") for name in fields}
    for name, kind in fields.items():
        if kind.strip().lower() == MILLIS:
            found[name] = F.timestamp_millis(found[name])
    return row.select(*others, *(column.alias(name) for name, column in found.items()))
