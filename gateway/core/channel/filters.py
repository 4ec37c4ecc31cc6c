"""Which records a view lets through: conditions on key, headers and fields of the value.

A filter is an AND, a list of filters an OR, and filters narrowed by others an AND of both.
All are values: equal filters are the same view, and so are encoded once. The value is parsed
at most once a record, and only when a filter that its key and headers have passed looks into
it.

A field is compared as text: a string with its own text, a number, true, false or null
with its JSON text (a whole number with all of its digits); an object or array equals
nothing. A value that is not strict JSON (NaN, lone surrogates, UTF-16 and a byte order mark
are not) has no fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from gateway.core.log.record import Record

from .conditions import Condition
from .exact_json import parse_exact

MISSING: Final = object()
_UNPARSED: Final = object()
_POINTER_PATTERN = re.compile(r"(/([^/~]|~[01])*)*", re.DOTALL)
_INDEX_PATTERN = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_MIN_INEXACT_INTEGER: Final = 2.0**63  # from here on a whole number may have been made a double

Path = tuple[str, ...]
TermTarget: TypeAlias = (
    str | Path | None
)  # a header by its name, a field by its path; None: the key


class IndexTerm(NamedTuple):
    """A part of a filter that lets no more through than the values it names.

    values: bytes of a key or header, texts of a field. whole: that is all the filter asks.
    """

    target: TermTarget
    values: tuple[bytes | str, ...]
    is_whole_filter: bool


@dataclass(slots=True)
class LazyValue:
    """A record's value as JSON, parsed when first asked for; share one among all filters."""

    data: bytes | None
    _parsed: Any = field(default=_UNPARSED, init=False)
    _numerals: Any = field(default=_UNPARSED, init=False)

    def get_value(self, path: Path) -> Any:
        """What is at that path; a mark that equals nothing if nothing is."""
        if self._parsed is _UNPARSED:
            self._parsed = _parse_strict_json(self.data)
        return _resolve_path(self._parsed, path)

    def get_numeral(self, path: Path) -> str:
        """The number at that path as it is written there; empty for one too deep inside."""
        if self._numerals is _UNPARSED:
            try:
                self._numerals = parse_exact(self.data or b"")
            except RecursionError:
                self._numerals = MISSING
        found = _resolve_path(self._numerals, path)
        return "" if found is MISSING else str(found)

    def get_text(self, path: Path) -> str | None:
        """What a field there is compared as; None if it has no text."""
        return _format_value(self, path, self.get_value(path))


