"""The columns of a schema: its fields, in the types that their JSON text is read with.

What JSON has as text stays text but for times: decimals of Avro are as exact as they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.errors import FormatError
from gateway.formats.codec import SerializationFormat

_AVRO_TYPES = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double",
    "string": "string", "bytes": "string", "enum": "string", "fixed": "string",
}  # fmt: skip
_AVRO_LOGICAL_TYPES = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
}
_JSON_SCHEMA_TYPES = {
    "boolean": "boolean",
    "integer": "bigint",
    "number": "double",
    "string": "string",
}
_INT64_TYPE = (
    "decimal(20,0)"  # Protobuf's JSON has 64 bits as text, which Spark reads as decimals only
)
_PROTOBUF_TYPES = {
    1: "double", 2: "float", 3: _INT64_TYPE, 4: _INT64_TYPE, 5: "int", 6: _INT64_TYPE,
    7: "bigint", 8: "boolean", 9: "string", 12: "string", 13: "bigint", 14: "string", 15: "int",
    16: _INT64_TYPE, 17: "int", 18: _INT64_TYPE,
}  # fmt: skip
"""By FieldDescriptor.type."""
_WELL_KNOWN_TYPES = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.StringValue": "string",
}


def parse_schema_columns(
    format: SerializationFormat, text: str, references: Mapping[str, str]
) -> dict[str, str]:
    """Of an Avro record, a JSON object, or the first message of a Protobuf file. Raises
    FormatError where the schema is none of them."""
    if format is SerializationFormat.PROTOBUF:
        return _parse_message_fields(text, references)
    schema = json.loads(text)
    if format is SerializationFormat.AVRO:
        named = {name: json.loads(each) for name, each in references.items()}
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise FormatError("the schema is no record; its fields would be the columns")
        return {each["name"]: _convert_avro(each["type"], named, ()) for each in schema["fields"]}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not properties:
        raise FormatError("the schema has no properties; they would be the columns")
    return {name: _convert_property(each) for name, each in properties.items()}


def _convert_avro(schema: Any, named_types: dict[str, Any], enclosing: tuple[str, ...]) -> str:
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        return _convert_avro(kinds[0], named_types, enclosing) if len(kinds) == 1 else "string"
    if isinstance(schema, str):
        if schema in _AVRO_TYPES:
            return _AVRO_TYPES[schema]
        return (
            "string"
            if schema in enclosing
            else _convert_avro(named_types.get(schema), named_types, enclosing)
        )
    if not isinstance(schema, dict):
        return "string"
    kind, logical = schema.get("type"), schema.get("logicalType")
    if "name" in schema:
        named_types[schema["name"]] = schema
    if logical is not None:
        plain = (
            _AVRO_TYPES.get(str(kind), "string") if logical not in ("uuid", "decimal") else "string"
        )
        return _AVRO_LOGICAL_TYPES.get(logical, "string" if "time" in logical else plain)
    if kind == "array":
        return f"array<{_convert_avro(schema['items'], named_types, enclosing)}>"
    if kind == "map":
        return f"map<string,{_convert_avro(schema['values'], named_types, enclosing)}>"
    if kind == "record":
        inner = (*enclosing, schema["name"])
        fields = (
            f"`{f['name']}`:{_convert_avro(f['type'], named_types, inner)}"
            for f in schema["fields"]
        )
        return f"struct<{','.join(fields)}>"
    return (
        _convert_avro(kind, named_types, enclosing)
        if kind not in _AVRO_TYPES
        else _AVRO_TYPES[kind]
    )


def _convert_property(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "array":
        return f"array<{_convert_property(schema.get('items'))}>"
    if kind == "object" and schema.get("properties"):
        inner = (
            f"`{name}`:{_convert_property(each)}" for name, each in schema["properties"].items()
        )
        return f"struct<{','.join(inner)}>"
    if kind == "string" and schema.get("format") in ("date-time", "date"):
        return "timestamp" if schema["format"] == "date-time" else "date"
    return _JSON_SCHEMA_TYPES.get(str(kind), "string")


def _parse_message_fields(text: str, references: Mapping[str, str]) -> dict[str, str]:
    from gateway.formats.protobuf import ProtobufCodec

    descriptor = ProtobufCodec(text, references).find_descriptor((0,))
    return {each.json_name: _convert_field(each, ()) for each in descriptor.fields}


def _convert_field(field: Any, enclosing: tuple[str, ...]) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return f"map<string,{_convert_field(message.fields_by_name['value'], enclosing)}>"
    plain = _convert_single(field, message, enclosing)
    return f"array<{plain}>" if field.is_repeated else plain


def _convert_single(field: Any, message: Any, enclosing: tuple[str, ...]) -> str:
    if message is None:
        return _PROTOBUF_TYPES.get(field.type, "string")
    if message.full_name in _WELL_KNOWN_TYPES or message.full_name in enclosing:
        return _WELL_KNOWN_TYPES.get(message.full_name, "string")
    inner = (*enclosing, message.full_name)
    fields = ",".join(
        f"`{each.json_name}`:{_convert_field(each, inner)}" for each in message.fields
    )
    return f"struct<{fields}>" if fields else "string"
