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

from gateway.config.source.expression import closest
from gateway.formats.misfit import Misfit
from gateway.formats.plain import kind_of

from .logical import Logical, logical

Write = Callable[[Any, bytearray], None]
Show = Callable[[Any], Any]

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Type:
    """name:  as a union has it: of its branch, `{"string": ..}`.
    plain: what fastavro reads by.
    write: JSON as Avro; raises Misfit.
    raw:   the same of a default in a schema, where logical types are not shown as such.
    show:  JSON of what fastavro read; None where that is JSON already.
    """

    __slots__ = ("name", "plain", "raw", "show", "write")

    def __init__(self, name: str, plain: Any, write: Write, show: Show | None = None) -> None:
        self.name = name
        self.plain = plain
        self.write = self.raw = write
        self.show = show

    def as_logical(self, kind: Logical) -> Type:
        base = self.write

        def write(value: Any, out: bytearray) -> None:
            base(kind.read(value), out)

        made = Type(self.name, self.plain, write, kind.show)
        made.raw = self.raw
        return made

    def shown(self, value: Any) -> Any:
        return value if self.show is None else self.show(value)


def zigzag(number: int, out: bytearray) -> None:
    """A long, of 64 bits."""
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _wants(what: str, value: Any) -> Misfit:
    return Misfit(f"takes {what}, not {kind_of(value)}")


def _null(value: Any, out: bytearray) -> None:
    if value is not None:
        raise _wants("null", value)


def _boolean(value: Any, out: bytearray) -> None:
    if type(value) is not bool:
        raise _wants("a boolean", value)
    out.append(value)


def _integer(bits: int, name: str) -> Write:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def write(value: Any, out: bytearray) -> None:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise (
                _wants("a whole number", value)
                if type(value) is not float
                else Misfit(f"takes a whole number, not {value}")
            )
        if not low <= value <= high:
            raise Misfit(f"{value} is no {name}; use {low} to {high}")
        zigzag(value, out)

    return write


def _floating(form: struct.Struct) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is str:
            value = NOT_FINITE.get(value, value)
        if type(value) is not float and type(value) is not int:
            raise _wants("a number", value)
        try:
            out += form.pack(value)
        except OverflowError:
            raise Misfit(f"{value} is too large") from None

    return write


def finite(value: float) -> float | str:
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _string(value: Any, out: bytearray) -> None:
    if type(value) is not str:
        raise _wants("a string", value)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise Misfit("holds half of a surrogate pair, which UTF-8 cannot carry") from None
    zigzag(len(data), out)
    out += data


def _octets(value: Any) -> bytes:
    """Of text as Avro's JSON has bytes: one character of U+0000 to U+00FF each."""
    if type(value) is bytes:  # of a logical type
        return value
    if type(value) is not str:
        raise _wants("bytes, as text of U+0000 to U+00FF", value)
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise Misfit("takes bytes, as text of U+0000 to U+00FF, not other characters") from None


def _bytes(value: Any, out: bytearray) -> None:
    data = _octets(value)
    zigzag(len(data), out)
    out += data


def _latin(data: bytes) -> str:
    return data.decode("latin-1")


PRIMITIVES: Mapping[str, Type] = {
    "null": Type("null", "null", _null),
    "boolean": Type("boolean", "boolean", _boolean),
    "int": Type("int", "int", _integer(32, "int")),
    "long": Type("long", "long", _integer(64, "long")),
    "float": Type("float", "float", _floating(_FLOAT), finite),
    "double": Type("double", "double", _floating(_DOUBLE), finite),
    "bytes": Type("bytes", "bytes", _bytes, _latin),
    "string": Type("string", "string", _string),
}


def fixed(name: str, label: str, size: int) -> Type:
    def write(value: Any, out: bytearray) -> None:
        data = _octets(value)
        if len(data) != size:
            raise Misfit(f"takes {size} bytes, not {len(data)}")
        out += data

    return Type(name, {"type": "fixed", "name": label, "size": size}, write, _latin)


def enum(name: str, label: str, symbols: list[str]) -> Type:
    places = {symbol: place for place, symbol in enumerate(symbols)}

    def write(value: Any, out: bytearray) -> None:
        place = places.get(value) if type(value) is str else None
        if place is None:
            raise Misfit(f"{value!r:.60} is none of its symbols; {nearest(value, symbols)}")
        zigzag(place, out)

    return Type(name, {"type": "enum", "name": label, "symbols": symbols}, write)


def array(items: Type) -> Type:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not list:
            raise _wants("an array", value)
        if value:
            zigzag(len(value), out)
        for n, each in enumerate(value):
            try:
                items.write(each, out)
            except Misfit as misfit:
                raise misfit.inside(n) from None
        out.append(0)

    shown = items.show
    show = None if shown is None else lambda value: [shown(each) for each in value]
    return Type("array", {"type": "array", "items": items.plain}, write, show)


def map_(values: Type) -> Type:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not dict:
            raise _wants("an object", value)
        if value:
            zigzag(len(value), out)
        for key, each in value.items():
            _string(key, out)
            try:
                values.write(each, out)
            except Misfit as misfit:
                raise misfit.inside(key) from None
        out.append(0)

    shown = values.show
    show = None if shown is None else lambda value: {k: shown(v) for k, v in value.items()}
    return Type("map", {"type": "map", "values": values.plain}, write, show)


def nearest(word: object, known: list[str]) -> str:
    near = closest(str(word), known)
    return f"did you mean {near}?" if near else f"use one of {', '.join(known[:12])}"


def with_logical(made: Type, schema: Mapping[str, Any]) -> Type:
    kind = logical(schema, schema["type"])
    return made if kind is None else made.as_logical(kind)
