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
