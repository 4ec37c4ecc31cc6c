"""Represent Avro's types: how JSON is written as Avro, and how what was read becomes JSON.

fastavro reads the bytes. It gets the schema without logical types and with other names, so that
nothing is lost in Python's types (a timestamp of the year 10,000, the digits of a decimal). Writing
is done here, because fastavro does not say where a value does not fit, and accepts some values for
types that they are not. Binary encoding: Avro specification 1.12.
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
"""Append a JSON value as Avro to some bytes; raises SchemaMismatch, and may leave a part of it."""
ConvertToJson = Callable[[Any], Any]
"""Convert what fastavro read to JSON; containers may be changed in place."""

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
NON_FINITE_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class AvroType:
    """One type of a schema, built once when the schema is compiled.

    Attributes:
        name: The name that a union uses for its branch, as in `{"string": ...}`.
        plain: The schema that fastavro reads it by.
        write: Appends a JSON value as Avro; raises SchemaMismatch.
        write_default: The same for a default in a schema, where logical types are not JSON text.
        to_json: Converts what fastavro read to JSON; None if that is JSON already.
    """

    __slots__ = ("name", "plain", "to_json", "write", "write_default")

    def __init__(
        self, name: str, plain: Any, write: WriteValue, to_json: ConvertToJson | None = None
    ) -> None:
        """Create a type whose defaults are written like its values."""
        self.name = name
        self.plain = plain
        self.write = self.write_default = write
        self.to_json = to_json

    def as_logical(self, logical_type: LogicalType) -> AvroType:
        """Return a logical type that is based on this type."""
        write_base = self.write

        def write(value: Any, out: bytearray) -> None:
            write_base(logical_type.from_json(value), out)

        avro_type = AvroType(self.name, self.plain, write, logical_type.to_json)
        avro_type.write_default = self.write_default
        return avro_type

    def convert(self, value: Any) -> Any:
        """Convert what fastavro read to JSON."""
        return value if self.to_json is None else self.to_json(value)


def write_long(number: int, out: bytearray) -> None:
    """Append a number of 64 bits as a zigzag varint."""
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
    """Create the writer of int or long. JSON's 1.0 is a whole number, too."""
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
    """Return a float as JSON, which has no NaN and no infinities: these become text."""
    # Not so for the infinities, whose difference is NaN, nor for NaN itself.
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
    """Return the bytes of text in which each character, U+0000 to U+00FF, stands for one byte."""
    if type(value) is bytes:  # comes from a logical type
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
    """Create a fixed of so many bytes; `label` is its name for fastavro."""

    def write(value: Any, out: bytearray) -> None:
        data = _encode_latin1(value)
        if len(data) != size:
            raise SchemaMismatch(f"takes {size} bytes, not {len(data)}")
        out += data

    return AvroType(name, {"type": "fixed", "name": label, "size": size}, write, _decode_latin1)


def create_enum(name: str, label: str, symbols: list[str]) -> AvroType:
    """Create an enum; `label` is its name for fastavro."""
    indexes = {symbol: index for index, symbol in enumerate(symbols)}

    def write(value: Any, out: bytearray) -> None:
        index = indexes.get(value) if type(value) is str else None
        if index is None:
            raise SchemaMismatch(
                f"{value!r:.60} is none of its symbols; {suggest_name(value, symbols)}"
            )
        write_long(index, out)

    return AvroType(name, {"type": "enum", "name": label, "symbols": symbols}, write)


def create_array(items: AvroType) -> AvroType:
    """Create an array. It is written as one block and the empty one that ends it."""

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not list:
            raise _build_mismatch("an array", value)
        if value:
            write_long(len(value), out)
        for index, item in enumerate(value):
            try:
                items.write(item, out)
            except SchemaMismatch as mismatch:
                raise mismatch.add_step(index) from None
        out.append(0)

    convert = items.to_json
    to_json = None if convert is None else lambda value: [convert(item) for item in value]
    return AvroType("array", {"type": "array", "items": items.plain}, write, to_json)


def create_map(values: AvroType) -> AvroType:
    """Create a map. It is written as one block and the empty one that ends it."""

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not dict:
            raise _build_mismatch("an object", value)
        if value:
            write_long(len(value), out)
        for key, item in value.items():
            _write_string(key, out)
            try:
                values.write(item, out)
            except SchemaMismatch as mismatch:
                raise mismatch.add_step(key) from None
        out.append(0)

    convert = values.to_json
    to_json = None if convert is None else lambda value: {k: convert(v) for k, v in value.items()}
    return AvroType("map", {"type": "map", "values": values.plain}, write, to_json)


def suggest_name(name: object, known: list[str]) -> str:
    """Return the hint of an error message about an unknown name."""
    closest = find_closest(str(name), known)
    return f"did you mean {closest}?" if closest else f"use one of {', '.join(known[:12])}"


def apply_logical_type(base_type: AvroType, schema: Mapping[str, Any]) -> AvroType:
    """Return the logical type of a schema, or its base type if it has none that is known."""
    logical_type = create_logical_type(schema, schema["type"])
    return base_type if logical_type is None else base_type.as_logical(logical_type)
