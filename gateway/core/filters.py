"""Which records a view lets through: equality of key, headers and fields of the value.

A filter is an AND, a list of filters an OR. Both are values: equal filters are the same
view, and so are encoded once. The value is parsed at most once a record, and only when a
filter that its key and headers have passed looks into it.

A field is compared as text: a string with its own text, a number, true, false or null
with its JSON text; an object or array equals nothing. A value that is not strict JSON
(NaN, lone surrogates, UTF-16 and a byte order mark are not) has no fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from .record import Record

_MISSING: Final = object()
_POINTER = re.compile(r"(/([^/~]|~[01])*)*", re.DOTALL)
_INDEX = re.compile(r"0|[1-9][0-9]*", re.ASCII)


@dataclass(slots=True)
class LazyValue:
    """A record's value as JSON, parsed when first asked for; share one among all filters."""

    data: bytes | None
    _parsed: Any = field(default=None, init=False)
    _asked: bool = field(default=False, init=False)

    def at(self, path: tuple[str, ...]) -> Any:
        """What is at that path; a mark that equals nothing if nothing is."""
        if not self._asked:
            self._parsed, self._asked = _strict_json(self.data), True
        found = self._parsed
        for step in path:
            found = _child(found, step)
        return found


@dataclass(frozen=True, slots=True)
class Filter:
    """Lets a record through when all that is given equals.

    key:     None lets any key through; a record without a key equals none.
    headers: of a name that is there more than once, any may equal.
    fields:  JSON pointers (RFC 6901) into the value, and the text expected there.
    Raises ValueError for a malformed pointer.
    """

    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    _paths: tuple[tuple[tuple[str, ...], str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        paths = tuple((_path(pointer), text) for pointer, text in self.fields)
        object.__setattr__(self, "_paths", paths)

    def matches(self, record: Record, value: LazyValue) -> bool:
        if self.key is not None and self.key != record.key:
            return False
        for wanted in self.headers:
            if wanted not in record.headers:
                return False
        for path, text in self._paths:  # noqa: SIM110
            if _text(value.at(path)) != text:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Filters:
    """Lets a record through when any filter does, or when there are none."""

    filters: tuple[Filter, ...] = ()

    def matches(self, record: Record, value: LazyValue | None = None) -> bool:
        """value: the record's, when other filters look at it too."""
        if not self.filters:
            return True
        if value is None:
            value = LazyValue(record.value)
        # Loops here and above: by key 0.11 us; any() and all() over generators took 0.36 us.
        for each in self.filters:  # noqa: SIM110
            if each.matches(record, value):
                return True
        return False


def _strict_json(data: bytes | None) -> Any:
    try:
        return orjson.loads(data) if data is not None else _MISSING
    except orjson.JSONDecodeError:
        return _MISSING


def _path(pointer: str) -> tuple[str, ...]:
    if not _POINTER.fullmatch(pointer):
        raise ValueError(
            f"{pointer!r} is not a JSON pointer (RFC 6901); write '/field' or '/field/0/name'"
        )
    # '~1' before '~0', or '~01' would become '/' (RFC 6901 4).
    steps = pointer.split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def _child(parent: Any, step: str) -> Any:
    if isinstance(parent, dict):
        return parent.get(step, _MISSING)
    if isinstance(parent, list) and _INDEX.fullmatch(step) and len(step) < 10:
        index = int(step)
        return parent[index] if index < len(parent) else _MISSING
    return _MISSING


def _text(found: Any) -> str | None:
    if isinstance(found, str):
        return found
    if found is None or isinstance(found, bool | int | float):
        return orjson.dumps(found).decode()
    return None
