"""What a record's value becomes: columns, or a reason why not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from support.poison import BAD_VALUES, COLUMN_TYPES, GOOD_VALUES, LENIENT_JSON

from gateway.config.sections.job import Input
from gateway.pipeline.inputs.source import get_columns, parse_records, select_invalid_records

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
    (row,) = parse_records(
        raw(spark, '{"user":"ann","at":1767323045000,"more":1}'), given()
    ).collect()
    assert row.asDict() == {
        "user": "ann",
        "at": AT.replace(tzinfo=None),
        "_key": bytearray(b"k"),
        "_topic": "clicks",
        "_partition": 1,
        "_offset": 0,
        "_timestamp": AT.replace(tzinfo=None),
    }


def test_columns_may_have_other_names_in_the_json(spark):
    """Logs have names such as `@timestamp` and `service.name`, which no column can have. With a
    single quote in the name, too many seconds were another time."""
    names = {"at": "@time'stamp", "user": "user.name", "place": "Date Time", "id": "user-id"}
    kinds = {"user": "string", "at": "timestamp", "place": "string", "id": "decimal(3,1)"}
    logs = given(value={"fields": kinds, "jsonNames": names})
    value = '{"@time\'stamp":%s,"user.name":1.10,"user":"no","Date Time":"here","user-id":%s}'
    known, overflow = '"2026-01-02T03:04:05Z"', "18446744075409"
    rows = raw(spark, value % (known, 1.5), value % (overflow, 1.5), value % (known, 1.55))
    (row,) = parse_records(rows, logs).collect()
    assert (row.user, row.at, row.place) == ("1.10", AT.replace(tzinfo=None), "here")
    reasons = [each["_reason"] for each in select_invalid_records(rows, logs).collect()]
    assert [reason.split()[0] for reason in reasons] == ["'at'", "'id'"]


def test_the_columns_are_known_without_spark(spark):
    found = parse_records(raw(spark, "{}"), given())
    assert get_columns(given()) == {
        each.name: each.dataType.simpleString() for each in found.schema
    }


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
    **dict.fromkeys(  # after the object, what completes the text around it
        (
            f'{{"user":"a","at":1}}{rest}'
            for rest in (
                *(',"z":1', ',"_value":{"at":2}', ',"_end":false', ',{"at":2},{"_end":true}'),
                *('],"z":[1', ',{"at":2}],"z":[{"a":1}', ',{"_end":true}]},{"values":[{"at":2}'),
            )
        ),
        "no JSON",
    ),
    **{
        text: "half of a surrogate pair" if r"\ud" in text.lower() else "no JSON"
        for text in LENIENT_JSON
    },
}


def test_invalid_values_are_left_out_each_with_its_reason(spark):
    """What followed a value was dropped without a word, a second value among it."""
    values = raw(spark, *WRONG, '{"at":1}', ' {"user":"a","at":1}\n', None)
    good = [len(WRONG), len(WRONG) + 1]
    assert [row["_offset"] for row in parse_records(values, given()).collect()] == good
    found = select_invalid_records(values, given())
    assert found.columns == [*values.columns, "_reason"]
    reasons = {row.offset: row["_reason"] for row in found.collect()}
    for n, (value, said) in enumerate(WRONG.items()):
        assert said in reasons.pop(n), value
    assert not reasons  # a tombstone is not wrong: it is no event


def test_invalid_values_end_the_job_where_that_is_asked(spark):
    table = parse_records(raw(spark, '{"at":1}', "nope"), given(onInvalid="fail"))
    with pytest.raises(Exception, match="clicks: its value is no JSON of the columns at part"):
        table.collect()


def test_each_value_is_parsed_once(spark):
    """The filter on what is valid must not be pushed below the parsing, and parse again."""
    table = parse_records(raw(spark, "{}"), given())
    plan = table._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count('concat({"_values_') == 1


def test_strings_are_one_column_and_tombstones_are_null(spark):
    text = Input.model_validate({"topic": "clicks", "value": {"model": "string"}})
    rows = parse_records(raw(spark, "plain", None, ""), text).collect()
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
    (row,) = parse_records(raw(spark, json.dumps(value)), plain).collect()
    assert row.price == Decimal("12.50")
    assert row.when == datetime(2026, 1, 2, 3, 4, 5, 678000)
    assert (str(row.day), row.tags, row.place.x, row.place.y) == ("2026-01-02", ["a"], 1, None)
    assert (row.n, row.ok) == (2**60, True)


def test_what_is_read_and_what_is_invalid_of_it_is_counted(spark):
    from pyspark.sql import Observation

    seen = Observation("seen")
    parse_records(raw(spark, '{"at":1}', "nope", None), given(), metrics_name=seen).collect()
    assert seen.get == {"rows": 3, "invalid": 1}


EVERY = Input.model_validate({"topic": "clicks", "value": {"fields": COLUMN_TYPES}})


def values_of(cases):
    return [f'{{"{name}": {each}}}' for name, several in cases.items() for each in several]


def test_values_out_of_the_range_of_their_type_are_invalid(spark):
    """A nanosecond time in a `timestamp_ms` ended the job, others overflowed without a word, those
    within arrays and objects until later."""
    from pyspark.sql import functions as F

    out, within = values_of(BAD_VALUES), values_of(GOOD_VALUES)
    values = raw(spark, *out, *within)
    reasons = {
        row.offset: row["_reason"] for row in select_invalid_records(values, EVERY).collect()
    }
    assert [value for n, value in enumerate(out) if n not in reasons] == []
    assert [value for n, value in enumerate(within, len(out)) if n in reasons] == []
    assert "'byte' is out of the range of tinyint" in reasons.values()
    rows = parse_records(values, EVERY).select("byte", F.to_json(F.struct("*"))).collect()
    assert len(rows) == len(within)
    assert [row.byte for row in rows if row.byte is not None] == [127, -128]


def test_numbers_keep_their_digits_in_texts(spark):
    """They became doubles: 12345678901234567.125 was 1.2345678901234568E16, and 1.10 was 1.1."""
    big = "-12345678901234567.125"
    inner = f'{{"b":{big},"s":"1.10","l":[1.10,2,null,{{"q":1e400}}]}}'
    value = (
        f'{{"flat":{big}, "object":{inner}, "quoted":{json.dumps(inner)}, "plain":"{big}", '
        f'"by_name":{{"a":1.10,"b":"\u00e4"}}, "many":["x",1.0,null], '
        f'"inner":{{"n":1.5,"text":1E5,"deep":[{{"text":{big},"n":2.50}},null]}}}}'
    )
    kinds = {
        **dict.fromkeys(["flat", "object", "quoted", "plain", "missing"], "string"),
        "by_name": "map<string,string>",
        "many": "array<string>",
        "inner": "struct<n: double, text: string, deep: array<struct<text: string, n: double>>>",
    }
    plain = Input.model_validate({"topic": "clicks", "value": {"fields": kinds}})
    (row,) = parse_records(raw(spark, value), plain).collect()
    assert (row.flat, row.plain, row.missing) == (big, big, None)
    assert (row.object, row.quoted) == (inner, inner)
    assert row.by_name == {"a": "1.10", "b": "ä"}
    assert row.many == ["x", "1.0", None]
    assert row.inner.asDict(recursive=True) == {
        "n": 1.5, "text": "1E5", "deep": [{"text": big, "n": 2.5}, None]
    }  # fmt: skip


def test_a_long_exponent_in_an_array_is_invalid_after_one_pass_over_the_record(spark):
    """Each start of an array was a reason to look through the rest of the record: a job did not
    get on for 80 kB of them. Of arrays in an array only the first one was looked through."""
    fields = {"prices": "array<decimal(9,2)>", "n": "decimal(9,2)"}
    fields |= {"deep": "array<array<decimal(9,2)>>", "by": "map<string,decimal(9,2)>"}
    decimals = given(value={"fields": fields}, time="_timestamp")
    valid = [
        '{"prices": [1.5, "2.5"], "by": {"a": 1e1}, "n": 1e2, "deep": [[1], []], "other": 1e99999}',
        '{"other": "prices:[1e99999", "more": [1e99999], "prices": [3e0], "id": "1e99999"}',
    ]
    invalid = [
        '{"prices": [1e99999999]}',
        '{"x": {"prices": [1]}, "prices": [1, "2.5E+99999999"]}',
        '{"prices" : [1], "n" : -1.5e-99999999}',
        '{"by":{"a":1,"b":1e99999999}}',
        '{"deep": [[], [1] , [1, 1e99999999]]}',
        r'{"\u006E": 1e99999999}',
        r'{"pric\u0065s": [1e99999999]}',
        '"prices":[' * 400_000,
        '{"prices":[' + "1," * 400_000 + '"by":{' + '"a":1e1 ' * 400_000 + "1e99999999",
        '{"deep":' + "[" * 400_000 + "]" * 400_000 + "}",
    ]
    rows = parse_records(raw(spark, *valid, *invalid), decimals)
    assert {row["_offset"] for row in rows.select("_offset").collect()} == set(range(len(valid)))


@pytest.mark.parametrize("precision", [9, 38])
def test_a_long_exponent_is_invalid_however_a_text_spells_it(spark, precision):
    """Spark takes texts for decimals, and wrote out the digits of those that were not of ASCII
    digits with a minus: one record stopped the job for ever."""
    fields = {"n": f"decimal({precision},2)", "by": "map<string,decimal(9,2)>"}
    decimals = given(value={"fields": fields}, time="_timestamp")
    texts = ["2026-01-02", "1 e 1000", r"\u65e5\u672c\u8a9e\u672c", "1e+05"]
    valid = [
        r'{"n": "\u0031.5", "other": {"n": "1e12 EUR"}}',
        *(f'{{"n": "1e+2", "by": {{"a": "-1.5"}}, "other": {{"n": "{text}"}}}}' for text in texts),
    ]
    long = [
        "+1e99999999", r"\u0031e99999999", "1e9,999,9999", "1e٩٩٩٩٩٩٩٩", r"1\u0065-99999999",
        r"1e\u002d9999999\u0039", r"\u002b1E\u06609999999", r" \n\u0020 +1e-99999999",
        "1" * 1_000_000,
    ]  # fmt: skip
    invalid = [f'{{"n": "{text}"}}' for text in long]
    invalid += [f'{{"by": {{"]\\\\\\"": 1, "b": "{text}"}}}}' for text in long]
    rows = parse_records(raw(spark, *valid, *invalid), decimals)
    assert {row["_offset"] for row in rows.select("_offset").collect()} == set(range(len(valid)))


def test_an_integer_that_another_column_holds_under_the_same_name_is_no_time(spark):
    """Only seconds of the column itself are too many; a nested number has nothing to do with it.

    With an escape in the name, too many seconds were another time.
    """
    value = '{"when": "2026-01-01T00:00:00Z", "inner": {"deep": {"when": 1700000000000}}}'
    escaped = r'{"whe\u006e": 18446744075409}'
    (row,) = parse_records(raw(spark, value, escaped), EVERY).collect()
    assert row["_offset"] == 0


@pytest.mark.parametrize("model", ["json", "string"])
def test_a_record_whose_timestamp_no_calendar_has_is_invalid(spark, model):
    """Such a time as the event time moved the watermark to the year 55840 for good."""
    value = {"fields": FIELDS} if model == "json" else {"model": "string"}
    given = Input.model_validate({"topic": "clicks", "value": value})
    rows = raw(spark, "{}", "{}").selectExpr(
        "key", "value", "topic", "partition", "offset",
        "timestamp_millis(if(offset = 0, 1700000000000000, 1700000000000)) AS timestamp",
    )  # fmt: skip
    assert [row["_offset"] for row in parse_records(rows, given).select("_offset").collect()] == [1]
    (found,) = select_invalid_records(rows, given).select("offset", "_reason").collect()
    assert found["_reason"] == "its timestamp is outside of the years 1 to 9999"
    assert parse_records(rows, given, has_event_time=False).count() == 2


def test_what_is_no_utf_8_is_no_json(spark):
    """Its bytes were replaced without a word."""
    values = raw(spark, '{"user":"\xff","at":1}').selectExpr(
        "key", "encode(value, 'ISO-8859-1') AS value", "topic", "partition", "offset", "timestamp"
    )
    broken = values.withColumn("value", values["value"].substr(1, 9))
    assert parse_records(broken, given()).count() == 0
