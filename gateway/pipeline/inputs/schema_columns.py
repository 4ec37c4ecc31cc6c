"""Derive columns from a schema: its fields, with the types that their JSON text is read with.

Whatever is a text in JSON stays a text, except times. So decimals of Avro stay exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import FormatError
from gateway.extras import require_extra
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
# In Protobuf's JSON a 64-bit number is a text, which Spark only reads as a decimal. The largest
# unsigned one has 20 digits.
_INT64_TYPE = "decimal(20,0)"
_PROTOBUF_TYPES = {
    1: "double", 2: "float", 3: _INT64_TYPE, 4: _INT64_TYPE, 5: "int", 6: _INT64_TYPE,
    7: "bigint", 8: "boolean", 9: "string", 12: "string", 13: "bigint", 14: "string", 15: "int",
    16: _INT64_TYPE, 17: "int", 18: _INT64_TYPE,
}  # fmt: skip
"""The types by the number of `FieldDescriptor.type`."""
_WELL_KNOWN_TYPES = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.StringValue": "string",
}


def parse_schema_columns(
    format: SerializationFormat, text: str, references: Mapping[str, str]
) -> dict[str, str]:
    """Return the columns of a schema with their types.

    Args:
        format: The format of the schema.
        text: The schema: an Avro record, a JSON Schema of an object, or a Protobuf file, whose
            first message is used.
        references: The texts of the schemas that it refers to, by name.

    Raises:
        FormatError: The schema is not one of these.
    """
    parse = _COLUMN_PARSERS.get(format)
    if parse is None:
        raise FormatError(f"columns cannot be derived from a schema of format {format.name}")
    return parse(text, references)


def _parse_record_fields(text: str, references: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of an Avro record."""
    schema = json.loads(text)
    named = {name: json.loads(reference) for name, reference in references.items()}
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise FormatError("the schema is no record; its fields would be the columns")
    return {field["name"]: _convert_avro(field["type"], named, ()) for field in schema["fields"]}


def _parse_properties(text: str, references: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a JSON Schema."""
    schema = json.loads(text)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not properties:
        raise FormatError("the schema has no properties; they would be the columns")
    return {name: _convert_property(definition) for name, definition in properties.items()}


def _convert_avro(schema: Any, named_types: dict[str, Any], enclosing: tuple[str, ...]) -> str:
    """Return the type of a column for an Avro schema.

    Args:
        schema: The schema of the field.
        named_types: The named types that are known so far; types in the schema are added.
        enclosing: The names of the records around the field. A record within itself is a string.
    """
    if isinstance(schema, list):  # a union: only of null and one other type, or a string
        branches = [branch for branch in schema if branch != "null"]
        return (
            _convert_avro(branches[0], named_types, enclosing) if len(branches) == 1 else "string"
        )
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
    """Return the type of a column for the JSON Schema of a property."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        alternatives = [name for name in kind if name != "null"]
        kind = alternatives[0] if len(alternatives) == 1 else None
    if kind == "array":
        return f"array<{_convert_property(schema.get('items'))}>"
    if kind == "object" and schema.get("properties"):
        inner = (
            f"`{name}`:{_convert_property(definition)}"
            for name, definition in schema["properties"].items()
        )
        return f"struct<{','.join(inner)}>"
    if kind == "string" and schema.get("format") in ("date-time", "date"):
        return "timestamp" if schema["format"] == "date-time" else "date"
    return _JSON_SCHEMA_TYPES.get(str(kind), "string")


def _parse_message_fields(text: str, references: Mapping[str, str]) -> dict[str, str]:
    require_extra("protobuf", "a job with model: protobuf")
    from gateway.formats.protobuf import ProtobufCodec

    descriptor = ProtobufCodec(text, references).find_descriptor((0,))
    return {field.json_name: _convert_field(field, ()) for field in descriptor.fields}


def _convert_field(field: Any, enclosing: tuple[str, ...]) -> str:
    """Return the type of a column for a field of Protobuf.

    Args:
        field: The FieldDescriptor.
        enclosing: The names of the messages around it. A message within itself is a string.
    """
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
        f"`{child.json_name}`:{_convert_field(child, inner)}" for child in message.fields
    )
    return f"struct<{fields}>" if fields else "string"


_COLUMN_PARSERS: Mapping[
    SerializationFormat, Callable[[str, Mapping[str, str]], dict[str, str]]
] = {
    SerializationFormat.AVRO: _parse_record_fields,
    SerializationFormat.JSONSCHEMA: _parse_properties,
    SerializationFormat.PROTOBUF: _parse_message_fields,
}
