"""The columns of a schema: its fields, in the types that their JSON text is read with.

What JSON has as text stays text but for times: decimals of Avro are as exact as they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.errors import FormatError
from gateway.formats.codec import Format

_AVRO = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double",
    "string": "string", "bytes": "string", "enum": "string", "fixed": "string",
}  # fmt: skip
_LOGICAL = {"date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp"}
_JSON = {"boolean": "boolean", "integer": "bigint", "number": "double", "string": "string"}
_WIDE = "decimal(20,0)"  # Protobuf's JSON has 64 bits as text, which Spark reads as decimals only
_SCALARS = {
    1: "double", 2: "float", 3: _WIDE, 4: _WIDE, 5: "int", 6: _WIDE,
    7: "bigint", 8: "boolean", 9: "string", 12: "string", 13: "bigint", 14: "string", 15: "int",
    16: _WIDE, 17: "int", 18: _WIDE,
}  # fmt: skip
"""By FieldDescriptor.type."""
_KNOWN = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.StringValue": "string"}


def columns(format: Format, text: str, used: Mapping[str, str]) -> dict[str, str]:
    """Of an Avro record, a JSON object, or the first message of a Protobuf file. Raises
    FormatError where the schema is none of them."""
    if format is Format.PROTOBUF:
        return _message(text, used)
    schema = json.loads(text)
    if format is Format.AVRO:
        named = {name: json.loads(each) for name, each in used.items()}
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise FormatError("the schema is no record; its fields would be the columns")
        return {each["name"]: _avro(each["type"], named, ()) for each in schema["fields"]}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not properties:
        raise FormatError("the schema has no properties; they would be the columns")
    return {name: _property(each) for name, each in properties.items()}


def _avro(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> str:
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        return _avro(kinds[0], named, within) if len(kinds) == 1 else "string"
    if isinstance(schema, str):
        if schema in _AVRO:
            return _AVRO[schema]
        return "string" if schema in within else _avro(named.get(schema), named, within)
    if not isinstance(schema, dict):
        return "string"
    kind, logical = schema.get("type"), schema.get("logicalType")
    if "name" in schema:
        named[schema["name"]] = schema
    if logical is not None:
        plain = _AVRO.get(str(kind), "string") if logical not in ("uuid", "decimal") else "string"
        return _LOGICAL.get(logical, "string" if "time" in logical else plain)
    if kind == "array":
        return f"array<{_avro(schema['items'], named, within)}>"
    if kind == "map":
        return f"map<string,{_avro(schema['values'], named, within)}>"
    if kind == "record":
        inner = (*within, schema["name"])
        fields = (f"`{f['name']}`:{_avro(f['type'], named, inner)}" for f in schema["fields"])
        return f"struct<{','.join(fields)}>"
    return _avro(kind, named, within) if kind not in _AVRO else _AVRO[kind]


def _property(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "array":
        return f"array<{_property(schema.get('items'))}>"
    if kind == "object" and schema.get("properties"):
        inner = (f"`{name}`:{_property(each)}" for name, each in schema["properties"].items())
        return f"struct<{','.join(inner)}>"
    if kind == "string" and schema.get("format") in ("date-time", "date"):
        return "timestamp" if schema["format"] == "date-time" else "date"
    return _JSON.get(str(kind), "string")


def _message(text: str, used: Mapping[str, str]) -> dict[str, str]:
    from gateway.formats.protobuf import Protobuf

    descriptor = Protobuf(text, used).descriptor((0,))
    return {each.json_name: _field(each, ()) for each in descriptor.fields}


def _field(field: Any, within: tuple[str, ...]) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return f"map<string,{_field(message.fields_by_name['value'], within)}>"
    plain = _single(field, message, within)
    return f"array<{plain}>" if field.is_repeated else plain


def _single(field: Any, message: Any, within: tuple[str, ...]) -> str:
    if message is None:
        return _SCALARS.get(field.type, "string")
    if message.full_name in _KNOWN or message.full_name in within:
        return _KNOWN.get(message.full_name, "string")
    inner = (*within, message.full_name)
    fields = ",".join(f"`{each.json_name}`:{_field(each, inner)}" for each in message.fields)
    return f"struct<{fields}>" if fields else "string"
