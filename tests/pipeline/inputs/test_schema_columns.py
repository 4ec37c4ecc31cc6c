"""The columns of a schema."""

from __future__ import annotations

import json

import pytest

from gateway.errors import FormatError
from gateway.formats.codec import SerializationFormat
from gateway.pipeline.inputs.schema_columns import parse_schema_columns
from gateway.pipeline.inputs.types import check_type

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "n", "type": ["null", "long"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A"]}},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item", "fields": [
                {"name": "sku", "type": "string"}, {"name": "before", "type": ["null", "Item"]}]}}},
        {"name": "notes", "type": {"type": "map", "values": "double"}},
        {"name": "either", "type": ["string", "long"]},
    ],
}  # fmt: skip

JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "n": {"type": ["null", "integer"]},
        "at": {"type": "string", "format": "date-time"},
        "place": {"type": "object", "properties": {"x": {"type": "number"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "any": {},
    },
}

PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  string order_id = 1;
  int32 n = 2;
  int64 wide = 3;
  repeated Item items = 4;
  map<string, double> notes = 5;
  google.protobuf.Timestamp at = 6;
}
message Item { string sku = 1; Item before = 2; }
"""


def test_of_an_avro_record():
    found = parse_schema_columns(SerializationFormat.AVRO, json.dumps(AVRO), {})
    assert found == {
        "id": "string",
        "n": "bigint",
        "price": "string",
        "at": "timestamp",
        "day": "date",
        "state": "string",
        "items": "array<struct<`sku`:string,`before`:string>>",
        "notes": "map<string,double>",
        "either": "string",
    }
    assert not [kind for kind in found.values() if check_type(kind)]


def test_of_a_json_schema():
    assert parse_schema_columns(SerializationFormat.JSONSCHEMA, json.dumps(JSON), {}) == {
        "id": "string",
        "n": "bigint",
        "at": "timestamp",
        "place": "struct<`x`:double>",
        "tags": "array<string>",
        "any": "string",
    }


def test_of_a_json_schema_by_its_references():
    """They were texts of JSON."""
    order = {
        "type": "object",
        "properties": {
            "id": {"$ref": "#/definitions/id"},
            "to": {"oneOf": [{"type": "null"}, {"$ref": "address.json"}]},
            "all": {"type": "array", "items": {"$ref": "#/definitions/order"}},
            "root": {"$ref": "#"},
            "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
            "any": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
            "none": {"$ref": "#/definitions/none"},
        },
    }
    schema = {
        "$ref": "#/definitions/order",
        "definitions": {"order": order, "id": {"type": "integer"}},
    }
    town = {"type": "object", "properties": {"name": {"$ref": "#/definitions/name"}}}
    address = {
        "type": "object",
        "properties": {"town": town, "near": {"$ref": "#"}, "far": {"$ref": "address.json"}},
        "definitions": {"name": {"type": "string"}},
    }
    references = {"address.json": json.dumps(address)}
    assert parse_schema_columns(SerializationFormat.JSONSCHEMA, json.dumps(schema), references) == {
        "id": "bigint",
        "to": "struct<`town`:struct<`name`:string>,`near`:string,`far`:string>",
        "all": "array<string>",
        "root": "string",
        "at": "timestamp",
        "any": "string",
        "none": "string",
    }


def test_a_named_type_of_avro_is_the_same_wherever_it_is_used():
    """By its full name, or from a reference, it was a text."""
    item = {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}
    box = {"type": "record", "name": "com.box.Box", "fields": [
        {"name": "first", "type": {**item, "fields": [{"name": "b", "type": "boolean"}]}},
        {"name": "second", "type": "Item"}]}  # fmt: skip
    order = {"type": "record", "name": "Order", "namespace": "com.shop", "fields": [
        {"name": "a", "type": item},
        {"name": "b", "type": ["null", "com.shop.Item"]},
        {"name": "c", "type": {"type": "array", "items": "Item"}},
        {"name": "box", "type": "com.box.Box"},
        {"name": "boxed", "type": "com.box.Item"},
        {"name": "again", "type": ["null", "Order"]},
        {"name": "either", "type": ["int", {"type": "fixed", "name": "F", "size": 2}, {
            **item, "name": "Other"}]},
        {"name": "other", "type": "Other"},
    ]}  # fmt: skip
    assert parse_schema_columns(
        SerializationFormat.AVRO, json.dumps(order), {"the box": json.dumps(box)}
    ) == {
        "a": "struct<`n`:int>",
        "b": "struct<`n`:int>",
        "c": "array<struct<`n`:int>>",
        "box": "struct<`first`:struct<`b`:boolean>,`second`:struct<`b`:boolean>>",
        "boxed": "struct<`b`:boolean>",
        "again": "string",
        "either": "string",
        "other": "struct<`n`:int>",
    }


def test_well_known_types_of_protobuf_are_read_as_their_json_is():
    """All but two were objects of their fields, so that each record was invalid."""
    types = {
        "Timestamp": "timestamp", "Duration": "string", "FieldMask": "string", "Any": "string",
        "Struct": "string", "Value": "string", "ListValue": "string", "BoolValue": "boolean",
        "Int32Value": "int", "UInt32Value": "bigint", "Int64Value": "decimal(20,0)",
        "UInt64Value": "decimal(20,0)", "FloatValue": "float", "DoubleValue": "double",
        "StringValue": "string", "BytesValue": "string",
    }  # fmt: skip
    files = ("any", "duration", "field_mask", "struct", "timestamp", "wrappers")
    text = 'syntax = "proto3";' + "".join(
        f'import "google/protobuf/{file}.proto";' for file in files
    )
    fields = "".join(
        f"google.protobuf.{name} {name.lower()} = {number};" for number, name in enumerate(types, 1)
    )
    text += f"message Order {{ {fields} repeated google.protobuf.Int64Value many = 99; }}"
    expected = {name.lower(): type_text for name, type_text in types.items()}
    assert parse_schema_columns(SerializationFormat.PROTOBUF, text, {}) == {
        **expected,
        "many": "array<decimal(20,0)>",
    }


def test_of_the_first_message_of_a_protobuf_file_by_its_names_in_json():
    assert parse_schema_columns(SerializationFormat.PROTOBUF, PROTOBUF, {}) == {
        "orderId": "string",
        "n": "int",
        "wide": "decimal(20,0)",
        "items": "array<struct<`sku`:string,`before`:string>>",
        "notes": "map<string,double>",
        "at": "timestamp",
    }


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (SerializationFormat.AVRO, '"string"'),
        (SerializationFormat.JSONSCHEMA, '{"type": "string"}'),
    ],
)
def test_what_has_no_fields_has_no_columns(format, text):
    with pytest.raises(FormatError, match="would be the columns"):
        parse_schema_columns(format, text, {})
