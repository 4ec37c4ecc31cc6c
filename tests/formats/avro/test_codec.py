"""Avro as JSON and back, held against fastavro's own writer and Confluent's serializer."""

from __future__ import annotations

import io
import json
import string
import time
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.avro_model import (
    AvroModel,
    DoesNotFit,
    EndlessDefault,
    strip_branches,
    strip_logical_types,
)
from support.avro_strategies import schemas_with_values
from support.budgets import measure_peak_memory

from gateway.errors import FormatError
from gateway.formats.avro.codec import AvroCodec

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


def record(name: str, *fields: Any) -> dict[str, Any]:
    """Return a record of fields, each of a name, a type, and perhaps a default."""
    keys = ("name", "type", "default")
    named = [dict(zip(keys, field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": named}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
FIXED_UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}


def test_a_default_of_an_enclosing_record_has_all_of_its_fields():
    """It was computed before the enclosing record had its defaults: `w` was null, or, without
    null in its type, a ValueError came out of `encode`.
    """
    for number in (["int", "null"], "int"):
        inner = record("N2", ("back", "N1", {}))
        nodes = ["null", {"type": "array", "items": inner}]
        made = avro(record("N1", ("n", nodes, None), ("w", number, 7)))
        back = {"n": None, "w": 7}
        assert made.decode(made.encode({"n": [{}]})) == {"n": [{"back": back}], "w": 7}


@pytest.mark.parametrize(
    ("schema", "value", "missing"),
    [
        (
            record("N1", ("n", {"type": "array", "items": record("N2", ("back", "N1", {}))}),
                   ("w", "int", 7)),
            {"n": [{}]}, "lacks 'back' of N2",
        ),
        (
            record("O", ("child", ["null", record("I", ("o", "O", {}))]),
                   ("note", ["null", "string"])),
            {"child": {"I": {}}, "note": None}, "lacks 'o' of I",
        ),
    ],
)  # fmt: skip
def test_a_default_that_lacks_a_field_of_an_enclosing_record_is_none(schema, value, missing):
    """The record was not complete yet, so nothing was required: records were invented, or
    fastavro raised a ValueError.
    """
    with pytest.raises(FormatError, match=missing):
        avro(schema).encode(value)


@pytest.mark.parametrize(
    "schema",
    [
        record("N", ("next", "N", {})),
        record("N", ("next", ["N", "null"], {})),
        record("N", ("children", {"type": "array", "items": "N"}, [{}])),
        record("N", ("by_name", {"type": "map", "values": "N"}, {"k": {}})),
        record("N", ("inner", record("I", ("outer", "N", {})), {})),
        record("N", ("next", "N", {"next": {"next": {}}})),
        record("N", ("bad", "int", None), ("next", "N", {"next": {"bad": 1}})),
        record("N", ("next", "N", {"next": {"bad": 1}}), ("bad", "int", None)),
    ],
)
def test_a_schema_with_a_default_that_contains_itself_is_refused(schema: Any):
    """`encode` raised a ValueError when a field was missing."""
    with pytest.raises(FormatError, match="contains itself"):
        avro(schema)


@pytest.mark.parametrize(
    "schema",
    [
        record("N", ("next", "N")),
        record("N", ("inner", record("I", ("outer", "N")))),
        record("N", ("f", record("I", ("outer", "N", {})))),
        record("N", ("next", ["N"])),
        record("N", ("many", {"type": "array", "items": "null"}), ("next", "N")),
        ["null", record("N", ("next", "N"))],
    ],
)
def test_a_schema_of_which_a_type_never_ends_is_refused(schema: Any):
    """A record of a few bytes ended the process with a fault of its memory."""
    with pytest.raises(FormatError, match="contains itself"):
        avro(schema)


def test_a_default_may_be_of_its_own_record_where_it_ends():
    made = avro(record("N", ("next", ["N", "null"], {"next": None}), ("k", "int", 3)))
    assert made.decode(made.encode({})) == {"next": {"next": None, "k": 3}, "k": 3}


def test_defaults_that_double_with_each_level_are_refused():
    """30 small records had a default of 2**30 values."""
    schema = record("L0", ("x", "int", 1))
    for level in range(1, 30):
        schema = record(f"L{level}", ("a", schema, {}), ("b", f"L{level - 1}", {}))
    with pytest.raises(FormatError, match="defaults come to more than"):
        avro(schema)


@pytest.mark.parametrize(
    ("kind", "default", "written", "shown"),
    [
        (record("Q", ("d", DECIMAL)), {"d": "12"}, "043132", {"d": "125.94"}),
        ({"type": "array", "items": DECIMAL}, ["1", "\u00ff"], "04023102ff00", ["0.49", "-0.01"]),
        ({"type": "map", "values": DECIMAL}, {"k": "1"}, "02026b023100", {"k": "0.49"}),
        (
            {"type": "map", "values": {"type": "int", "logicalType": "date"}}, {"k": 3},
            "02026b0600", {"k": "1970-01-04"},
        ),
        (
            record("Q", ("u", FIXED_UUID)), {"u": "0123456789abcdef"},
            "30313233343536373839616263646566", {"u": "30313233-3435-3637-3839-616263646566"},
        ),
        (
            record("Q", ("n", ["null", "int"], None), ("w", ["int", "null"], 7)), {},
            "00000e", {"n": None, "w": 7},
        ),
        (record("Q", ("n", ["null", DECIMAL])), {"n": "1"}, "020231", {"n": "0.49"}),
        (["double", "string"], "NaN", "02064e614e", {"string": "NaN"}),
        ("bytes", "\u00e9\u00ff", "04e9ff", "\u00e9\u00ff"),
    ],
)  # fmt: skip
def test_a_default_is_the_one_that_java_has(kind: Any, default: Any, written: str, shown: Any):
    """Inside of records, arrays and maps, a logical type was read as its text in JSON. The bytes
    were written by org.apache.avro 1.12.1 from a record that was read without the field.
    """
    made = avro(record("P", ("f", kind, default)))
    assert made.encode({}).hex() == written
    assert made.decode(bytes.fromhex(written)) == {"f": shown}


@pytest.mark.parametrize("default", [{"d": 12.5}, {"d": "\u0100"}, {"n": {"int": 1}}, {"x": 1}])
def test_a_field_with_a_default_that_does_not_fit_is_required(default: Any):
    inner = record("Q", ("d", DECIMAL, "1"), ("n", ["null", "int"], None))
    with pytest.raises(FormatError, match="lacks 'f' of P"):
        avro(record("P", ("f", inner, default))).encode({})


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


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "string"}], "type array"),
        ([{"type": "map", "values": "int"}, {"type": "map", "values": "string"}], "type map"),
        (["int", {"type": "int", "logicalType": "date"}], "type int"),
        ([record("R"), "R"], "type R"),
        (["null", ["int", "string"]], "contains a union"),
        (record("R", ("a", "int"), ("a", "int")), "two fields 'a'"),
        (record("R", (1, "int")), "name is a number"),
        (record("int"), "primitive type int"),
        ({"type": "fixed", "name": "F", "size": -1}, "size of F"),
        ({"type": "fixed", "name": "F", "size": "4"}, "size of F"),
        ({**DECIMAL, "precision": 5000, "scale": 4301}, "scale of more than 4300"),
    ],
)
def test_a_schema_that_the_specification_forbids_is_refused(schema: Any, why: str):
    """It was compiled. Values of two arrays, of a field twice and of a decimal whose size is text
    then raised TypeError or StopIteration.
    """
    with pytest.raises(FormatError, match=f"the Avro schema cannot be used: .*{why}"):
        avro(schema)


