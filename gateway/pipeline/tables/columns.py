"""Parse the JSON that a table has for each key into columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.pipeline.inputs import parsing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARSED_COLUMN = "_parsed"


def parse_json_column(rows: DataFrame, column: str, fields: Mapping[str, str]) -> DataFrame:
    """Replace a column of JSON objects by a column for each field.

    All fields are null if the JSON is null or invalid. A field that is not of its type or is out of
    its range is null on its own.
    """
    from pyspark.sql import functions as F

    others = [F.col(f"`{name}`") for name in rows.columns if name != column]
    text, parsed = F.col(column).cast("string"), F.col(_PARSED_COLUMN)
    parsed_rows = rows.withColumn(_PARSED_COLUMN, parsing.parse_json(text, fields))
    values = (
        parsing.get_valid_column(parsed, text, name, type_text).alias(name)
        for name, type_text in fields.items()
    )
    return parsed_rows.select(*others, *values)
