"""Derive columns from a schema: its fields, with the types that their JSON text is read with.

A text in JSON stays a text, except times. So decimals of Avro stay exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from gateway.core.channel.filters import MISSING, parse_pointer, resolve_path
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
# These are no objects in Protobuf's JSON, or objects of any fields.
_WELL_KNOWN_TYPES = {
    "Timestamp": "timestamp", "Duration": "string", "FieldMask": "string", "Any": "string",
    "Struct": "string", "Value": "string", "ListValue": "string",
    "BoolValue": "boolean", "Int32Value": "int", "UInt32Value": "bigint",
    "Int64Value": _INT64_TYPE, "UInt64Value": _INT64_TYPE, "FloatValue": "float",
    "DoubleValue": "double", "StringValue": "string", "BytesValue": "string",
}  # fmt: skip
"""The types of the messages of google.protobuf."""


def parse_schema_columns(
    format: SerializationFormat, text: str, references: Mapping[str, str]
) -> dict[str, str]:
    """Return the columns of an Avro record, a JSON Schema, or the first Protobuf message."""
    parse = _COLUMN_PARSERS.get(format)
    if parse is None:
        raise FormatError(f"columns cannot be derived from a schema of format {format.name}")
    return parse(text, references)


def _parse_record_fields(text: str, references: Mapping[str, str]) -> dict[str, str]:
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise FormatError("the schema is no record; its fields would be the columns")
    named_types: dict[str, Any] = {}
    for reference in references.values():
        _convert_avro(json.loads(reference), named_types, ())  # for the types that it names
    record = (_get_full_name(schema, ()),)
    return {
        field["name"]: _convert_avro(field["type"], named_types, record)
        for field in schema["fields"]
    }


def _parse_properties(text: str, references: Mapping[str, str]) -> dict[str, str]:
    from gateway.formats.json_schema import load_schema

    schema, uri, retrieve = load_schema(text, references)
    types = _JsonSchemaTypes(retrieve)
    schema, document, enclosing = types.resolve(schema, _Document(uri, schema), (f"{uri}#",))
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not properties:
        raise FormatError("the schema has no properties; they would be the columns")
    return {
        name: types.convert(definition, document, enclosing)
        for name, definition in properties.items()
    }


def _convert_avro(schema: Any, named_types: dict[str, Any], enclosing: tuple[str, ...]) -> str:
    """Return the type of a column for an Avro schema.

    Args:
        named_types: The named types that are known so far by their full names; types in the schema
            are added.
        enclosing: The full names of the records around the field, the last of which gives names
            their namespace. A record within itself is a string.
    """
    if isinstance(schema, list):  # a union: only of null and one other type, or a string
        types = [
            _convert_avro(branch, named_types, enclosing) for branch in schema if branch != "null"
        ]
        return types[0] if len(types) == 1 else "string"
    if isinstance(schema, str):
        if schema in _AVRO_TYPES:
            return _AVRO_TYPES[schema]
        full_name = _get_full_name({"name": schema}, enclosing)
        name = schema if full_name not in (*named_types, *enclosing) else full_name
        return (
            "string"
            if name in enclosing
            else _convert_avro(named_types.get(name), named_types, enclosing)
        )
    if not isinstance(schema, dict):
        return "string"
    kind, logical = schema.get("type"), schema.get("logicalType")
    full_name = ""
    if "name" in schema:
        full_name = _get_full_name(schema, enclosing)
        # As it is used again from within other namespaces.
        named_types[full_name] = schema | {"name": full_name, "namespace": ""}
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
        inner = (*enclosing, full_name)
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


def _get_full_name(schema: Mapping[str, Any], enclosing: tuple[str, ...]) -> str:
    """Return the name of a type with its namespace, by default that of the record around."""
    name = str(schema["name"])
    around = enclosing[-1].rpartition(".")[0] if enclosing else ""
    namespace = schema.get("namespace", around)
    return f"{namespace}.{name}" if namespace and "." not in name else name


class _Document(NamedTuple):
    uri: str
    content: Any


class _JsonSchemaTypes:
    """Convert JSON Schemas of properties into the types of columns.

    References are followed here, as jsonschema_rs (0.60) returns schemas with sorted names, and
    columns have the order of the schema.
    """

    def __init__(self, retrieve: Callable[[str], Any]) -> None:
        self._retrieve = retrieve

    def convert(self, schema: Any, document: _Document, enclosing: tuple[str, ...]) -> str:
        """Return the type of a column; a schema within itself is a string."""
        schema, document, enclosing = self.resolve(schema, document, enclosing)
        if not isinstance(schema, dict):
            return "string"
        kind = schema.get("type")
        if kind is None:
            # Generators describe a type that may be null in this way, above all one of a `$ref`.
            options = [
                part for name in ("oneOf", "anyOf", "allOf") for part in schema.get(name, ())
            ]
            options = [option for option in options if option != {"type": "null"}]
            return self.convert(options[0], document, enclosing) if len(options) == 1 else "string"
        if isinstance(kind, list):
            alternatives = [name for name in kind if name != "null"]
            kind = alternatives[0] if len(alternatives) == 1 else None
        if kind == "array":
            return f"array<{self.convert(schema.get('items'), document, enclosing)}>"
        if kind == "object" and schema.get("properties"):
            inner = (
                f"`{name}`:{self.convert(definition, document, enclosing)}"
                for name, definition in schema["properties"].items()
            )
            return f"struct<{','.join(inner)}>"
        if kind == "string" and schema.get("format") in ("date-time", "date"):
            return "timestamp" if schema["format"] == "date-time" else "date"
        return _JSON_SCHEMA_TYPES.get(str(kind), "string")

    def resolve(
        self, schema: Any, document: _Document, enclosing: tuple[str, ...]
    ) -> tuple[Any, _Document, tuple[str, ...]]:
        """Return the schema that a `$ref` leads to, if there is one, with its document.

        Returns:
            Also `enclosing` with the references that were followed; and None for the schema if
            there is none at that place, or if it is enclosed by itself.
        """
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            name, _, pointer = schema["$ref"].partition("#")
            try:
                if name and name != document.uri:
                    uri = urljoin(document.uri, name)
                    document = _Document(uri, self._retrieve(uri))
                schema = resolve_path(document.content, parse_pointer(unquote(pointer)))
            except ValueError:
                return None, document, enclosing
            place = f"{document.uri}#{pointer}"
            if schema is MISSING or place in enclosing:
                return None, document, enclosing
            enclosing = (*enclosing, place)
        return schema, document, enclosing


def _parse_message_fields(text: str, references: Mapping[str, str]) -> dict[str, str]:
    require_extra("protobuf", "a job with model: protobuf")
    from gateway.formats.protobuf import ProtobufCodec

    descriptor = ProtobufCodec(text, references).find_descriptor((0,))
    return {field.json_name: _convert_field(field, ()) for field in descriptor.fields}


def _convert_field(field: Any, enclosing: tuple[str, ...]) -> str:
    """Return a Protobuf field's type; a message within itself is a string."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return f"map<string,{_convert_field(message.fields_by_name['value'], enclosing)}>"
    plain = _convert_single(field, message, enclosing)
    return f"array<{plain}>" if field.is_repeated else plain


def _convert_single(field: Any, message: Any, enclosing: tuple[str, ...]) -> str:
    if message is None:
        return _PROTOBUF_TYPES.get(field.type, "string")
    if message.full_name in enclosing:
        return "string"
    if message.file.package == "google.protobuf" and message.name in _WELL_KNOWN_TYPES:
        return _WELL_KNOWN_TYPES[message.name]
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