def test_a_decimal_of_too_many_digits_is_refused():
    """Python converts no more than 4,300 digits, and its ValueError came out of `encode`."""
    made = avro({**DECIMAL, "precision": 1_000_000, "scale": 0})
    for value in ("9" * 4301, "1e4300", 10**4300, -(10**5000)):
        with pytest.raises(FormatError, match="has more than 4300 digits"):
            made.encode(value)
    with pytest.raises(FormatError, match="has more than 4300 digits"):
        made.decode(avro("bytes").encode((b"\x7f" * 2000).decode("latin-1")))
    assert made.decode(made.encode("9" * 4300)) == "9" * 4300


@pytest.mark.parametrize(
    "schema",
    ["int", "long", "float", "double", "string", ["null", "long", "double"],
     {"type": "enum", "name": "E", "symbols": ["A"]}, {"type": "int", "logicalType": "date"}],
)  # fmt: skip
def test_a_number_of_too_many_digits_is_refused(schema: Any):
    """The message was to show all of its digits, which Python refuses with a ValueError."""
    with pytest.raises(FormatError):
        avro(schema).encode(10**5000)


@pytest.mark.parametrize("value", [{"a": 1, 2: 3}, {2: 3}])
def test_an_object_whose_names_are_not_text_is_refused(value: Any):
    """The Python API can pass one."""
    for schema in (record("R", ("a", "int", 1)), {"type": "map", "values": "int"}):
        with pytest.raises(FormatError):
            avro(schema).encode(value)


