"""Avro as JSON and back, held against fastavro's own writer and Confluent's serializer."""

from __future__ import annotations

import io
import json
import string
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budgets import measure_peak_memory

from gateway.errors import FormatError
from gateway.formats.avro.codec import AvroCodec

MANY = settings(max_examples=1_000, deadline=None)
NAMES = list(string.ascii_lowercase)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def avro(schema: Any, *used: Any) -> AvroCodec:
    return AvroCodec(json.dumps(schema), {str(n): json.dumps(each) for n, each in enumerate(used)})


def leaves() -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    """Schemas, each with the values that are shown of it."""
    kinds: list[tuple[Any, st.SearchStrategy[Any]]] = [
        ("boolean", st.booleans()),
        ("int", st.integers(-(2**31), 2**31 - 1)),
        ("long", st.integers(-(2**63), 2**63 - 1)),
        ("double", FLOATS | st.sampled_from(["NaN", "Infinity", "-Infinity"])),
        ("float", st.floats(allow_nan=False, allow_infinity=False, width=32)),
        ("string", TEXT),
        ("bytes", st.binary(max_size=8).map(lambda data: data.decode("latin-1"))),
        ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
        ({"type": "int", "logicalType": "date"}, st.dates().map(lambda day: day.isoformat())),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            st.datetimes().map(lambda at: f"{at.isoformat(timespec='microseconds')}Z"),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            st.datetimes().map(lambda at: at.isoformat(timespec="milliseconds")),
        ),
        (
            {"type": "int", "logicalType": "time-millis"},
            st.times().map(lambda at: at.isoformat(timespec="milliseconds")),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
            st.decimals(-(10**15), 10**15, places=3).map(lambda each: f"{each:f}"),
        ),
    ]
    return st.sampled_from(kinds)


Pair = tuple[Any, st.SearchStrategy[Any]]


@st.composite
def named(draw: st.DrawFn, inner: st.SearchStrategy[Pair]) -> Pair:
    pairs = draw(st.lists(inner, max_size=3))
    fields = [{"name": NAMES[n], "type": schema} for n, (schema, _) in enumerate(pairs)]
    values = {NAMES[n]: value for n, (_, value) in enumerate(pairs)}
    return {"type": "record", "name": "R", "fields": fields}, st.fixed_dictionaries(values)


def nests(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    arrays = inner.map(
        lambda each: ({"type": "array", "items": each[0]}, st.lists(each[1], max_size=3))
    )
    maps = inner.map(
        lambda each: (
            {"type": "map", "values": each[0]},
            st.dictionaries(st.sampled_from(["k", "map", "R", ""]), each[1], max_size=2),
        )
    )
    return arrays | maps | named(inner)


def distinct(pair: Pair) -> Pair:
    """A name is defined once."""
    count = 0

    def renamed(schema: Any) -> Any:
        nonlocal count
        if isinstance(schema, list):
            return [renamed(each) for each in schema]
        if isinstance(schema, dict):
            schema = {key: renamed(each) for key, each in schema.items()}
            if schema.get("type") == "record":
                count += 1
                schema["name"] = f"R{count}"
        return schema

    return renamed(pair[0]), pair[1]


PAIRS = st.recursive(leaves(), nests, max_leaves=5).map(distinct)


@MANY
@given(st.data())
def test_what_is_written_is_shown_again_and_fastavro_reads_it(data: st.DataObject):
    schema, values = data.draw(PAIRS)
    value, made = data.draw(values), avro(schema)
    written = made.encode(value)
    shown = made.decode(written)
    assert shown == value or shown != shown
    assert json.loads(made.decode_text(written)) == json.loads(json.dumps(shown))
    source = io.BytesIO(written)
    read: Any = fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
    again = io.BytesIO()
    fastavro.schemaless_writer(again, schema, read)
    if "decimal" not in json.dumps(schema):  # which fastavro pads as it likes
        assert again.getvalue() == written


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "size", "type": "double", "default": 1.5},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "sub", "type": ["null", {"type": "array", "items": "Order"}], "default": None},
    ],
}


def test_the_bytes_are_those_of_fastavro():
    value = {"id": 5, "note": "x", "size": 2.5, "kind": "B", "sub": None}
    value["sub"] = [dict(value)]
    other = io.BytesIO()
    fastavro.schemaless_writer(other, ORDER, value)
    assert avro(ORDER).encode(value) == other.getvalue()
    assert avro(ORDER).decode(other.getvalue()) == value


def test_a_missing_field_has_its_default():
    made = avro(ORDER)
    shown = made.decode(made.encode({"id": 1, "kind": "A"}))
    assert shown == {"id": 1, "note": None, "size": 1.5, "kind": "A", "sub": None}


def test_a_default_that_is_an_incomplete_value_of_its_own_record_is_none():
    """Such a default was written without the fields behind it: bytes that nobody could read."""
    fields = [
        {"name": "next", "type": ["N", "null"], "default": {"next": None}},
        {"name": "number", "type": "int"},
    ]
    made = avro({"type": "record", "name": "N", "fields": fields})
    with pytest.raises(FormatError, match="lacks 'next' of N"):
        made.encode({"number": 1})
    assert made.decode(made.encode({"next": None, "number": 1})) == {"next": None, "number": 1}


