"""Types of columns, read without Spark."""

from __future__ import annotations

import pytest

from gateway.pipeline.inputs.types import TYPE_NAMES, check_type, get_column_type, get_json_type

GOOD = [
    *TYPE_NAMES,
    "decimal(10,2)",
    "DECIMAL( 38 , 38 )",
    "timestamp_ms",
    "array<string>",
    "map<string, array<int>>",
    "struct<a: int, b string, c: struct<`odd name`: date>>",
]
WRONG = {
    "strin": "did you mean 'string'",
    "decimal(39,0)": "out of range",
    "decimal(2,3)": "out of range",
    "decimal(x)": "'x' is no number",
    "array": "ends where '<' must stand",
    "array<int": "ends where '>' must stand",
    "map<string>": "'>' stands where ',' must",
    "struct<a int b int>": "'b' stands where '>' must",
    "int string": "goes on after a whole type",
    "int; drop": "is no type, at '; drop'",
    "array<timestamp_ms>": "stands alone only",
    "": "ends where a type must stand",
}


@pytest.mark.parametrize("text", GOOD)
def test_types_of_spark_sql_are_types(text):
    assert check_type(text) is None


@pytest.mark.parametrize(("text", "said"), WRONG.items())
def test_what_is_none_is_told_with_what_to_write(text, said):
    assert said in (check_type(text) or "")


def test_milliseconds_are_read_as_a_number_and_become_a_time():
    assert (get_json_type("timestamp_ms"), get_column_type("timestamp_ms")) == (
        "bigint",
        "timestamp",
    )
    assert (get_json_type("timestamp"), get_column_type("Timestamp")) == ("timestamp", "timestamp")


def test_spark_reads_the_types_that_are_said_to_be_good(session_spark):
    ddl = ", ".join(f"c{n} {kind}" for n, kind in enumerate(GOOD) if kind != "timestamp_ms")
    assert len(session_spark.createDataFrame([], ddl).columns) == len(GOOD) - 1
