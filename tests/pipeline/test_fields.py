"""What a record's value becomes: columns, or a reason why not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gateway.config.pipeline import Input
from gateway.pipeline.fields import columns, invalid, typed

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FIELDS = {"user": "string", "at": "timestamp_ms"}


def given(**more):
    return Input.model_validate(
        {"topic": "clicks", "value": {"fields": FIELDS}, "time": "at", **more}
    )


def raw(spark, *values):
    rows = [
        (b"k", None if value is None else bytearray(value.encode()), "clicks", 1, n, AT)
        for n, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, SCHEMA)


def test_json_becomes_typed_columns_beside_those_of_the_record(spark):
    (row,) = typed(raw(spark, '{"user":"ann","at":1767323045000,"more":1}'), given()).collect()
    assert row.asDict() == {
        "user": "ann",
        "at": AT.replace(tzinfo=None),
        "_key": bytearray(b"k"),
        "_topic": "clicks",
        "_partition": 1,
        "_offset": 0,
        "_timestamp": AT.replace(tzinfo=None),
    }


def test_the_columns_are_known_without_spark(spark):
    found = typed(raw(spark, "{}"), given())
    assert columns(given()) == {each.name: each.dataType.simpleString() for each in found.schema}


WRONG = {
    "nope": "no JSON",
    "": "no JSON",
    " ": "no JSON",
    "null": "no JSON",
    "5": "no JSON",
    '[{"user":"a","at":1}]': "no JSON",
    '{"user":"a","at":"soon"}': "no JSON",
    '{"user":"a","at":1.5}': "no JSON",
    '{"user":"a"}': "no event time, 'at'",
    "{}": "no event time, 'at'",
}


def test_invalid_values_are_left_out_each_with_its_reason(spark):
    values = raw(spark, *WRONG, '{"at":1}', None)
    assert [row["_offset"] for row in typed(values, given()).collect()] == [len(WRONG)]
    found = invalid(values, given())
    assert found.columns == [*values.columns, "_reason"]
    reasons = {row.offset: row["_reason"] for row in found.collect()}
    for n, (value, said) in enumerate(WRONG.items()):
        assert said in reasons.pop(n), value
    assert not reasons  # a tombstone is not wrong: it is no event


def test_invalid_values_end_the_job_where_that_is_asked(spark):
    table = typed(raw(spark, '{"at":1}', "nope"), given(onInvalid="fail"))
    with pytest.raises(Exception, match="clicks: its value is no JSON of the columns at part"):
        table.collect()


def test_each_value_is_parsed_once(spark):
    """The filter on what is valid must not be pushed below the parsing, and parse again."""
    table = typed(raw(spark, "{}"), given())
    plan = table._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json(") == 1


def test_strings_are_one_column_and_tombstones_are_null(spark):
    text = Input.model_validate({"topic": "clicks", "value": {"model": "string"}})
    rows = typed(raw(spark, "plain", None, ""), text).collect()
    assert [row.value for row in rows] == ["plain", None, ""]


def test_types_are_read_as_spark_has_them(spark):
    kinds = {
        "price": "decimal(10,2)",
        "when": "timestamp",
        "day": "date",
        "tags": "array<string>",
        "place": "struct<x: int, y: int>",
        "n": "bigint",
        "ok": "boolean",
    }
    value = {
        "price": 12.5,
        "when": "2026-01-02T03:04:05.678Z",
        "day": "2026-01-02",
        "tags": ["a"],
        "place": {"x": 1},
        "n": 2**60,
        "ok": True,
    }
    plain = Input.model_validate({"topic": "clicks", "value": {"fields": kinds}})
    (row,) = typed(raw(spark, json.dumps(value)), plain).collect()
    assert row.price == Decimal("12.50")
    assert row.when == datetime(2026, 1, 2, 3, 4, 5, 678000)
    assert (str(row.day), row.tags, row.place.x, row.place.y) == ("2026-01-02", ["a"], 1, None)
    assert (row.n, row.ok) == (2**60, True)


def test_what_is_read_and_what_is_invalid_of_it_is_counted(spark):
    from pyspark.sql import Observation

    seen = Observation("seen")
    typed(raw(spark, '{"at":1}', "nope", None), given(), observed=seen).collect()
    assert seen.get == {"rows": 3, "invalid": 1}