@pytest.mark.parametrize("value", ["x", {"string": "x"}])
def test_both_forms_of_a_union_are_taken_and_the_plain_one_of_nullable_is_shown(value: Any):
    made = avro(["null", "string"])
    assert made.encode(value) == b"\x02\x02x"
    assert made.decode(b"\x02\x02x") == "x"


UNION = ["null", "int", "string", {"type": "record", "name": "a.R", "fields": []}]


@pytest.mark.parametrize(
    ("taken", "shown"),
    [
        (None, None), (5, {"int": 5}), ("x", {"string": "x"}), ({"int": 5}, {"int": 5}),
        ({"a.R": {}}, {"a.R": {}}), ({}, {"a.R": {}}),
    ],
)  # fmt: skip
def test_of_several_types_the_branch_is_told(taken: Any, shown: Any):
    made = avro(UNION)
    assert made.decode(made.encode(taken)) == shown


@pytest.mark.parametrize(
    ("branches", "value"),
    [
        (["float", "double"], {"float": 1.5}), (["float", "double"], {"double": 1.5}),
        (["int", "long"], {"long": 5}), (["int", "long"], {"int": 5}),
        (["null", "long", "int", "double", "float"], {"float": 0.25}),
        (["int", "float", "string"], {"float": 2.0}),
    ],
)  # fmt: skip
def test_numbers_keep_the_branch_that_they_were_written_as(branches: Any, value: Any):
    """It was guessed from the value, and written again it was of another branch."""
    record = {"type": "record", "name": "R", "fields": [{"name": "f", "type": branches}]}
    for schema, shown in (
        (branches, value),
        (record, {"f": value}),
        ({"type": "array", "items": branches}, [value]),
        ({"type": "map", "values": record}, {"k": {"f": value}}),
    ):
        made = avro(schema)
        assert made.decode(made.encode(shown)) == shown


def test_text_stays_text_where_a_number_may_be_told_as_text():
    made = avro(["double", "string"])
    assert made.decode(made.encode("NaN")) == {"string": "NaN"}
    assert made.decode(made.encode({"double": "NaN"})) == {"double": "NaN"}


def test_a_value_that_reads_as_a_branch_has_its_branch_told():
    made = avro(["null", {"type": "map", "values": {"type": "map", "values": "int"}}])
    for value in ({"map": {}}, {"map": {"map": {}}}, {"k": {}}):
        again = made.decode(made.encode(value))
        assert made.decode(made.encode(again)) == again
    assert made.decode(made.encode({"map": {"map": {"x": 1}}})) == {"map": {"map": {"x": 1}}}


@pytest.mark.parametrize(
    ("change", "pointer", "why"),
    [
        ({"id": "x"}, "/id", "takes a whole number, not a string"),
        ({"id": 1.5}, "/id", "takes a whole number, not 1.5"),
        ({"id": True}, "/id", "takes a whole number, not a boolean"),
        ({"id": 2**63}, "/id", "is no long"),
        ({"kind": "C"}, "/kind", "none of its symbols; use one of A, B"),
        ({"note": 1}, "/note", "takes a string, not a number"),
        ({"nte": "x"}, "", r"has 'nte', which shop.Order has not; did you mean note\?"),
        ({"sub": [{"id": 1}]}, "/sub/0", "lacks 'kind' of shop.Order"),
        ({"sub": {"array": [{"id": "x", "kind": "A"}]}}, "/sub/array/0/id", "a whole number"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(change: Any, pointer: str, why: str):
    with pytest.raises(FormatError, match=why) as told:
        avro(ORDER).encode({"id": 1, "kind": "A", **change})
    assert told.value.pointer == pointer


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1.234"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "123.45"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1e999999999"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "NaN"),
        ({"type": "string", "logicalType": "uuid"}, "no-uuid"),
        ({"type": "int", "logicalType": "date"}, "2024-02-30"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2024-02-29T13:05:00"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2024-02-29T13:05:00.1234Z"),
        ({"type": "int", "logicalType": "time-millis"}, "25:00:00"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc"),
        ("float", 1e300),
        ("float", 10**400),
        ("double", True),
        ("double", 10**400),
        ("boolean", 1),
        ("null", 0),
        ("int", 2**31),
        ("bytes", "\u0100"),
        ("string", "\ud800"),
        ({"type": "map", "values": "int"}, {"\ud800": 1}),
        ({"type": "array", "items": "string"}, "abc"),
    ],
)
def test_a_value_is_never_rounded_or_cut(schema: Any, value: Any):
    with pytest.raises(FormatError):
        avro(schema).encode(value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        *(
            ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, text)
            for text in ("1_0", " 5", "5 ", "\uff15", "\u0665", "Infinity", "")
        ),
        *(
            ({"type": "int", "logicalType": "date"}, text)
            for text in ("2024-W09-4", "20240229", "2024-2-29", "\uff12024-02-29", " 2024-02-29")
        ),
        ({"type": "long", "logicalType": "timestamp-millis"}, "20240229T13:05:00Z"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2024-W09-4T13:05:00Z"),
        *(
            ({"type": "string", "logicalType": "uuid"}, text)
            for text in (
                "{12345678-1234-5678-1234-567812345678}",
                "urn:uuid:12345678-1234-5678-1234-567812345678",
                "12345678123456781234567812345678",
            )
        ),
    ],
)
def test_texts_that_only_python_reads_are_refused(schema: Any, value: str):
    """Spellings of Python were taken for decimals, dates and UUIDs, and written as other values."""
    with pytest.raises(FormatError, match="takes a"):
        avro(schema).encode(value)


