"""Avro as JSON, by a schema and those it refers to.

Avro's own JSON encoding tells the branch of every union, `{"string": "x"}`, which no browser's
code wants to see. Written here: of a union of null and one type, the value as it is; of one of
several types, `{"<type>": value}`. Taken on the way back: both forms everywhere, so what was
read can be written again. (Where a value would read as a branch, as `{"map": ..}` in a nullable
map, its branch is told as well.)

Bytes and fixed are text of U+0000 to U+00FF, as in Avro's JSON; NaN and the infinities are
"NaN", "Infinity", "-Infinity"; logical types are in `logical`. A field that is missing has
its default. Measured a record of 8 fields, with a decimal, a time
and a union of three: read and shown as text 10 us, written 14 us.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import orjson
from fastavro import parse_schema, schemaless_reader

from gateway.errors import FormatError
from gateway.formats.plain import describe_json_type
from gateway.formats.schema_mismatch import SchemaMismatch

from .json_size import JsonSizeLimit
from .types import (
    PRIMITIVES,
    AvroType,
    apply_logical_type,
    create_array,
    create_enum,
    create_fixed,
    create_map,
    suggest_name,
)
from .union import create_union, mark_branches

_VALUE_FIELD = "value"
_MISSING = object()


class AvroCodec:
    """One schema. used: those it refers to, the innermost first. Raises FormatError for one that
    is none."""

    def __init__(self, text: str, used: Mapping[str, str]) -> None:
        try:
            made = _TypeBuilder()
            for each in used.values():
                made.build_type(orjson.loads(each), "")
            self._type = made.build_type(orjson.loads(text), "")
            plain = made.inline_types(self._type.plain)
            self._sizes = JsonSizeLimit(plain)
            field = {"name": _VALUE_FIELD, "type": mark_branches(plain)}
            # in a record, or fastavro would parse a union anew for each value
            self._plain = parse_schema({"type": "record", "name": "Framed", "fields": [field]})
            self._needs_branch_names = made.needs_branch_names
        except (Exception, RecursionError) as exc:  # whatever is wrong with it
            raise FormatError(f"the Avro schema cannot be used: {exc}; correct it") from None

    def encode(self, value: Any) -> bytes:
        """Raises FormatError."""
        out = bytearray()
        try:
            self._type.write(value, out)
        except SchemaMismatch as misfit:
            at = misfit.pointer
            raise FormatError(f"{at or 'the value'} {misfit}; correct it", pointer=at) from None
        except RecursionError:
            raise FormatError("the value is nested too deep; flatten it") from None
        return bytes(out)

    def decode(self, data: bytes) -> Any:
        """Raises FormatError."""
        source = BytesIO(data)
        try:
            self._sizes.check(data)
            read: Any = schemaless_reader(
                source, self._plain, return_named_type=self._needs_branch_names
            )
            shown = self._type.convert(read[_VALUE_FIELD])
        except (Exception, RecursionError) as exc:  # of fastavro: EOFError, IndexError, and more
            why = str(exc) or type(exc).__name__
            raise FormatError(f"the bytes are not of their Avro schema: {why}") from None
        if source.tell() != len(data):
            left = len(data) - source.tell()
            raise FormatError(f"the bytes are not of their Avro schema: {left} too many")
        return shown

    def decode_text(self, data: bytes) -> bytes:
        """As JSON text. Raises FormatError."""
        try:
            return orjson.dumps(self.decode(data))
        except orjson.JSONEncodeError as exc:
            raise FormatError(f"the value cannot be written as JSON: {exc}") from None


class _TypeBuilder:
    """Types that were made of one schema, by their full names.

    tells: is there a union of which fastavro must tell the branch?
    """

    def __init__(self) -> None:
        self.needs_branch_names = False
        self.defined: set[str] = set()  # labels whose definition is in the plain schema already
        self._named: dict[str, AvroType] = {}
        self._labels: dict[str, str] = {}
        self._plain: dict[str, Any] = {}

    def build_type(self, schema: Any, namespace: str) -> AvroType:
        """space: the namespace around it. Raises ValueError and whatever a bad schema leads to."""
        if isinstance(schema, list):
            made = create_union([self.build_type(each, namespace) for each in schema])
            self.needs_branch_names = self.needs_branch_names or len(schema) > 1
            return made
        if isinstance(schema, str):
            return PRIMITIVES.get(schema) or self._find_type(schema, namespace)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._build_record(schema, namespace)
        if kind in ("enum", "fixed"):
            return self._build_flat_type(kind, schema, namespace)
        if kind == "array":
            return create_array(self.build_type(schema["items"], namespace))
        if kind == "map":
            return create_map(self.build_type(schema["values"], namespace))
        if isinstance(kind, str) and kind in PRIMITIVES:
            return apply_logical_type(PRIMITIVES[kind], schema)
        return self.build_type(kind, namespace)

    def inline_types(self, plain: Any) -> Any:
        """With each named type defined where it is first used, and nowhere else."""
        if isinstance(plain, list):
            return [self.inline_types(each) for each in plain]
        if isinstance(plain, str):
            if plain not in self._plain or plain in self.defined:
                return plain
            self.defined.add(plain)
            return self.inline_types(self._plain[plain])
        if plain["type"] == "array":
            return {**plain, "items": self.inline_types(plain["items"])}
        if plain["type"] == "map":
            return {**plain, "values": self.inline_types(plain["values"])}
        if plain["type"] == "record":
            fields = [{**each, "type": self.inline_types(each["type"])} for each in plain["fields"]]
            return {**plain, "fields": fields}
        return plain

    def _find_type(self, name: str, namespace: str) -> AvroType:
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise ValueError(f"unknown type '{name}'")
        return found

    def _register_name(self, schema: Mapping[str, Any], namespace: str) -> tuple[str, str, str]:
        """Full name, namespace for what is inside, and the label that fastavro knows it by."""
        name = str(schema["name"])
        if "." not in name and (own := schema.get("namespace", namespace)):
            name = f"{own}.{name}"
        label = f"t{len(self._labels)}"
        if name in self._named:
            raise ValueError(f"type '{name}' is defined twice")
        self._labels[name] = label
        return name, name.rpartition(".")[0], label

    def _build_flat_type(self, kind: str, schema: Mapping[str, Any], namespace: str) -> AvroType:
        name, _, label = self._register_name(schema, namespace)
        if kind == "enum":
            made = create_enum(name, label, list(schema["symbols"]))
        else:
            made = apply_logical_type(create_fixed(name, label, int(schema["size"])), schema)
        self._plain[label], made.plain = made.plain, label
        self._named[name] = made
        return made

    def _build_record(self, schema: Mapping[str, Any], namespace: str) -> AvroType:
        name, inner, label = self._register_name(schema, namespace)
        fields: list[tuple[str, AvroType, bytes | None]] = []
        shows: list[tuple[str, Any]] = []
        known: list[str] = []

        def write(value: Any, out: bytearray) -> None:
            if type(value) is not dict:
                raise SchemaMismatch(f"takes an object (a {name}), not {describe_json_type(value)}")
            seen = 0
            for field, made, default in fields:
                each = value.get(field, _MISSING)
                if each is not _MISSING:
                    seen += 1
                    try:
                        made.write(each, out)
                    except SchemaMismatch as misfit:
                        raise misfit.add_step(field) from None
                elif default is not None:
                    out += default
                else:
                    raise SchemaMismatch(f"lacks '{field}' of {name}")
            if seen != len(value):
                raise _build_unknown_field(value, known, name)

        def show(value: Any) -> Any:
            for field, shown in shows:
                value[field] = shown(value[field])
            return value

        made = self._named[name] = AvroType(name, label, write, show)
        plains = []
        for each in schema["fields"]:
            of = self.build_type(each["type"], inner)
            fields.append((each["name"], of, _encode_default(each, of)))
            known.append(each["name"])
            plains.append({"name": each["name"], "type": of.plain})
            if of.to_json is not None:
                shows.append((each["name"], of.to_json))
        self._plain[label] = {"type": "record", "name": label, "fields": plains}
        if not shows:
            made.to_json = None
        return made


def _encode_default(field: Mapping[str, Any], field_type: AvroType) -> bytes | None:
    if "default" not in field:
        return None
    out = bytearray()
    try:
        field_type.write_default(field["default"], out)
    except SchemaMismatch:
        return None  # Avro's own libraries differ in how they take it; ours asks for the value
    return bytes(out)


def _build_unknown_field(value: Mapping[str, Any], known: list[str], name: str) -> SchemaMismatch:
    names = set(known)
    odd = next(field for field in value if field not in names)
    return SchemaMismatch(f"has '{odd}', which {name} has not; {suggest_name(odd, known)}")
