"""Protobuf as its JSON mapping, with Confluent's index list."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest
from google.protobuf import any_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import FormatError
from gateway.formats.protobuf import ProtobufCodec, read_indexes

SCHEMA = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "common/money.proto";
enum Kind { UNKNOWN = 0; FAST = 1; }
message Order {
  int64 id = 1;
  string full_name = 2;
  google.protobuf.Timestamp at = 3;
  bank.Money price = 4;
  repeated string tags = 5;
  message Item { int32 n = 1; message Part { string s = 1; } }
  map<string, Item> items = 6;
  oneof either { bool flag = 7; bytes data = 8; }
  Kind kind = 9;
  google.protobuf.Int64Value count = 10;
  google.protobuf.Struct free = 11;
  double size = 12;
  optional uint32 small = 13;
}
message Note { string text = 1; }
"""
USED = {"common/money.proto": 'syntax = "proto3"; package bank; message Money { int64 cents = 1; }'}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1).map(str),
        "fullName": TEXT,
        "tags": st.lists(TEXT, max_size=3),
        "items": st.dictionaries(
            TEXT, st.fixed_dictionaries({"n": st.integers(-(2**31), 2**31 - 1)}), max_size=2
        ),
        "kind": st.sampled_from(["UNKNOWN", "FAST"]),
        "size": st.floats(allow_nan=False, allow_infinity=False)
        | st.sampled_from(["NaN", "Infinity", "-Infinity"]),
    },
    optional={
        "flag": st.booleans(),
        "at": st.datetimes(min_value=datetime(1, 1, 1)).map(
            lambda at: f"{at.replace(microsecond=0).isoformat()}Z"
        ),
        "price": st.fixed_dictionaries({"cents": st.integers(-(2**63), 2**63 - 1).map(str)}),
        "count": st.integers(-(2**63), 2**63 - 1).map(str),
        "free": st.dictionaries(TEXT, TEXT | st.booleans() | st.none(), max_size=2),
        "small": st.integers(0, 2**32 - 1),
    },
)


@pytest.fixture(scope="module")
def schema() -> ProtobufCodec:
    return ProtobufCodec(SCHEMA, USED)


@given(value=VALUES)
def test_what_is_written_is_shown_again(schema: ProtobufCodec, value: Any):
    written = schema.encode(value)
    assert written[:1] == b"\0"
    assert schema.decode(written) == value


def test_the_bytes_are_those_of_the_wire(schema: ProtobufCodec):
    written = schema.encode({"id": "150", "full_name": "ada", "data": "AQI="})
    assert written == b"\0" + bytes.fromhex("08 96 01 12 03 61 64 61 42 02 01 02")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00", "order"),
        (b"\x02\x00", "order"),
        (b"\x02\x02\x0a\x02hi", {"text": "hi"}),
        (b"\x04\x00\x00\x08\x05", {"n": 5}),
        (b"\x06\x00\x00\x00\x0a\x01s", {"s": "s"}),
    ],
)
def test_indexes_lead_to_the_type_that_was_written(schema: ProtobufCodec, data: bytes, value: Any):
    shown = schema.decode(data)
    assert (shown["id"] == "0") if value == "order" else (shown == value)