def test_records_of_a_union_are_told_apart_without_looking_into_them():
    """Each was tried down to the innermost: the time doubled with each level, to hours here."""
    second = record("B", ("x", ["null", "A", "B"]), ("k", "int"))
    made = avro(record("A", ("x", ["null", "A", second]), ("j", "int")))
    value: Any = None
    for _ in range(30):
        value = {"x": value, "k": 1}
    assert made.encode({"x": value, "j": 1}) == b"\4" * 30 + b"\0" + b"\2" * 31


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
         b"\x80\x89\x7a\0"),  # a million
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


LONG_SCALE = {"type": "bytes", "logicalType": "decimal", "precision": 4000, "scale": 4000}
LONG_NAME = "n" * 5000


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": LONG_SCALE}, b"\x80\x40" + b"\x00" * 4096 + b"\0"),
        ({"type": "array", "items": ["null", LONG_SCALE]}, b"\x80\x40" + b"\x02\0" * 4096 + b"\0"),
        (
            {"type": "array", "items": {"type": "fixed", "name": "f", "size": 1} | {
                key: LONG_SCALE[key] for key in ("logicalType", "precision", "scale")}},
            b"\x80\x40" + b"\x01" * 4096 + b"\0",
        ),
        (
            {"type": "array", "items": ["int", record(LONG_NAME, ("k", "int"))]},
            b"\x80\x40" + b"\x02\x02" * 4096 + b"\0",
        ),
    ],
)  # fmt: skip
def test_digits_of_a_scale_and_names_of_branches_count_as_json(schema: Any, data: bytes):
    """8 kB of decimals of one byte each were shown in 16 MB of JSON."""
    with pytest.raises(FormatError, match="of JSON"):
        avro(schema).decode_text(data)


def test_decimals_with_a_large_scale_are_shown():
    made = avro({"type": "array", "items": LONG_SCALE})
    assert made.decode(b"\x02\x02\x01\0") == ["0." + "0" * 3999 + "1"]


def test_a_decimal_without_precision_is_bytes():
    """Its precision must be more than 0 (Avro specification 1.12), or the logical type is ignored.
    It was a decimal of which every value was refused."""
    made = avro({"type": "bytes", "logicalType": "decimal", "precision": 0})
    assert made.decode(made.encode("\u00ff")) == "\u00ff"


def test_empty_defaults_do_not_multiply_without_end():
    """An empty text counted as no bytes: 15 kB took a second, and 1 MB a minute."""
    made = avro(
        record(
            "E",
            *((f"f{n}", "string", "") for n in range(1000)),
            ("l", {"type": "array", "items": "E"}, []),
        )
    )
    with pytest.raises(FormatError, match="MiB of defaults"):
        made.encode({"l": [{}] * 5000})


