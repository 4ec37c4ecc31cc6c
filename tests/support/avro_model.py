"""What a JSON value is in Avro, by the specification alone: the oracle of the codec's properties.

It reads the schema anew for each value, keeps nothing, and returns what fastavro's writer takes.
"""

from __future__ import annotations

import contextlib
import struct
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
BITS = {"int": 32, "long": 64}
NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class DoesNotFit(Exception):
    """The value is not of the schema."""


class EndlessDefault(Exception):
    """A default contains itself."""


def require(fits: bool) -> None:
    if not fits:
        raise DoesNotFit


class AvroModel:
    """The values of one schema whose named types have no namespace."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.named: dict[str, Any] = {}
        self.open_defaults: list[tuple[str, str]] = []  # record and field
        self.collect(schema)

    def collect(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self.collect(branch)
        elif isinstance(schema, dict):
            if "name" in schema:
                self.named[schema["name"]] = schema
            for field in schema.get("fields", ()):
                self.collect(field["type"])
            self.collect(schema.get("items", schema.get("values")))

    def check_defaults(self) -> None:
        """Raise EndlessDefault if a default contains itself."""
        for schema in self.named.values():
            for field in schema.get("fields", ()):
                if "default" in field:
                    with contextlib.suppress(DoesNotFit):
                        self.default(schema, field)

    def encode(self, value: Any) -> Any:
        return self.convert(self.schema, value, is_default=False)

    def default(self, record: Any, field: Any) -> Any:
        place = (record["name"], field["name"])
        if place in self.open_defaults:
            raise EndlessDefault
        self.open_defaults.append(place)
        try:
            return self.convert(field["type"], field["default"], is_default=True)
        finally:
            self.open_defaults.pop()

    def convert(self, schema: Any, value: Any, is_default: bool) -> Any:
        if isinstance(schema, list):
            return self.convert_union(schema, value, is_default)
        if isinstance(schema, str):
            return (
                convert_primitive(schema, value)
                if schema in PRIMITIVES
                else self.convert(self.named[schema], value, is_default)
            )
        if schema["type"] == "record":
            return self.convert_record(schema, value, is_default)
        if schema["type"] == "array":
            require(isinstance(value, list))
            return [self.convert(schema["items"], item, is_default) for item in value]
        if schema["type"] == "map":
            require(isinstance(value, dict))
            for key in value:
                convert_primitive("string", key)
            return {k: self.convert(schema["values"], v, is_default) for k, v in value.items()}
        if schema["type"] == "enum":
            require(isinstance(value, str) and value in schema["symbols"])
            return value
        if "logicalType" in schema and not is_default:
            value = convert_logical(schema, value)
        if schema["type"] == "fixed":
            data = convert_primitive("bytes", value)
            require(len(data) == schema["size"])
            return data
        return convert_primitive(schema["type"], value)

    def convert_union(self, branches: list[Any], value: Any, is_default: bool) -> tuple[str, Any]:
        by_name = {name_of(branch): branch for branch in branches}
        names = list(by_name)
        if type(value) is str and "string" in by_name:
            names = [name for name in names if name not in ("float", "double")]
        for name in names:
            if not is_default and type(value) is dict and list(value) == [name]:
                try:
                    return name, self.convert(by_name[name], value[name], is_default)
                except DoesNotFit:
                    pass
        for name in names:
            try:
                return name, self.convert(by_name[name], value, is_default)
            except DoesNotFit:
                pass
        raise DoesNotFit

    def convert_record(self, record: Any, value: Any, is_default: bool) -> dict[str, Any]:
        require(isinstance(value, dict))
        fields = {field["name"]: field for field in record["fields"]}
        require(value.keys() <= fields.keys())
        for name, field in fields.items():
            require(name in value or "default" in field)
        given = {n: self.convert(fields[n]["type"], value[n], is_default) for n in value}
        return {
            name: given[name] if name in given else self.default(record, field)
            for name, field in fields.items()
        }


def convert_primitive(kind: str, value: Any) -> Any:
    if kind == "null":
        require(value is None)
    elif kind == "boolean":
        require(type(value) is bool)
    elif kind in BITS:
        require(type(value) is int or (type(value) is float and value.is_integer()))
        value, half = int(value), 1 << BITS[kind] - 1
        require(-half <= value < half)
    elif kind in ("float", "double"):
        value = NON_FINITE.get(value, value) if type(value) is str else value
        require(type(value) in (int, float))
        try:
            value = float(value)
            value = struct.unpack("<f", struct.pack("<f", value))[0] if kind == "float" else value
        except OverflowError:
            raise DoesNotFit from None
    elif kind == "bytes":
        require(type(value) in (str, bytes))
        try:
            value = value.encode("latin-1") if type(value) is str else value
        except UnicodeEncodeError:
            raise DoesNotFit from None
    else:
        require(type(value) is str and not any("\ud800" <= char < "\ue000" for char in value))
    return value


def convert_logical(schema: Any, value: Any) -> Any:
    """Return a value of the base type."""
    kind = schema["logicalType"]
    try:
        if kind == "date":
            epoch = date(1970, 1, 1)
            return (date.fromisoformat(value) - epoch).days if type(value) is str else value
        if kind == "uuid":
            require(type(value) is str)
            return UUID(value).bytes if schema["type"] == "fixed" else str(UUID(value))
        require(type(value) in (str, int, float))
        if type(value) is int:
            require(abs(value) < 10 ** schema["precision"])
        sign, digits, exponent = Decimal(str(value)).as_tuple()
    except (ValueError, InvalidOperation):
        raise DoesNotFit from None
    require(isinstance(exponent, int))
    number, shift = int("".join(map(str, digits))), int(exponent) + schema["scale"]
    if number:
        require(abs(shift) <= 1000)  # more than a decimal of these tests may have
        require(shift >= 0 or number % 10**-shift == 0)
        number = number * 10**shift if shift >= 0 else number // 10**-shift
    require(number < 10 ** schema["precision"])
    number = -number if sign else number
    size = next(n for n in range(1, 99) if -(1 << 8 * n - 1) <= number < 1 << 8 * n - 1)
    if schema["type"] == "fixed":
        require(size <= schema["size"])
        size = schema["size"]
    return number.to_bytes(size, "big", signed=True)


def name_of(schema: Any) -> str:
    """Return the name of a branch of a union."""
    return schema if isinstance(schema, str) else schema.get("name", schema["type"])


def strip_branches(value: Any) -> Any:
    """Return a value of the model as fastavro's reader returns it, without branches of unions."""
    if isinstance(value, tuple):
        return strip_branches(value[1])
    if isinstance(value, list):
        return [strip_branches(item) for item in value]
    if isinstance(value, dict):
        return {key: strip_branches(item) for key, item in value.items()}
    return value


def strip_logical_types(schema: Any) -> Any:
    """Return a schema by which fastavro reads and writes the base types."""
    if isinstance(schema, list):
        return [strip_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        kept = {key: strip_logical_types(part) for key, part in schema.items()}
        return {k: part for k, part in kept.items() if k not in ("logicalType", "default")}
    return schema
