"""Represent Avro's types: convert checked JSON for fastavro, and what it read to JSON.

fastavro reads and writes the bytes. It gets the schema without logical types and with other names,
so that nothing is lost in Python's types (a timestamp of the year 10,000, the digits of a decimal).

Values are checked here before they are written. fastavro's writer (1.13, `strict` or not) writes
1.5 and true as the long 1, 2**40 as an int, anything as null or boolean, 1e300 as an infinite
float, and a string as an array of strings; its errors name no index of an array. Its validation
refuses most of that, but names no index either, and takes `{"string": "x"}` for no branch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from gateway.config.types.substitution import find_closest
from gateway.formats.budget import Budget
from gateway.formats.plain import describe_json_type
from gateway.formats.serialization import SchemaMismatch

from .logical import LogicalType, create_logical_type

ConvertToJson = Callable[[Any], Any]
"""Convert what fastavro read to JSON; containers may be changed in place."""
ConvertFromJson = Callable[[Any], Any]
"""Convert a JSON value to what fastavro writes; raises SchemaMismatch, and changes nothing."""

_MAX_SHOWN_BITS = 1024
_FLOAT = struct.Struct("<f")
NON_FINITE_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class AvroType:
    """One type of a schema, built once when the schema is compiled.

    Attributes:
        name: The name that a union uses for its branch, as in `{"string": ...}`.
        plain: The schema that fastavro reads and writes it by.
        default_from_json: For defaults of a schema, which have a logical type as its base type, and
            a union without the name of its branch.
        to_json: None if the values that fastavro reads are JSON already.
    """

    __slots__ = ("default_from_json", "from_json", "name", "plain", "to_json")

    def __init__(
        self,
        name: str,
        plain: Any,
        from_json: ConvertFromJson,
        to_json: ConvertToJson | None = None,
        default_from_json: ConvertFromJson | None = None,
    ) -> None:
        self.name = name
        self.plain = plain
        self.from_json = from_json
        self.default_from_json = default_from_json or from_json
        self.to_json = to_json

    def as_logical(self, logical_type: LogicalType) -> AvroType:
        base_from_json, logical_from_json = self.from_json, logical_type.from_json
        return AvroType(
            self.name,
            self.plain,
            lambda value: base_from_json(logical_from_json(value)),
            logical_type.to_json,
            self.default_from_json,
        )

    def convert(self, value: Any) -> Any:
        return value if self.to_json is None else self.to_json(value)


def _build_mismatch(expected: str, value: Any) -> SchemaMismatch:
    return SchemaMismatch(f"takes {expected}, not {describe_json_type(value)}")


def _show_number(value: float) -> str:
    """Return a number for a message. Python refuses to show an integer of too many digits."""
    if type(value) is int and value.bit_length() > _MAX_SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    return str(value)


def _check_null(value: Any) -> None:
    if value is not None:
        raise _build_mismatch("null", value)


def _check_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _build_mismatch("a boolean", value)
    return value


def _create_integer_check(bits: int, name: str) -> ConvertFromJson:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def check(value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        elif type(value) is Decimal:
            value = int(value) if value == int(value) else float(value)
        if type(value) is not int:
            raise (
                _build_mismatch("a whole number", value)
                if type(value) is not float
                else SchemaMismatch(f"takes a whole number, not {value}")
            )
        if not low <= value <= high:
            raise SchemaMismatch(f"{_show_number(value)} is no {name}; use {low} to {high}")
        return value

    return check


def _check_double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is str:
        value = NON_FINITE_FLOATS.get(value, value)
    if type(value) not in (float, int, Decimal):
        raise _build_mismatch("a number", value)
    try:
        return float(value)
    except OverflowError:
        raise SchemaMismatch(f"{_show_number(value)} is too large") from None


def _check_float(value: Any) -> float:
    number = _check_double(value)
    try:
        _FLOAT.pack(number)  # fastavro would write infinity
    except OverflowError:
        raise SchemaMismatch(f"{_show_number(value)} is too large") from None
    return number


def float_to_json(value: float) -> float | str:
    # Not so for the infinities, whose difference is NaN, nor for NaN itself.
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _check_string(value: Any) -> str:
    if type(value) is not str:
        raise _build_mismatch("a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SchemaMismatch("holds half of a surrogate pair, which UTF-8 cannot carry") from None
    return value


def _encode_latin1(value: Any) -> bytes:
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


def _decode_latin1(data: bytes) -> str:
    return data.decode("latin-1")


PRIMITIVES: Mapping[str, AvroType] = {
    "null": AvroType("null", "null", _check_null),
    "boolean": AvroType("boolean", "boolean", _check_boolean),
    "int": AvroType("int", "int", _create_integer_check(32, "int")),
    "long": AvroType("long", "long", _create_integer_check(64, "long")),
    "float": AvroType("float", "float", _check_float, float_to_json),
    "double": AvroType("double", "double", _check_double, float_to_json),
    "bytes": AvroType("bytes", "bytes", _encode_latin1, _decode_latin1),
    "string": AvroType("string", "string", _check_string),
}


def create_fixed(name: str, label: str, size: int) -> AvroType:
    """Create a fixed of so many bytes; `label` is its name for fastavro."""

    def from_json(value: Any) -> bytes:
        data = _encode_latin1(value)
        if len(data) != size:
            raise SchemaMismatch(f"takes {size} bytes, not {len(data)}")
        return data

    plain = {"type": "fixed", "name": label, "size": size}
    return AvroType(name, plain, from_json, _decode_latin1)


class _Symbols(list[str]):
    """The symbols of an enum. fastavro calls `index` for each value that it writes."""

    def __init__(self, symbols: Iterable[str]) -> None:
        super().__init__(symbols)
        self._indexes = {symbol: index for index, symbol in enumerate(self)}

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._indexes

    def index(self, symbol: str, *_: Any) -> int:
        return self._indexes[symbol]


def create_enum(name: str, label: str, symbols: Iterable[str]) -> AvroType:
    known = _Symbols(symbols)

    def check(value: Any) -> str:
        if type(value) is not str:
            raise _build_mismatch("one of its symbols", value)
        if value not in known:
            raise SchemaMismatch(
                lambda: f"{value!r:.60} is none of its symbols; {suggest_name(value, known)}"
            )
        return value

    return AvroType(name, {"type": "enum", "name": label, "symbols": known}, check)


def create_array(items: AvroType) -> AvroType:
    convert = items.to_json
    return AvroType(
        "array",
        {"type": "array", "items": items.plain},
        _create_array_converter(items.from_json),
        None if convert is None else lambda value: [convert(item) for item in value],
        _create_array_converter(items.default_from_json),
    )


def _create_array_converter(item_from_json: ConvertFromJson) -> ConvertFromJson:
    def from_json(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _build_mismatch("an array", value)
        converted: list[Any] = []
        try:
            for item in value:
                converted.append(item_from_json(item))
        except SchemaMismatch as mismatch:
            raise mismatch.add_step(len(converted)) from None
        return converted

    return from_json


def create_map(values: AvroType) -> AvroType:
    convert = values.to_json
    return AvroType(
        "map",
        {"type": "map", "values": values.plain},
        _create_map_converter(values.from_json),
        None if convert is None else lambda value: {k: convert(v) for k, v in value.items()},
        _create_map_converter(values.default_from_json),
    )


def _create_map_converter(value_from_json: ConvertFromJson) -> ConvertFromJson:
    def from_json(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _build_mismatch("an object", value)
        converted: dict[str, Any] = {}
        for key, item in value.items():
            _check_string(key)
            try:
                converted[key] = value_from_json(item)
            except SchemaMismatch as mismatch:
                raise mismatch.add_step(key) from None
        return converted

    return from_json


def suggest_name(name: str, known: list[str]) -> str:
    closest = find_closest(name, known)
    return f"did you mean {closest}?" if closest else f"use one of {', '.join(known[:12])}"


def apply_logical_type(base_type: AvroType, schema: Mapping[str, Any], budget: Budget) -> AvroType:
    logical_type = create_logical_type(schema, schema["type"], budget)
    return base_type if logical_type is None else base_type.as_logical(logical_type)
