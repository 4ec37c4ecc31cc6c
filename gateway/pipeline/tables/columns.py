"""The columns of a table, out of the JSON that it holds for each key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.pipeline.inputs import parsing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARSED_COLUMN = "_parsed"


def parse_json_column(rows: DataFrame, column: str, fields: Mapping[str, str]) -> DataFrame:
    """With the fields in place of the column `json`; nulls where it is null, or no JSON of them.

    A field that is not of its type, or out of its range, is null alone.
    """
    from pyspark.sql import functions as F

    others = [F.col(f"`{name}`") for name in rows.columns if name != column]
    text, read = F.col(column).cast("string"), F.col(_PARSED_COLUMN)
    row = rows.withColumn(_PARSED_COLUMN, parsing.parse_json(text, fields))
    found = (parsing.get_valid_column(read, text, *each).alias(each[0]) for each in fields.items())
    return row.select(*others, *found)
