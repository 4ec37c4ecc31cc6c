"""Rows as records."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from functools import reduce

import pytest

from gateway.config.sections.job import Output
from gateway.errors import PipelineError
from gateway.pipeline.run.output import encode_rows

TO = Output(topic="out")
SCHEMA = "user string, n bigint, at timestamp, price decimal(10,2), tags array<string>, ok boolean"
ROW = ('a "b"', 7, datetime(2026, 1, 2, 3, 4, 5, 678000), Decimal("1.50"), ["x"], None)


KEYS = {
    (): [None, None],
    ("user",): ['a "b"', None],
    ("n",): ["7", "1"],
    ("at",): ["2026-01-02T03:04:05.678Z", None],
    ("price",): ["1.50", None],
    ("user", "n"): ['["a \\"b\\"",7]', "[null,1]"],
    ("n", "at"): ['[7,"2026-01-02T03:04:05.678Z"]', "[1,null]"],
}


@pytest.fixture(scope="module")
def rows(session_spark):
    return session_spark.createDataFrame([ROW, (None, 1, None, None, None, True)], SCHEMA)


def test_the_value_has_all_columns_nulls_too_and_times_as_iso(rows):
    first, second = (json.loads(row.value) for row in encode_rows(rows, TO, ()).collect())
    assert first == {
        "user": 'a "b"',
        "n": 7,
        "at": "2026-01-02T03:04:05.678Z",
        "price": 1.50,
        "tags": ["x"],
        "ok": None,
    }
    assert list(second) == list(first)
    assert second["user"] is None


def test_keys_are_the_text_of_one_column_or_an_array_of_several(rows):
    from pyspark.sql import functions as F

    frames = [
        encode_rows(rows, TO, key).select(F.lit(",".join(key)).alias("columns"), "key")
        for key in KEYS
    ]
    found = reduce(type(rows).unionAll, frames).collect()
    assert {key: [row.key for row in found if row.columns == ",".join(key)] for key in KEYS} == KEYS


def test_columns_of_the_record_are_no_part_of_the_value(spark):
    """A column of a query that was named `_to` or `_headers` ended the job."""
    columns = "user string, _topic string, _offset bigint, _to string, _headers string"
    rows = spark.createDataFrame([("a", "t", 5, "b", "c")], columns)
    (row,) = encode_rows(rows, TO, ("_topic",)).collect()
    value = {"user": "a", "_to": "b", "_headers": "c"}
    assert (row.key, json.loads(row.value)) == ("t", value)


def test_a_key_is_found_in_another_case_as_in_sql(rows):
    """It ended the job by a KeyError."""
    assert [row.key for row in encode_rows(rows, TO, ("User",)).collect()] == ['a "b"', None]


def test_columns_that_differ_in_case_only_are_named(rows):
    """Spark said that one of them is ambiguous, and named it twice."""
    with pytest.raises(PipelineError, match=r"'user' and 'User' differ in case only.*rename"):
        encode_rows(rows.selectExpr("user", "n AS User"), TO, ())
