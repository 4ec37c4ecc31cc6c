"""How much JSON bytes of Avro come to, and how deep it is, before they are read.

Null takes no bytes, and so does a record of nulls: an array of them is as long as it says, 100 MB
of JSON in 5 bytes. So the JSON of a value may have `FREE` bytes and `RATE` for each of its own.

Most schemas cannot come to more, which is known once for a schema: each type has a surplus, what
its JSON is at most longer than `RATE` times its bytes. What is repeated must not have any. Values
of other schemas are walked through first, which takes 0.3 us for each value in them. So are values
that may be deep, of types that hold themselves: fastavro's reader goes as deep as they do without
minding its stack, and some ten thousand levels end the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

FREE_JSON_BYTES = 1 << 20
MAX_SHALLOW_BYTES = (
    1000  # bytes, of which each level takes one at least: no deeper than its reader goes
)
JSON_BYTES_PER_BYTE = (
    128  # bytes of JSON for a byte of Avro: a field with a long name, that is false
)

_PUNCTUATION_BYTES = 4  # quotes, colon and comma of a member
_MAX_JSON_BYTES = {"null": 5, "boolean": 6, "int": 12, "long": 21, "float": 26, "double": 26}
_MIN_AVRO_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8}
_ESCAPED_CHAR_BYTES = 6  # bytes of JSON for a byte of text
_MAX_ROUNDS = 8  # of looking at types that hold themselves


class JsonTooLarge(ValueError):
    """The JSON would have more bytes than it may."""


class JsonSizeLimit:
    """The sizes of one schema, as fastavro takes it, with each named type defined in it once."""

    def __init__(self, plain: Any) -> None:
        self._named: dict[str, Mapping[str, Any]] = {}
        self._is_recursive = False
        self._collect(plain, frozenset())
        self._surplus: dict[str, float] = dict.fromkeys(self._named, -inf)
        self._plain = plain
        self.is_bounded = (
            self._has_bounded_surplus() and self._measure_surplus(plain) <= FREE_JSON_BYTES
        )

    def check(self, data: bytes) -> None:
        """Raise TooMuch for a value that comes to too much, RecursionError for one that is too
        deep, and IndexError for one that is cut."""
        if not self.is_bounded or (self._is_recursive and len(data) > MAX_SHALLOW_BYTES):
            _SizeWalker(self._named, data).walk_value(self._plain, 0)

    def _collect(self, plain: Any, enclosing: frozenset[str]) -> None:
        """within: the names of the types around it."""
        for each in plain if isinstance(plain, list) else (plain,):
            if isinstance(each, dict):
                names = enclosing
                if "name" in each:
                    self._named[each["name"]] = each
                    names |= {each["name"]}
                for inner in _list_inner_types(each):
                    self._collect(inner, names)
            elif each in enclosing:
                self._is_recursive = True

    def _has_bounded_surplus(self) -> bool:
        """Find the surplus of named types. False where that of one grows with how deep it is."""
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
            return _PUNCTUATION_BYTES + (_ESCAPED_CHAR_BYTES - JSON_BYTES_PER_BYTE) * int(
                plain["size"]
            )
        fields = plain["fields"]
        return _PUNCTUATION_BYTES + sum(
            len(f["name"]) + _PUNCTUATION_BYTES + self._measure_surplus(f["type"]) for f in fields
        )

    def _measure_surplus(self, plain: Any) -> float:
        if isinstance(plain, list):
            return (
                max((self._measure_branch(each) for each in plain), default=0) - JSON_BYTES_PER_BYTE
            )
        if isinstance(plain, str):
            if plain in self._surplus:
                return self._surplus[plain]
            return _MAX_JSON_BYTES.get(
                plain, _PUNCTUATION_BYTES
            ) - JSON_BYTES_PER_BYTE * _MIN_AVRO_BYTES.get(plain, 1)
        if plain["type"] in ("array", "map"):
            (inner,) = _list_inner_types(plain)
            each = self._measure_surplus(inner)
            if plain["type"] == "map":
                each += _PUNCTUATION_BYTES - JSON_BYTES_PER_BYTE
            return _PUNCTUATION_BYTES - JSON_BYTES_PER_BYTE if each <= 0 else inf
        return self._surplus[plain["name"]]

    def _measure_branch(self, plain: Any) -> float:
        """Of a branch, which may be told by its name."""
        return len(_get_branch_name(plain)) + _PUNCTUATION_BYTES + self._measure_surplus(plain)


class _SizeWalker:
    """One value. Its strings and numbers are passed over."""

    def __init__(self, named: Mapping[str, Mapping[str, Any]], data: bytes) -> None:
        self._named = named
        self._data = data
        self._bytes_left = FREE_JSON_BYTES + JSON_BYTES_PER_BYTE * len(data)

    def walk_value(self, plain: Any, at: int) -> int:
        """Return where it ends."""
        if isinstance(plain, list):
            branch, at = self._read_long(at)
            self._spend_bytes(len(_get_branch_name(plain[branch])) + _PUNCTUATION_BYTES)
            return self.walk_value(plain[branch], at)
        if isinstance(plain, str):
            plain = self._named.get(plain, plain)
        if isinstance(plain, str):
            return self._walk_primitive(plain, at)
        kind = plain["type"]
        if kind in ("array", "map"):
            return self._walk_blocks(plain, at)
        if kind == "record":
            for field in plain["fields"]:
                self._spend_bytes(len(field["name"]) + _PUNCTUATION_BYTES)
                at = self.walk_value(field["type"], at)
            return at
        if kind == "enum":
            place, at = self._read_long(at)
            self._spend_bytes(len(plain["symbols"][place]) + _PUNCTUATION_BYTES)
            return at
        return self._skip(at, int(plain["size"]))

    def _walk_primitive(self, kind: str, at: int) -> int:
        if kind in ("int", "long"):
            _, at = self._read_long(at)
        elif kind in ("string", "bytes"):
            size, at = self._read_long(at)
            at = self._skip(at, size)
        else:
            at = self._skip(at, _MIN_AVRO_BYTES[kind])
        self._spend_bytes(_PUNCTUATION_BYTES)
        return at

    def _walk_blocks(self, plain: Mapping[str, Any], at: int) -> int:
        (inner,) = _list_inner_types(plain)
        self._spend_bytes(_PUNCTUATION_BYTES)
        while True:
            count, at = self._read_long(at)
            if count == 0:
                return at
            if count < 0:
                count = -count
                _, at = self._read_long(at)
            for n in range(count):
                before, left = at, self._bytes_left
                if plain["type"] == "map":
                    at = self._walk_primitive("string", at)
                at = self.walk_value(inner, at)
                if at == before:  # it has no bytes, so nor have the others
                    self._spend_bytes((count - n - 1) * max(1, left - self._bytes_left))
                    break

    def _read_long(self, at: int) -> tuple[int, int]:
        number = shift = 0
        while True:
            byte = self._data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), at
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than ten bytes")

    def _skip(self, at: int, size: int) -> int:
        if not 0 <= size <= len(self._data) - at:
            raise IndexError("a value that is cut")
        return at + size

    def _spend_bytes(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            length = len(self._data)
            limit = FREE_JSON_BYTES + JSON_BYTES_PER_BYTE * length
            raise JsonTooLarge(f"{length} bytes come to more than {limit} of JSON")


def _list_inner_types(plain: Mapping[str, Any]) -> Sequence[Any]:
    if plain["type"] == "array":
        return (plain["items"],)
    if plain["type"] == "map":
        return (plain["values"],)
    return [field["type"] for field in plain.get("fields", ())]


def _get_branch_name(plain: Any) -> str:
    if isinstance(plain, str):
        return plain
    return str(plain.get("name", plain["type"]))