def test_defaults_do_not_multiply_without_end():
    """30 kB of empty objects, each with a default of 50 kB, were written as 500 MB."""
    element = record("E", ("text", "string", "x" * 50_000), ("k", "int", 1))
    made = avro({"type": "array", "items": element})

    def refuse() -> None:
        with pytest.raises(FormatError, match="MiB of defaults"):
            made.encode([{}] * 10_000)

    assert measure_peak_memory(refuse) < 16 << 20
    for _ in range(2):  # each value has the whole budget
        assert len(made.encode([{}] * 300)) > 15_000_000
    assert len(made.encode([{"text": ""}] * 50_000)) < 200_000


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


@given(schemas_with_values())
def test_any_value_is_refused_or_written_as_the_specification_has_it(case: tuple[Any, list[Any]]):
    """Values without some of their fields were written with other defaults or none, and some
    raised what no caller expects.
    """
    schema, values = case
    model = AvroModel(schema)
    try:
        model.check_defaults()
    except EndlessDefault:
        with pytest.raises(FormatError, match="contains itself"):
            avro(schema)
        return
    try:
        made = avro(schema)
    except FormatError as refusal:
        assert "contains itself without end" in str(refusal)
        for value in values:
            with pytest.raises(DoesNotFit):
                model.encode(value)
        return
    base = fastavro.parse_schema(strip_logical_types(schema))
    for value in values:
        try:
            expected = model.encode(value)
        except DoesNotFit:
            with pytest.raises(FormatError):
                made.encode(value)
            continue
        written = made.encode(value)
        by_fastavro = io.BytesIO()
        fastavro.schemaless_writer(by_fastavro, base, expected)
        assert written == by_fastavro.getvalue()
        source = io.BytesIO(written)
        read = fastavro.schemaless_reader(source, base, None)
        assert repr(read) == repr(strip_branches(expected)), "NaN is not equal to itself"
        assert source.tell() == len(written)
        made.decode_text(written)


def test_similar_records_within_each_other_are_tried_once_each() -> None:
    """Each level of two similar records doubled the attempts: 16 levels of a value took 5 s."""
    fields = [{"name": "next", "type": ["null", "A", "B"]}, {"name": "x", "type": "int"}]
    b = {
        "type": "record",
        "name": "B",
        "fields": [fields[0], {"name": "x", "type": "string"}],
    }
    a = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "next", "type": ["null", "A", b]}, fields[1]],
    }
    codec = AvroCodec(json.dumps(["null", a, "B"]), {})
    fitting: Any = None
    wrong: Any = "no record"
    for _ in range(100):
        fitting = {"next": fitting, "x": "text"}  # fits B only, which is tried after A
        wrong = {"next": wrong, "x": 1}
    assert codec.decode(codec.encode(fitting))["B"]["x"] == "text"
    with pytest.raises(FormatError, match="is of none of its types"):
        codec.encode(wrong)


@pytest.mark.parametrize("text", ["text", True])
def test_defaults_of_similar_records_are_computed_once_each(text: object) -> None:
    """Each level of a default doubled the attempts: a schema of 600 bytes took 16 s to compile."""
    b = {
        "type": "record",
        "name": "B",
        "fields": [{"name": "next", "type": ["null", "A", "B"]}, {"name": "x", "type": "string"}],
    }
    a = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "next", "type": ["null", "A", b]}, {"name": "x", "type": "int"}],
    }
    default: Any = {"next": None, "x": text}
    for _ in range(60):
        default = {"next": default, "x": "text"}
    field = {"name": "c", "type": ["A", "B"], "default": default}
    codec = AvroCodec(json.dumps([a, {"type": "record", "name": "C", "fields": [field]}]), {})
    if text == "text":
        assert codec.decode(codec.encode({"C": {}}))["C"]["c"]["B"]["x"] == "text"
    else:  # a default that does not fit leaves the field required
        with pytest.raises(FormatError):
            codec.encode({"C": {}})