@pytest.mark.parametrize("value", ["5", "-0.5", "+1.", ".5", "1e1", 5, 0.5, 1e-2])
def test_plain_decimals_are_taken(value: Any):
    made = avro({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    assert Decimal(str(made.decode(made.encode(value)))) == Decimal(str(value))


def test_a_time_with_an_offset_is_that_instant_and_numbers_are_taken():
    made = avro({"type": "long", "logicalType": "timestamp-nanos"})
    assert made.decode(made.encode("2024-02-29T14:05:00.000000001+01:00")) == (
        "2024-02-29T13:05:00.000000001Z"
    )
    assert made.decode(made.encode(1)) == "1970-01-01T00:00:00.000000001Z"
    far = avro({"type": "long", "logicalType": "timestamp-millis"})
    assert far.decode(far.encode(10**17)) == 10**17, "past the year 9999"


def test_a_fixed_decimal_is_what_fastavro_reads():
    schema = {
        "type": "fixed", "name": "D", "size": 6, "logicalType": "decimal",
        "precision": 9, "scale": 2,
    }  # fmt: skip
    read = fastavro.schemaless_reader(io.BytesIO(avro(schema).encode("-12.5")), schema, None)
    assert read == Decimal("-12.50")


def test_types_of_other_schemas_are_found_by_their_names():
    money = {
        "type": "record", "name": "Money", "namespace": "bank",
        "fields": [{"name": "cents", "type": "long"}],
    }  # fmt: skip
    order = {
        "type": "record", "name": "Order", "namespace": "shop",
        "fields": [{"name": "price", "type": "bank.Money"}, {"name": "was", "type": "bank.Money"}],
    }  # fmt: skip
    made = avro(["bank.Money", "shop.Order"], money, order)
    value = {"shop.Order": {"price": {"cents": 1}, "was": {"cents": 2}}}
    assert made.decode(made.encode(value)) == value


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x0a\x00\xff" * 9, b"\xff" * 20])
def test_bytes_that_are_not_of_the_schema_are_refused(data: bytes):
    with pytest.raises(FormatError, match="not of their Avro schema"):
        avro(ORDER).decode(data)


@pytest.mark.parametrize("text", ["{", '"nothing"', '{"type": "record"}', "5", "[]x", "{}"])
def test_a_schema_that_is_none_is_refused(text: str):
    with pytest.raises(FormatError, match="the Avro schema cannot be used"):
        AvroCodec(text, {})


def test_a_value_nested_without_end_is_refused():
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    value: Any = None
    for _ in range(5000):
        value = {"n": value}
    with pytest.raises(FormatError, match="too deep"):
        avro(node).encode(value)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "null"}, b"\x80\xc2\xd7\x2f\0"),
        ({"type": "array", "items": {"type": "record", "name": "r", "fields": []}},
         b"\x80\xc2\xd7\x2f\0"),
        ({"type": "array", "items": {"type": "array", "items": "null"}},
         b"\x04" + b"\x80\xc2\xd7\x2f\0" * 2 + b"\0"),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}},
         b"\x80\xc2\xd7\x2f\0"),
    ],
)  # fmt: skip
def test_what_takes_no_bytes_is_not_repeated_without_end(schema: Any, data: bytes):
    """5 bytes said that they were 50 million nulls, and were read, and shown in 100 MB of JSON."""
    avro = AvroCodec(json.dumps(schema), {})

    def refuse() -> None:
        with pytest.raises(FormatError, match="of JSON"):
            avro.decode_text(data)

    assert measure_peak_memory(refuse) < 1 << 20


def test_a_thousand_nulls_are_shown():
    avro = AvroCodec('{"type": "array", "items": "null"}', {})
    assert avro.decode(avro.encode([None] * 1000)) == [None] * 1000


def test_a_value_that_is_too_deep_is_refused():
    """fastavro's reader ran out of the stack, and that was the end of the process."""
    avro = AvroCodec(
        '{"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]}', {}
    )
    assert avro.decode(b"\2\2\0") == {"next": {"next": {"next": None}}}
    for depth in (5_000, 1_000_000):
        with pytest.raises(FormatError, match="recursion"):
            avro.decode(b"\2" * depth + b"\0")
