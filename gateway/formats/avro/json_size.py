"""Limit the size and the depth of the JSON that the bytes of an Avro value become.

A null takes no bytes, and so does a record of nulls. An array of them is as long as its count says:
5 bytes can become 100 MB of JSON. So the JSON of a value may have FREE_JSON_BYTES, and in addition
JSON_BYTES_PER_BYTE for each byte of Avro; beyond LARGE_JSON_BYTES, 4 times the bytes of Avro.

Most schemas cannot exceed that, which is computed once per schema. The *surplus* of a type is by
how many bytes its JSON may at most exceed JSON_BYTES_PER_BYTE times its Avro; the elements of an
array or map must not have a positive one. Values of other schemas are walked through before they
are read, which takes 0.3 us for each value in them.

Values of recursive types, which may be deep, are walked through as well: fastavro's reader recurses
without checking its stack, and some ten thousand levels end the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from gateway.formats.budget import (
    FREE_JSON_BYTES,
    JSON_BYTES_PER_BYTE,
    LARGE_JSON_BYTES,
    create_json_budget,
)

# Each level takes at least one byte, so a value of this size is not too deep for fastavro's reader.
MAX_SHALLOW_BYTES = 1000

# Values of more bytes are walked through with any schema, as they may become LARGE_JSON_BYTES.
MAX_BOUNDED_BYTES = (LARGE_JSON_BYTES - FREE_JSON_BYTES) // JSON_BYTES_PER_BYTE

_PUNCTUATION_BYTES = 4  # quotes, colon and comma of a member
_MAX_JSON_BYTES = {"null": 5, "boolean": 6, "int": 12, "long": 21, "float": 26, "double": 26}
_MIN_AVRO_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8}
_ESCAPED_CHAR_BYTES = 6  # bytes of JSON for a byte of text, at most: \u0000
_MAX_ROUNDS = 8  # in which the surpluses of recursive types must settle


class JsonSizeLimit:
    """The limits for values of one schema. Each `AvroCodec` has one.

    Args:
        plain: The schema as fastavro gets it, in which each named type is defined once.
        full_names: The name that a union shows for a named type, by its name in `plain`.
        max_scale: The largest scale of the schema's decimals. All bytes and fixed count as so many
            digits, because `plain` does not tell which of them are decimals.

    Raises:
        ValueError: A type has no finite value. fastavro's reader would end the process.
    """

    def __init__(
        self, plain: Any, full_names: Mapping[str, str] | None = None, max_scale: int = 0
    ) -> None:
        self._full_names = full_names or {}
        self._max_text_bytes = _PUNCTUATION_BYTES + max_scale
        self._named: dict[str, Mapping[str, Any]] = {}
        self._is_recursive = False
        self._collect(plain, frozenset())
        # What a type adds by containing itself is unknown at first: `_has_bounded_surplus` finds
        # it.
        self._surplus: dict[str, float] = dict.fromkeys(self._named, -inf)
        self._plain = plain
        has_bounded_surplus = self._has_bounded_surplus()
        for name, surplus in self._surplus.items():
            if not surplus > -inf:  # also NaN: infinitely deep, and of any length in each level
                raise ValueError(f"{self._full_names.get(name, name)} contains itself without end")
        self.is_bounded = has_bounded_surplus and self._measure_surplus(plain) <= FREE_JSON_BYTES

    def check(self, data: bytes) -> None:
        """Check a value before it is read.

        Raises:
            FormatError: It would become too much JSON.
            RecursionError: It is too deep.
            ValueError, IndexError: It is malformed.
        """
        max_bytes = MAX_SHALLOW_BYTES if self._is_recursive else MAX_BOUNDED_BYTES
        if not self.is_bounded or len(data) > max_bytes:
            walker = _SizeWalker(self._named, self._full_names, self._max_text_bytes, data)
            walker.walk_value(self._plain, 0)

    def _collect(self, plain: Any, enclosing: frozenset[str]) -> None:
        """Collect the named types, and note whether one contains itself."""
        for branch in plain if isinstance(plain, list) else (plain,):
            if isinstance(branch, dict):
                names = enclosing
                if "name" in branch:
                    self._named[branch["name"]] = branch
                    names |= {branch["name"]}
                for inner in _list_inner_types(branch):
                    self._collect(inner, names)
            elif branch in enclosing:
                self._is_recursive = True

    def _has_bounded_surplus(self) -> bool:
        """Compute all surpluses; False if one grows with the depth of a recursive value."""
        # A type may use one that is computed later, so repeat until nothing changes.
        for _ in range(_MAX_ROUNDS):
            before = dict(self._surplus)
            for name, plain in self._named.items():
                self._surplus[name] = self._measure_named(plain)
            if before == self._surplus:
                return True
        return False

    def _measure_named(self, plain: Mapping[str, Any]) -> float:
        if plain["type"] == "enum":
            return (
                max(map(len, plain["symbols"]), default=0)
                + _PUNCTUATION_BYTES
                - JSON_BYTES_PER_BYTE
            )
        if plain["type"] == "fixed":
            return self._max_text_bytes + (_ESCAPED_CHAR_BYTES - JSON_BYTES_PER_BYTE) * int(
                plain["size"]
            )
        fields = plain["fields"]
        return _PUNCTUATION_BYTES + sum(
            len(f["name"]) + _PUNCTUATION_BYTES + self._measure_surplus(f["type"]) for f in fields
        )

    def _measure_surplus(self, plain: Any) -> float:
        if isinstance(plain, list):
            return (
                max((self._measure_branch(branch) for branch in plain), default=0)
                - JSON_BYTES_PER_BYTE
            )
        if isinstance(plain, str):
            if plain in self._surplus:
                return self._surplus[plain]
            # By default, a string or bytes: the length takes a byte of Avro. Each byte behind it is
            # at most `_ESCAPED_CHAR_BYTES` of JSON, so that a longer text has a smaller surplus.
            return _MAX_JSON_BYTES.get(
                plain, self._max_text_bytes
            ) - JSON_BYTES_PER_BYTE * _MIN_AVRO_BYTES.get(plain, 1)
        if plain["type"] in ("array", "map"):
            (inner,) = _list_inner_types(plain)
            surplus = self._measure_surplus(inner)
            if plain["type"] == "map":
                surplus += _PUNCTUATION_BYTES - JSON_BYTES_PER_BYTE
            # There may be any number of elements, so their surpluses must not add up.
            return _PUNCTUATION_BYTES - JSON_BYTES_PER_BYTE if surplus <= 0 else inf
        return self._surplus[plain["name"]]

    def _measure_branch(self, plain: Any) -> float:
        name = _get_branch_name(plain, self._full_names)
        return len(name) + _PUNCTUATION_BYTES + self._measure_surplus(plain)


class _SizeWalker:
    """A walk through one value, which adds up its JSON without reading strings and numbers."""

    def __init__(
        self,
        named: Mapping[str, Mapping[str, Any]],
        full_names: Mapping[str, str],
        max_text_bytes: int,
        data: bytes,
    ) -> None:
        self._named = named
        self._full_names = full_names
        self._max_text_bytes = max_text_bytes  # for a text without characters
        self._data = data
        self._budget = create_json_budget(len(data))

    def walk_value(self, plain: Any, pos: int) -> int:
        """Walk through a value, and return where it ends; raises as `JsonSizeLimit.check`."""
        if isinstance(plain, list):
            branch, pos = self._read_long(pos)
            name = _get_branch_name(plain[branch], self._full_names)
            self._budget.spend(len(name) + _PUNCTUATION_BYTES)
            return self.walk_value(plain[branch], pos)
        if isinstance(plain, str):
            plain = self._named.get(plain, plain)
        if isinstance(plain, str):
            return self._walk_primitive(plain, pos)
        kind = plain["type"]
        if kind in ("array", "map"):
            return self._walk_blocks(plain, pos)
        if kind == "record":
            self._budget.spend(_PUNCTUATION_BYTES)
            for field in plain["fields"]:
                self._budget.spend(len(field["name"]) + _PUNCTUATION_BYTES)
                pos = self.walk_value(field["type"], pos)
            return pos
        if kind == "enum":
            index, pos = self._read_long(pos)
            self._budget.spend(len(plain["symbols"][index]) + _PUNCTUATION_BYTES)
            return pos
        self._budget.spend(self._max_text_bytes)
        return self._skip(pos, int(plain["size"]))

    def _walk_primitive(self, kind: str, pos: int) -> int:
        if kind in ("int", "long"):
            _, pos = self._read_long(pos)
        elif kind in ("string", "bytes"):
            size, pos = self._read_long(pos)
            pos = self._skip(pos, size)
        else:
            pos = self._skip(pos, _MIN_AVRO_BYTES[kind])
        self._budget.spend(self._max_text_bytes if kind == "bytes" else _PUNCTUATION_BYTES)
        return pos

    def _walk_blocks(self, plain: Mapping[str, Any], pos: int) -> int:
        """Walk through an array or map: blocks, each with a count, until a count of 0."""
        (inner,) = _list_inner_types(plain)
        self._budget.spend(_PUNCTUATION_BYTES)
        while True:
            count, pos = self._read_long(pos)
            if count == 0:
                return pos
            if count < 0:  # then the size of the block in bytes follows
                count = -count
                _, pos = self._read_long(pos)
            for index in range(count):
                before, left = pos, self._budget.left
                if plain["type"] == "map":
                    pos = self._walk_primitive("string", pos)
                pos = self.walk_value(inner, pos)
                if pos == before:
                    # An element without bytes: so are the others, and as much JSON each. This is
                    # what keeps a huge count from taking long.
                    self._budget.spend((count - index - 1) * max(1, left - self._budget.left))
                    break

    def _read_long(self, pos: int) -> tuple[int, int]:
        number = shift = 0
        while True:
            byte = self._data[pos]
            pos += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), pos
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than ten bytes")

    def _skip(self, pos: int, size: int) -> int:
        if not 0 <= size <= len(self._data) - pos:
            raise IndexError("a value that is cut")
        return pos + size


def _list_inner_types(plain: Mapping[str, Any]) -> Sequence[Any]:
    if plain["type"] == "array":
        return (plain["items"],)
    if plain["type"] == "map":
        return (plain["values"],)
    return [field["type"] for field in plain.get("fields", ())]


def _get_branch_name(plain: Any, full_names: Mapping[str, str]) -> str:
    name = plain if isinstance(plain, str) else str(plain.get("name", plain["type"]))
    return full_names.get(name, name)