@pytest.mark.parametrize(
    ("data", "found"),
    [(b"\0x", ((0,), 1)), (b"\x02\x02", ((1,), 2)), (b"\x04\x02\x80\x01x", ((1, 64), 4))],
)
def test_indexes_are_zigzag_varints_after_their_number(data: bytes, found: Any):
    assert read_indexes(data) == found


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "are cut"), (b"\x02", "are cut"), (b"\x01", "-1 indexes"), (b"\x02\x01", "-1 as"),
        (b"\x80" * 9, "too long"), (b"\x02\x0a", "no message at"), (b"\x00\xff\xff", "parsing"),
        (b"\x04\x00\x08", "no message at"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_such_message_are_refused(schema: ProtobufCodec, data: bytes, why: str):
    with pytest.raises(FormatError, match=why):
        schema.decode(data)


@pytest.mark.parametrize(
    ("data", "is_text"),
    [
        (b"\x0a\x02\xc3\xab", True), (b"\x0a\x01\xeb", False), (b"\x12\x01\xeb", True),
        (b"\x1a\x06\x0a\x01k\x12\x01\xeb", True), (b"\x1a\x06\x0a\x01\xeb\x12\x01k", False),
        (b"\x22\x01a\x22\x01\xeb", False), (b"\x2a\x03\x0a\x01\xeb", False),
    ],
)  # fmt: skip
def test_a_text_that_is_not_utf8_is_never_shown(data: bytes, is_text: bool):
    """proto2 does not check texts: a page got Python's notation of the bytes, b'\\xeb'."""
    schema = ProtobufCodec(
        "message M { optional string a = 1; optional bytes b = 2; map<string, bytes> c = 3;"
        " repeated string d = 4; optional M e = 5; }",
        {},
    )
    if is_text:
        assert "\\x" not in str(schema.decode(b"\0" + data))
    else:
        with pytest.raises(FormatError, match=r"(?i)utf-8"):
            schema.decode(b"\0" + data)


def test_an_optional_field_may_be_written_as_its_oneof():
    """Java's and .NET's serializers register it so; protoc allows no label in a oneof."""
    schema = ProtobufCodec(
        'syntax = "proto3"; package p; message M { M of = 1;'
        " oneof _at { optional string at = 2; } oneof _in { optional .p.M in = 3; } }",
        {},
    )
    assert schema.decode(b"\0\x12\x01y\x1a\0") == {"at": "y", "in": {}}


@pytest.mark.parametrize(
    "value",
    [5, "x", [], {"nme": 1}, {"id": "x"}, {"id": 2**63}, {"tags": 5}, {"at": "yesterday"},
     {"flag": True, "data": "AQ=="}, {"kind": "SLOW"}, {"fullName": "\ud800"}],
)  # fmt: skip
def test_what_does_not_fit_is_refused(schema: ProtobufCodec, value: Any):
    with pytest.raises(FormatError):
        schema.encode(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("message A {", "Reached end of input"),
        ('syntax = "proto3"; import "no.proto"; message A {}', "no.proto"),
        ('syntax = "proto3";', "has no message"),
        ('syntax = "proto3"; import "/etc/passwd"; message A {}', "passwd"),
    ],
)
def test_a_schema_that_is_none_is_refused(text: str, why: str):
    with pytest.raises(FormatError, match=why):
        ProtobufCodec(text, {})


def test_an_import_leaves_no_directory_but_its_own():
    for path in ("../out.proto", "/out.proto"):
        with pytest.raises(FormatError, match="is no path of an import"):
            ProtobufCodec('syntax = "proto3"; message A {}', {path: 'syntax = "proto3";'})


def test_a_file_without_a_syntax_is_proto2():
    made = ProtobufCodec("message A { required string a = 1; }", {})
    assert made.decode(made.encode({"a": "x"})) == {"a": "x"}


EXPLICIT = """
syntax = "proto3";
message Basket {
  repeated ItemsEntry items = 1;
  message ItemsEntry { option map_entry = true; string key = 1; Item value = 2; }
  message Item { int32 n = 1; }
}
"""
IMPLICIT = """
syntax = "proto3";
message Basket {
  map<string, Item> items = 1;
  message Item { int32 n = 1; }
}
"""


def test_map_entries_that_the_text_has_are_maps():
    """Confluent's serializers register maps so; no record of such a schema could be read."""
    schema = ProtobufCodec(EXPLICIT, {})
    value = {"items": {"a": {"n": 1}, "b": {"n": 2}}}
    assert schema.encode(value) == ProtobufCodec(IMPLICIT, {}).encode(value)
    assert schema.decode(schema.encode(value)) == value


@pytest.mark.parametrize(("text", "index"), [(IMPLICIT, 0), (EXPLICIT, 1)])
def test_indexes_count_the_messages_of_the_text(text: str, index: int):
    """An entry that stands for a `map` field was counted as if the text had it."""
    data = bytes([4, 0, 2 * index]) + b"\x08\x05"
    assert ProtobufCodec(text, {}).decode(data) == {"n": 5}
    with pytest.raises(FormatError, match="it has no message at"):
        ProtobufCodec(text, {}).decode(bytes([4, 0, 2 * index + 2]) + b"\x08\x05")


def test_map_entries_of_imported_files_are_maps():
    main = 'syntax = "proto3"; import "basket.proto"; message Order { Basket basket = 1; }'
    schema = ProtobufCodec(main, {"basket.proto": EXPLICIT})
    value = {"basket": {"items": {"a": {"n": 1}}}}
    assert schema.decode(schema.encode(value)) == value