@dataclass(frozen=True, slots=True)
class Filter:
    """Lets a record through when all that is given holds: equals, or is as the condition says.

    key:     None lets any key through; a record without a key equals none.
    headers: of a name that is there more than once, any may hold.
    fields:  JSON pointers (RFC 6901) into the value, and the text or condition there.
    Raises ValueError for a malformed pointer.
    """

    key: bytes | Condition | None = None
    headers: tuple[tuple[str, bytes | Condition], ...] = ()
    fields: tuple[tuple[str, str | Condition], ...] = ()
    _key: bytes | None = field(init=False, repr=False, compare=False)
    _headers: tuple[tuple[str, bytes], ...] = field(init=False, repr=False, compare=False)
    _paths: tuple[tuple[Path, str], ...] = field(init=False, repr=False, compare=False)
    _condition_checks: tuple[Callable[[Record, LazyValue], bool], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Equality apart from the rest: it is what most filters are, and has to be fast."""
        key, paths = self.key, [(parse_pointer(pointer), wanted) for pointer, wanted in self.fields]
        more: list[Callable[[Record, LazyValue], bool]] = []
        if isinstance(key, Condition):
            more.append(partial(_matches_key, key))
        more += [
            partial(_matches_header, n, c) for n, c in self.headers if isinstance(c, Condition)
        ]
        more += [partial(_matches_field, path, c) for path, c in paths if isinstance(c, Condition)]
        for name, value in (
            ("_key", None if isinstance(key, Condition) else key),
            ("_headers", tuple(h for h in self.headers if not isinstance(h[1], Condition))),
            ("_paths", tuple(p for p in paths if not isinstance(p[1], Condition))),
            ("_condition_checks", tuple(more)),
        ):
            object.__setattr__(self, name, value)

    @property
    def index_terms(self) -> Iterator[IndexTerm]:
        """The parts by which it can be looked up: key, then headers, then fields."""
        key = () if self.key is None else ((None, self.key),)
        fields = ((parse_pointer(pointer), wanted) for pointer, wanted in self.fields)
        alone = len(key) + len(self.headers) + len(self.fields) == 1
        for site, wanted in (*key, *self.headers, *fields):
            if not isinstance(wanted, Condition):
                yield IndexTerm(site, (wanted,), alone)
            elif wanted.one_of is not None:
                whole = alone and wanted.prefix is None and not wanted.bounds
                of_value = isinstance(site, tuple)
                values = (text if of_value else text.encode() for text in wanted.one_of)
                yield IndexTerm(site, tuple(values), whole)

    @property
    def keys(self) -> frozenset[bytes] | None:
        """The keys that it names, if it does; a record of any other does not pass."""
        if self._key is not None:
            return frozenset((self._key,))
        if isinstance(self.key, Condition) and self.key.one_of is not None:
            return frozenset(text.encode() for text in self.key.one_of)
        return None

    def matches(self, record: Record, value: LazyValue) -> bool:
        if self._key is not None and self._key != record.key:
            return False
        for wanted in self._headers:
            if wanted not in record.headers:
                return False
        for path, text in self._paths:
            if value.get_text(path) != text:
                return False
        for holds in self._condition_checks:  # noqa: SIM110
            if not holds(record, value):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Filters:
    """Lets a record through when any filter does, or when there are none.

    within: what must let it through as well.
    """

    filters: tuple[Filter, ...] = ()
    within: Filters | None = None

    def narrow(self, other: Filters) -> Filters:
        """These and those: nothing passes that these do not let through."""
        if not self.filters or not other.filters:
            return other if other.filters else self
        return replace(other, within=self if other.within is None else self.narrow(other.within))

    @property
    def pointers(self) -> frozenset[str]:
        """All fields of the value that are looked at."""
        own = frozenset(pointer for each in self.filters for pointer, _ in each.fields)
        return own if self.within is None else own | self.within.pointers

    @property
    def is_key_only(self) -> bool:
        """Whether they look at nothing but keys: of one key all records pass, or none."""
        own = not any(each.headers or each.fields for each in self.filters)
        return own and (self.within is None or self.within.is_key_only)

    @property
    def keys(self) -> frozenset[bytes] | None:
        """The keys that they name, if no record of another passes."""
        own = _union_keys([each.keys for each in self.filters])
        within = None if self.within is None else self.within.keys
        if own is None or within is None:
            return within if own is None else own
        return own & within

    def matches(self, record: Record, value: LazyValue | None = None) -> bool:
        """value: the record's, when other filters look at it too."""
        if not self.filters:
            return True
        if value is None:
            value = LazyValue(record.value)
        # Loops here and above: by key 0.11 us; any() and all() over generators took 0.36 us.
        for each in self.filters:
            if each.matches(record, value):
                return self.within is None or self.within.matches(record, value)
        return False


MATCH_ALL: Final = Filters()
"""No filter: everything passes."""


def parse_pointer(pointer: str) -> Path:
    """The steps of a JSON pointer. Raises ValueError where it is malformed."""
    if not _POINTER_PATTERN.fullmatch(pointer):
        raise ValueError(
            f"{pointer!r} is not a JSON pointer (RFC 6901); write '/field' or '/field/0/name'"
        )
    # '~1' before '~0', or '~01' would become '/' (RFC 6901 4).
    steps = pointer.split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def get_child(parent: Any, step: str) -> Any:
    """What is one step below an object or array; `MISSING` if nothing is."""
    if isinstance(parent, dict):
        return parent.get(step, MISSING)
    if isinstance(parent, list) and _INDEX_PATTERN.fullmatch(step) and len(step) < 10:
        index = int(step)
        return parent[index] if index < len(parent) else MISSING
    return MISSING


def _union_keys(named: Sequence[frozenset[bytes] | None]) -> frozenset[bytes] | None:
    known = [keys for keys in named if keys is not None]
    return frozenset().union(*known) if known and len(known) == len(named) else None


def _matches_key(condition: Condition, record: Record, value: LazyValue) -> bool:
    return condition.matches_any(() if record.key is None else (record.key,))


def _matches_header(name: str, condition: Condition, record: Record, value: LazyValue) -> bool:
    return condition.matches_any([content for each, content in record.headers if each == name])


def _matches_field(path: Path, condition: Condition, record: Record, value: LazyValue) -> bool:
    found = value.get_value(path)
    if found is MISSING:
        return condition.matches_any(())
    text = _format_value(value, path, found)
    return condition.matches_field(
        found, None if text is None else text.encode(), partial(value.get_numeral, path)
    )


def _parse_strict_json(data: bytes | None) -> Any:
    try:
        return orjson.loads(data) if data is not None else MISSING
    except orjson.JSONDecodeError:
        return MISSING


def _resolve_path(root: Any, path: Path) -> Any:
    for step in path:
        root = get_child(root, step)
    return root


def _format_value(value: LazyValue, path: Path, found: Any) -> str | None:
    if isinstance(found, str):
        return found
    if isinstance(found, float) and abs(found) >= _MIN_INEXACT_INTEGER:
        written = value.get_numeral(path)
        return written if written.removeprefix("-").isdigit() else orjson.dumps(found).decode()
    if found is None or isinstance(found, bool | int | float):
        return orjson.dumps(found).decode()
    return None