def test_zeros_of_decimals_do_not_multiply_without_end():
    """A scale of 4000 made 1786 bytes of 5, in 70 us each: 1 MB of them took 10 s."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4300, "scale": 4000}
    # As a string the value would be another one.
    codec = avro({"type": "array", "items": [decimal, "string"]})
    assert codec.decode(codec.encode(["1e200"] * 50))[0] == {
        "bytes": "1" + "0" * 200 + "." + "0" * 4000
    }
    with pytest.raises(FormatError, match="MiB of defaults for missing fields and zeros of dec"):
        codec.encode(["1e200"] * 20_000)


@pytest.mark.parametrize(("count", "is_named"), [(16, False), (600, False), (600, True)])
def test_values_that_fit_the_last_branch_of_a_union_are_bounded(count: int, is_named: bool):
    """Each value was tried by all branches, or fastavro looked for its branch: 1 MB took 84 s.

    In unions of up to 16 branches the attempts were not counted, and 1 MB took 5 s.
    """
    branches = [
        {"type": "record", "name": f"A{n}", "fields": [{"name": f"a{n}", "type": "int"}]}
        for n in range(count)
    ]
    codec = avro({"type": "array", "items": branches})
    value: dict[str, Any] = {f"a{count - 1}": 1}
    if is_named:
        value = {f"A{count - 1}": value}
    assert codec.decode(codec.encode([value] * 100))
    with pytest.raises(FormatError, match=r"too many values that do not fit the first branches"):
        codec.encode([value] * 20_000)
    assert codec.encode([value] * 100)


def test_names_are_not_looked_up_for_branches_that_do_not_fit():
    """Each attempt looked for the most similar of 200 names: 45 KB took 12 s."""
    branches = [
        {
            "type": "record",
            "name": f"A{n}",
            "fields": [{"name": f"field{i}", "type": "string", "default": ""} for i in range(200)],
        }
        for n in range(15)
    ]
    last = {"type": "record", "name": "Last", "fields": [{"name": "feld", "type": "int"}]}
    codec = avro({"type": "array", "items": [*branches, last]})
    start = time.process_time()
    assert codec.encode([{"feld": 1} for _ in range(3000)])
    assert time.process_time() - start < 2


def test_values_of_common_unions_are_not_bounded():
    codec = avro({"type": "array", "items": ["null", "int", "string"]})
    assert codec.encode(["a", None, 1] * 200_000)


def test_a_value_that_becomes_very_much_json_is_refused_whatever_its_size():
    """JSON of 128 times its bytes was allowed: 1 MB took 6 s, and held up everything else."""
    nulls = [{"name": f"n{n}", "type": "null"} for n in range(12)]
    record = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "boolean"}, *nulls]}
    numbers = avro({"type": "array", "items": "int"})
    data = numbers.encode([-1] * 100_000)  # as many bytes of 1, which are true, too
    assert len(numbers.decode(data)) == 100_000
    with pytest.raises(FormatError, match="100004 bytes come to more than 8388608 of JSON"):
        avro({"type": "array", "items": record}).decode(data)


def test_an_enum_may_have_many_symbols():
    """fastavro looked each symbol up in the list: a body of 1 MB took 15 s."""
    enum = {"type": "enum", "name": "E", "symbols": [f"s{n}" for n in range(45_000)]}
    schema = avro({"type": "array", "items": ["null", enum]})
    value = ["s44999"] * 20_000
    start = time.process_time()
    data = schema.encode(value)
    assert time.process_time() - start < 2  # 6 s before
    assert schema.decode(data) == value


def test_messages_are_bounded_whatever_a_schema_names():
    """A name of 150,000 characters stood in the error of each of 10,000 records: 3 GB."""
    name = "f" * 150_000
    field = {"name": name, "type": {"type": "array", "items": "int"}}
    codec = AvroCodec(json.dumps({"type": "record", "name": "R", "fields": [field]}), {})
    for value in ({}, {name: ["x"]}):
        with pytest.raises(FormatError, match="; ") as caught:
            codec.encode(value)
        assert len(str(caught.value)) <= 1000 and len(caught.value.pointer) <= 1000
