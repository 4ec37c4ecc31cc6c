"""Types of Avro, made once of a schema: to write JSON as Avro, and to show what was read.

Reading is fastavro's; it is given the schema with names of our own and without logical types,
so that nothing is lost in Python's (a timestamp of the year 10,000, digits of a decimal).
Writing is here: fastavro says of a value only that it does not fit, not where, and takes some
for what they are not. Binary encoding: Avro specification 1.12.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from gateway.config.source.expression import find_closest
from gateway.formats.plain import describe_json_type
from gateway.formats.schema_mismatch import SchemaMismatch

from .logical import LogicalType, create_logical_type

WriteValue = Callable[[Any, bytearray], None]
ConvertToJson = Callable[[Any], Any]

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
NON_FINITE_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class AvroType:
    """name:  as a union has it: of its branch, `{"string": ..}`.
    plain: what fastavro reads by.
    write: JSON as Avro; raises Misfit.
    raw:   the same of a default in a schema, where logical types are not shown as such.
    show:  JSON of what fastavro read; None where that is JSON already.
    """

    __slots__ = ("name", "plain", "to_json", "write", "write_default")

    def __init__(
        self, name: str, plain: Any, write: WriteValue, show: ConvertToJson | None = None
    ) -> None:
        self.name = name
        self.plain = plain
        self.write = self.write_default = write
        self.to_json = show

    def as_logical(self, kind: LogicalType) -> AvroType:
        base = self.write

        def write(value: Any, out: bytearray) -> None:
            base(kind.from_json(value), out)

        made = AvroType(self.name, self.plain, write, kind.to_json)
        made.write_default = self.write_default
        return made

    def convert(self, value: Any) -> Any:
        return value if self.to_json is None else self.to_json(value)


def write_long(number: int, out: bytearray) -> None:
    """A long, of 64 bits."""
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _build_mismatch(expected: str, value: Any) -> SchemaMismatch:
    return SchemaMismatch(f"takes {expected}, not {describe_json_type(value)}")


def _write_null(value: Any, out: bytearray) -> None:
    if value is not None:
        raise _build_mismatch("null", value)


def _write_boolean(value: Any, out: bytearray) -> None:
    if type(value) is not bool:
        raise _build_mismatch("a boolean", value)
    out.append(value)


def _create_integer_writer(bits: int, name: str) -> WriteValue:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def write(value: Any, out: bytearray) -> None:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise (
                _build_mismatch("a whole number", value)
                if type(value) is not float
                else SchemaMismatch(f"takes a whole number, not {value}")
            )
        if not low <= value <= high:
            raise SchemaMismatch(f"{value} is no {name}; use {low} to {high}")
        write_long(value, out)

    return write


def _create_float_writer(packer: struct.Struct) -> WriteValue:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is str:
            value = NON_FINITE_FLOATS.get(value, value)
        if type(value) is not float and type(value) is not int:
            raise _build_mismatch("a number", value)
        try:
            out += packer.pack(value)
        except OverflowError:
            raise SchemaMismatch(f"{value} is too large") from None

    return write


def float_to_json(value: float) -> float | str:
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _write_string(value: Any, out: bytearray) -> None:
    if type(value) is not str:
        raise _build_mismatch("a string", value)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise SchemaMismatch("holds half of a surrogate pair, which UTF-8 cannot carry") from None
    write_long(len(data), out)
    out += data


def _encode_latin1(value: Any) -> bytes:
    """Of text as Avro's JSON has bytes: one character of U+0000 to U+00FF each."""
    if type(value) is bytes:  # of a logical type
        return value
    if type(value) is not str:
        raise _build_mismatch("bytes, as text of U+0000 to U+00FF", value)
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise SchemaMismatch(
            "takes bytes, as text of U+0000 to U+00FF, not other characters"
        ) from None


def _write_bytes(value: Any, out: bytearray) -> None:
    data = _encode_latin1(value)
    write_long(len(data), out)
    out += data


def _decode_latin1(data: bytes) -> str:
    return data.decode("latin-1")


PRIMITIVES: Mapping[str, AvroType] = {
    "null": AvroType("null", "null", _write_null),
    "boolean": AvroType("boolean", "boolean", _write_boolean),
    "int": AvroType("int", "int", _create_integer_writer(32, "int")),
    "long": AvroType("long", "long", _create_integer_writer(64, "long")),
    "float": AvroType("float", "float", _create_float_writer(_FLOAT), float_to_json),
    "double": AvroType("double", "double", _create_float_writer(_DOUBLE), float_to_json),
    "bytes": AvroType("bytes", "bytes", _write_bytes, _decode_latin1),
    "string": AvroType("string", "string", _write_string),
}


def create_fixed(name: str, label: str, size: int) -> AvroType:
    def write(value: Any, out: bytearray) -> None:
        data = _encode_latin1(value)
        if len(data) != size:
            raise SchemaMismatch(f"takes {size} bytes, not {len(data)}")
        out += data

    return AvroType(name, {"type": "fixed", "name": label, "size": size}, write, _decode_latin1)


def create_enum(name: str, label: str, symbols: list[str]) -> AvroType:
    places = {symbol: place for place, symbol in enumerate(symbols)}

    def write(value: Any, out: bytearray) -> None:
        place = places.get(value) if type(value) is str else None
        if place is None:
            raise SchemaMismatch(
                f"{value!r:.60} is none of its symbols; {suggest_name(value, symbols)}"
            )
        write_long(place, out)

    return AvroType(name, {"type": "enum", "name": label, "symbols": symbols}, write)


def create_array(items: AvroType) -> AvroType:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not list:
            raise _build_mismatch("an array", value)
        if value:
            write_long(len(value), out)
        for n, each in enumerate(value):
            try:
                items.write(each, out)
            except SchemaMismatch as misfit:
                raise misfit.add_step(n) from None
        out.append(0)

    shown = items.to_json
    show = None if shown is None else lambda value: [shown(each) for each in value]
    return AvroType("array", {"type": "array", "items": items.plain}, write, show)


def create_map(values: AvroType) -> AvroType:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not dict:
            raise _build_mismatch("an object", value)
        if value:
            write_long(len(value), out)
        for key, each in value.items():
            _write_string(key, out)
            try:
                values.write(each, out)
            except SchemaMismatch as misfit:
                raise misfit.add_step(key) from None
        out.append(0)

    shown = values.to_json
    show = None if shown is None else lambda value: {k: shown(v) for k, v in value.items()}
    return AvroType("map", {"type": "map", "values": values.plain}, write, show)


def suggest_name(name: object, known: list[str]) -> str:
    near = find_closest(str(name), known)
    return f"did you mean {near}?" if near else f"use one of {', '.join(known[:12])}"


def apply_logical_type(base_type: AvroType, schema: Mapping[str, Any]) -> AvroType:
    kind = create_logical_type(schema, schema["type"])
    return base_type if kind is None else base_type.as_logical(kind)
