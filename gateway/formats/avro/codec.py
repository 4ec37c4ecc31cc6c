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
from gateway.formats.misfit import Misfit
from gateway.formats.plain import kind_of

from .size import Sizes
from .types import PRIMITIVES, Type, array, enum, fixed, map_, nearest, with_logical
from .union import mark_branches, union

_ROOM = "value"
_MISSING = object()


class Avro:
    """One schema. used: those it refers to, the innermost first. Raises FormatError for one that
    is none."""

    def __init__(self, text: str, used: Mapping[str, str]) -> None:
        try:
            made = _Made()
            for each in used.values():
                made.type(orjson.loads(each), "")
            self._type = made.type(orjson.loads(text), "")
            plain = made.inlined(self._type.plain)
            self._sizes = Sizes(plain)
            field = {"name": _ROOM, "type": mark_branches(plain)}
            # in a record, or fastavro would parse a union anew for each value
            self._plain = parse_schema({"type": "record", "name": "Framed", "fields": [field]})
            self._tells = made.tells
        except (Exception, RecursionError) as exc:  # whatever is wrong with it
            raise FormatError(f"the Avro schema cannot be used: {exc}; correct it") from None

    def encode(self, value: Any) -> bytes:
        """Raises FormatError."""
        out = bytearray()
        try:
            self._type.write(value, out)
        except Misfit as misfit:
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
            read: Any = schemaless_reader(source, self._plain, return_named_type=self._tells)
            shown = self._type.shown(read[_ROOM])
        except (Exception, RecursionError) as exc:  # of fastavro: EOFError, IndexError, and more
            why = str(exc) or type(exc).__name__
            raise FormatError(f"the bytes are not of their Avro schema: {why}") from None
        if source.tell() != len(data):
            left = len(data) - source.tell()
            raise FormatError(f"the bytes are not of their Avro schema: {left} too many")
        return shown

    def text(self, data: bytes) -> bytes:
        """As JSON text. Raises FormatError."""
        try:
            return orjson.dumps(self.decode(data))
        except orjson.JSONEncodeError as exc:
            raise FormatError(f"the value cannot be written as JSON: {exc}") from None


class _Made:
    """Types that were made of one schema, by their full names.

    tells: is there a union of which fastavro must tell the branch?
    """

    def __init__(self) -> None:
        self.tells = False
        self.defined: set[str] = set()  # labels whose definition is in the plain schema already
        self._named: dict[str, Type] = {}
        self._labels: dict[str, str] = {}
        self._plain: dict[str, Any] = {}

    def type(self, schema: Any, space: str) -> Type:
        """space: the namespace around it. Raises ValueError and whatever a bad schema leads to."""
        if isinstance(schema, list):
            made = union([self.type(each, space) for each in schema])
            self.tells = self.tells or len(schema) > 1
            return made
        if isinstance(schema, str):
            return PRIMITIVES.get(schema) or self._known(schema, space)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, space)
        if kind in ("enum", "fixed"):
            return self._flat(kind, schema, space)
        if kind == "array":
            return array(self.type(schema["items"], space))
        if kind == "map":
            return map_(self.type(schema["values"], space))
        if isinstance(kind, str) and kind in PRIMITIVES:
            return with_logical(PRIMITIVES[kind], schema)
        return self.type(kind, space)

    def inlined(self, plain: Any) -> Any:
        """With each named type defined where it is first used, and nowhere else."""
        if isinstance(plain, list):
            return [self.inlined(each) for each in plain]
        if isinstance(plain, str):
            if plain not in self._plain or plain in self.defined:
                return plain
            self.defined.add(plain)
            return self.inlined(self._plain[plain])
        if plain["type"] == "array":
            return {**plain, "items": self.inlined(plain["items"])}
        if plain["type"] == "map":
            return {**plain, "values": self.inlined(plain["values"])}
        if plain["type"] == "record":
            fields = [{**each, "type": self.inlined(each["type"])} for each in plain["fields"]]
            return {**plain, "fields": fields}
        return plain

    def _known(self, name: str, space: str) -> Type:
        full = f"{space}.{name}" if space and "." not in name else name
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise ValueError(f"unknown type '{name}'")
        return found

    def _name(self, schema: Mapping[str, Any], space: str) -> tuple[str, str, str]:
        """Full name, namespace for what is inside, and the label that fastavro knows it by."""
        name = str(schema["name"])
        if "." not in name and (own := schema.get("namespace", space)):
            name = f"{own}.{name}"
        label = f"t{len(self._labels)}"
        if name in self._named:
            raise ValueError(f"type '{name}' is defined twice")
        self._labels[name] = label
        return name, name.rpartition(".")[0], label

    def _flat(self, kind: str, schema: Mapping[str, Any], space: str) -> Type:
        name, _, label = self._name(schema, space)
        if kind == "enum":
            made = enum(name, label, list(schema["symbols"]))
        else:
            made = with_logical(fixed(name, label, int(schema["size"])), schema)
        self._plain[label], made.plain = made.plain, label
        self._named[name] = made
        return made

    def _record(self, schema: Mapping[str, Any], space: str) -> Type:
        name, inner, label = self._name(schema, space)
        fields: list[tuple[str, Type, bytes | None]] = []
        shows: list[tuple[str, Any]] = []
        known: list[str] = []

        def write(value: Any, out: bytearray) -> None:
            if type(value) is not dict:
                raise Misfit(f"takes an object (a {name}), not {kind_of(value)}")
            seen = 0
            for field, made, default in fields:
                each = value.get(field, _MISSING)
                if each is not _MISSING:
                    seen += 1
                    try:
                        made.write(each, out)
                    except Misfit as misfit:
                        raise misfit.inside(field) from None
                elif default is not None:
                    out += default
                else:
                    raise Misfit(f"lacks '{field}' of {name}")
            if seen != len(value):
                raise _unknown(value, known, name)

        def show(value: Any) -> Any:
            for field, shown in shows:
                value[field] = shown(value[field])
            return value

        made = self._named[name] = Type(name, label, write, show)
        plains = []
        for each in schema["fields"]:
            of = self.type(each["type"], inner)
            fields.append((each["name"], of, _default(each, of)))
            known.append(each["name"])
            plains.append({"name": each["name"], "type": of.plain})
            if of.show is not None:
                shows.append((each["name"], of.show))
        self._plain[label] = {"type": "record", "name": label, "fields": plains}
        if not shows:
            made.show = None
        return made


def _default(field: Mapping[str, Any], of: Type) -> bytes | None:
    if "default" not in field:
        return None
    out = bytearray()
    try:
        of.raw(field["default"], out)
    except Misfit:
        return None  # Avro's own libraries differ in how they take it; ours asks for the value
    return bytes(out)


def _unknown(value: Mapping[str, Any], known: list[str], name: str) -> Misfit:
    names = set(known)
    odd = next(field for field in value if field not in names)
    return Misfit(f"has '{odd}', which {name} has not; {nearest(odd, known)}")