@pytest.mark.parametrize(
    ("path", "kind", "value"),
    [
        ("google/type/money.proto", "google.type.Money", {"units": "3"}),
        ("confluent/type/decimal.proto", "confluent.type.Decimal", {"value": "AQ==", "scale": 2}),
        ("google/protobuf/duration.proto", "google.protobuf.Duration", "1.500s"),
    ],
)
def test_types_that_registries_know_need_no_reference(path: str, kind: str, value: Any):
    """Kafka Connect's schemas import them, and the registry lists no reference for them."""
    schema = ProtobufCodec(f'syntax = "proto3"; import "{path}"; message A {{ {kind} a = 1; }}', {})
    shown = schema.decode(schema.encode({"a": value}))["a"]
    assert shown == value if isinstance(value, str) else value.items() <= shown.items()


def test_parts_that_have_no_json_are_shown_as_their_fields():
    """One event of another file, or one time after the year 9999, hid the whole record."""
    imported = ("any", "duration", "timestamp")
    imports = "".join(f'import "google/protobuf/{name}.proto";' for name in imported)
    schema = ProtobufCodec(
        f"""syntax = "proto3"; {imports}
        message A {{
          int64 id = 1; google.protobuf.Any any = 2; repeated Part parts = 3;
          map<bool, Part> map = 4; map<string, int64> counts = 5;
          google.protobuf.Duration took = 6; string none = 7;
        }}
        message Part {{ int64 n = 1; google.protobuf.Timestamp at = 2; }}""",
        {},
    )
    late = bytes.fromhex("1207088083d1ffaf07")  # a Part of the year 10000
    unknown = b"\x0a\x03x/y\x12\x02\xff\x01"
    known = b"\x0a\x06x/Part\x12" + bytes([len(late)]) + late
    data = b"\0\x08\x05" + b"".join(
        bytes([number << 3 | 2, len(part)]) + part
        for number, part in (
            (2, unknown), (3, late), (3, b"\x08\x07"),
            (4, b"\x08\x01\x12" + bytes([len(late)]) + late),
            (5, b"\x0a\x01k\x10\x09"), (6, b"\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
        )
    )  # fmt: skip
    time = {"seconds": "253402300800", "nanos": 0}
    part = {"n": "0", "at": time}
    assert schema.decode(data) == {
        "id": "5",
        "any": {"@type": "x/y", "value": "/wE="},
        "parts": [part, {"n": "7"}],
        "map": {"true": part},
        "counts": {"k": "9"},
        "took": {"seconds": "72057594037927935", "nanos": 0},
        "none": "",
    }
    any_of_known = b"\0\x12" + bytes([len(known)]) + known
    assert schema.decode(any_of_known)["any"] == {"@type": "x/Part", **part}
    corrupt = b"\0\x12\x0b\x0a\x06x/Part\x12\x01\xff"
    assert schema.decode(corrupt)["any"] == {"@type": "x/Part", "value": "/w=="}


def test_an_any_without_the_value_of_its_type_is_refused():
    """A KeyError came out: the client's mistake was a 500."""
    schema = ProtobufCodec(
        'syntax = "proto3"; import "google/protobuf/any.proto"; '
        'import "google/protobuf/wrappers.proto"; message M { google.protobuf.Any a = 1; }',
        {},
    )
    with pytest.raises(FormatError, match="a member 'value' is missing"):
        schema.encode({"a": {"@type": "type.googleapis.com/google.protobuf.Int64Value"}})


def test_a_value_that_is_too_deep_for_json_is_invalid():
    """A TypeError came out: a group tried the batch again for ever, and polls were answered 500."""
    schema = ProtobufCodec(
        'syntax = "proto3"; import "google/protobuf/any.proto"; '
        "message M { google.protobuf.Any a = 1; }",
        {},
    )
    part = any_pb2.Any(type_url="x/y")
    for _ in range(260):
        part = any_pb2.Any(type_url="x/google.protobuf.Any", value=part.SerializeToString())
    # Bytes of a field 1 are written as its message is.
    data = b"\0" + wrappers_pb2.BytesValue(value=part.SerializeToString()).SerializeToString()
    with pytest.raises(FormatError, match="cannot be written as JSON"):
        schema.decode_text(data)


def test_a_schema_of_blank_lines_compiles_at_once():
    """The syntax was looked for from each line to the end of all blank ones: 32 KB took 4 s, and a
    body of 1 MB a quarter of an hour in which nothing else ran."""
    start = time.process_time()
    ProtobufCodec("\n" * 30_000 + "message M { optional int32 a = 1; }", {})
    assert time.process_time() - start < 2


def test_many_messages_of_google_are_refused():
    """They were in no account: 1 MB of empty ones took 1 to 1.8 s in which nothing else ran."""
    schema = ProtobufCodec(
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        "message M { repeated google.protobuf.Timestamp at = 1; }",
        {},
    )
    assert len(schema.decode(b"\0" + b"\x0a\0" * 10_000)["at"]) == 10_000
    with pytest.raises(FormatError, match="come to more than"):
        schema.decode(b"\0" + b"\x0a\0" * 200_000)


@pytest.mark.parametrize("label", ["", "repeated "])
def test_bytes_that_become_far_more_json_are_refused(label: str):
    """10 KB of empty messages became 167 MB of JSON, in 10 s in which nothing else ran."""
    fields = " ".join(f"{label}int32 field_with_a_long_name_{n} = {n + 1};" for n in range(500))
    schema = ProtobufCodec(
        f'syntax = "proto3"; message M {{ repeated N n = 1; }} message N {{ {fields} }}', {}
    )
    assert len(schema.decode(b"\0\x0a\0")["n"][0]) == 500
    with pytest.raises(FormatError, match="10001 bytes come to more than"):
        schema.decode(b"\0" + b"\x0a\0" * 5000)


def test_names_of_fields_and_of_enums_count_as_json():
    name = "E" * 10_000
    schema = ProtobufCodec(
        f'syntax = "proto3"; enum K {{ {name} = 0; }} message M {{ repeated K k = 1;'
        f" repeated N n = 2; }} message N {{ optional bool {name} = 1; }}",
        {},
    )
    assert schema.decode(b"\0\x0a\x01\0") == {"k": [name], "n": []}
    for data in (b"\x0a\x3c" + bytes(60), b"\x12\x02\x08\1" * 60):
        with pytest.raises(FormatError, match="of JSON"):
            schema.decode(b"\0" + data)


def test_parts_without_json_deep_inside_take_no_longer():
    """The rest was converted once for each level: 4 KB took 2.8 s, and 200 KB two minutes."""
    schema = ProtobufCodec(
        'syntax = "proto3"; import "google/protobuf/any.proto";'
        " message M { repeated M m = 1; google.protobuf.Any a = 2; }",
        {},
    )
    data = b"\x0a\0" * 3000 + b"\x12\x05\x0a\x03x/y"
    for _ in range(80):
        size = len(data)
        data = b"\x0a" + bytes([size & 127 | 128, size >> 7]) + data
    start = time.process_time()
    shown = schema.decode(b"\0" + data)
    assert time.process_time() - start < 1
    for _ in range(80):
        (shown,) = shown["m"]
    assert shown["a"] == {"@type": "x/y", "value": ""}


def test_what_schemas_say_of_their_fields_is_passed_over():
    text = """
    syntax = "proto3";
    import "confluent/meta.proto";
    message A { int32 n = 1 [(confluent.field_meta) = { tags: "PII" }]; }
    """
    schema = ProtobufCodec(text, {})
    assert schema.decode(schema.encode({"n": 1})) == {"n": 1}


def test_an_import_does_not_replace_what_is_here():
    """A reference by the path of a file of ours is written nowhere."""
    path = "google/type/money.proto"
    used = {path: 'syntax = "proto3"; package google.type; message Money { string evil = 1; }'}
    main = f'syntax = "proto3"; import "{path}"; message A {{ google.type.Money m = 1; }}'
    schema = ProtobufCodec(main, used)
    assert schema.decode(schema.encode({"m": {"units": "3"}}))["m"]["units"] == "3"


@pytest.mark.needs("process")
def test_a_large_schema_is_compiled_in_another_process():
    """protoc holds the GIL, and checks each range of `reserved` against all others."""
    messages = "".join(f"message M{n} {{ int32 a = {n % 99 + 1}; }}" for n in range(3000))
    assert ProtobufCodec(f'syntax = "proto3"; {messages}', {}).decode(b"\0\x08\5") == {"a": 5}
    with pytest.raises(FormatError, match=r"used: schema.proto:1:.* \"C\" is not defined"):
        ProtobufCodec(f'syntax = "proto3"; {messages} message B {{ C c = 1; }}', {})
