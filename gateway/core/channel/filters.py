"""Decide which records a view lets through, by conditions on key, headers and fields.

The conditions of one filter are all required (AND). Of several filters, one is enough (OR). Filters
that are narrowed by others require one of each (AND of both). All are values: equal filters are the
same view, which is therefore encoded once. A record's value is parsed at most once, and only when a
filter looks into it whose key and headers have already matched.

A field is compared as text: a string as its own text; a number, true, false or null as its JSON
text (a whole number with all of its digits). An object or array equals nothing. A value that is not
JSON (`exact_json.parse_json`) has no fields.

`matches_glob` decides which topics a view has, by patterns of their names.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isinf
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from gateway.core.log.record import Record

from .exact_json import (
    MAX_NUMBER_CHARS,
    Number,
    normalize_number,
    parse_exact,
    parse_json,
    parse_number,
)

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
BOUND_NAMES: Final = tuple(_OPERATORS)  # the names of bounds in configuration and requests


@dataclass(frozen=True, slots=True)
class Condition:
    """A test that holds where all of its given parts do.

    The text is the bytes of a key or header as they are, or that of a field. A range is tested on
    the number that the text is in the grammar of JSON, compared exactly. A text that is not a JSON
    number, or is longer than `MAX_NUMBER_CHARS`, is in no range.

    A frozen value: equal conditions compare equal, in whatever order their parts were written, so
    that equal filters share a channel. Raises ValueError without any part, or if parts contradict
    each other.

    Attributes:
        prefix: The beginning that the text has to have; None for any.
        exists: Whether anything must be there at all, where null counts as something. False
            excludes all other parts.
        bounds: Pairs of `gt`, `gte`, `lt` or `lte` and a number.
    """

    one_of: tuple[str, ...] | None = None
    prefix: str | None = None
    exists: bool | None = None
    bounds: tuple[tuple[str, Number], ...] = ()
    _one_of: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _prefix: bytes = field(init=False, repr=False, compare=False)
    _bounds: tuple[tuple[Callable[[Any, Any], bool], Number, float], ...] = field(
        init=False, repr=False, compare=False
    )
    _checks_text: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks_text = self.one_of is not None or self.prefix is not None or bool(self.bounds)
        if not checks_text and self.exists is None:
            raise ValueError("a condition without any part; add in, prefix, exists or a range")
        if checks_text and self.exists is False:
            raise ValueError(
                "'exists: false' excludes in, prefix and ranges; ask for one of the two"
            )
        bounds = tuple(sorted({(name, normalize_number(number)) for name, number in self.bounds}))
        self._set_fields(
            one_of=None if self.one_of is None else tuple(sorted(set(self.one_of))),
            exists=None if checks_text else self.exists,  # implied by a test of the text
            bounds=bounds,
            _one_of=frozenset(text.encode() for text in self.one_of or ()),
            _prefix=(self.prefix or "").encode(),
            _bounds=tuple((_OPERATORS[name], bound, float(bound)) for name, bound in bounds),
            _checks_text=checks_text,
        )

    def _set_fields(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def matches_any(self, contents: Iterable[bytes | None]) -> bool:
        """Return whether any of the contents under one name matches; None has no text."""
        if self._checks_text:
            return any(text is not None and self._matches_text(text) for text in contents)
        return self.exists is any(True for _ in contents)

    def matches_field(
        self, content: Any, text: bytes | None, read_numeral: Callable[[], str]
    ) -> bool:
        """Return whether a field that is there matches, by its content and text (None: no scalar).

        `read_numeral` is called only where a double is too inexact to decide.
        """
        if not self._checks_text:
            return self.exists is True
        if text is None:
            return False
        # type(), because isinstance() takes a bool for an int; a bool is compared as text.
        if type(content) is int or type(content) is float:
            return self._is_listed(text) and self._is_number_in_bounds(content, read_numeral)
        return self._matches_text(text)

    def _matches_text(self, text: bytes) -> bool:
        return self._is_listed(text) and (not self._bounds or self._is_numeral_in_bounds(text))

    def _is_listed(self, text: bytes) -> bool:
        if self.one_of is not None and text not in self._one_of:
            return False
        return not self._prefix or text.startswith(self._prefix)

    def _is_numeral_in_bounds(self, text: bytes) -> bool:
        # isascii() first, because decoding bytes that are not UTF-8 raises an exception.
        is_short = len(text) <= MAX_NUMBER_CHARS
        number = parse_number(text.decode()) if is_short and text.isascii() else None
        return number is not None and all(holds(number, bound) for holds, bound, _ in self._bounds)

    def _is_number_in_bounds(self, content: int | float, read_numeral: Callable[[], str]) -> bool:
        for holds, bound, bound_as_float in self._bounds:
            if type(content) is int:
                if not holds(content, bound):
                    return False
            elif content != bound_as_float:
                # Rounding to doubles keeps the order, so unequal doubles decide exactly. That holds
                # for a bound beyond all doubles as well, which is rounded to infinity.
                if not holds(content, bound_as_float):
                    return False
            else:  # the rounded values are equal: the digits decide
                exact = parse_number(read_numeral())
                if exact is None or not holds(exact, bound):
                    return False
        return True


MISSING: Final = object()  # what a path leads to if nothing is there
_UNPARSED: Final = object()
_POINTER_PATTERN = re.compile(r"(/([^/~]|~[01])*)*", re.DOTALL)
_INDEX_PATTERN = re.compile(r"0|[1-9][0-9]*", re.ASCII)
# A double of this size or more may be a whole number that orjson could not keep as an int.
_MIN_INEXACT_INTEGER: Final = 2.0**63
# Keys that a reader looks for in an index, once in each turn. Own-key routes have one, which takes
# 5 us, and 4 take 11 us. 100 would take 0.1 ms for each record of a client with credit for one.
MAX_LOOKUP_KEYS: Final = 4

Path = tuple[str, ...]
# A header by its name, a field by its path, or None for the key.
TermTarget: TypeAlias = str | Path | None


class IndexTerm(NamedTuple):
    """A part of a filter that requires one of these values, which are texts for a field."""

    target: TermTarget
    values: tuple[bytes | str, ...]
    is_whole_filter: bool


@dataclass(slots=True)
class LazyValue:
    data: bytes | None
    _parsed: Any = field(default=_UNPARSED, init=False)
    _numerals: Any = field(default=_UNPARSED, init=False)  # parsed again, numbers as text
    _found: dict[Path, tuple[Any, bytes | None]] | None = field(default=None, init=False)

    def get_value(self, path: Path) -> Any:
        if self._parsed is _UNPARSED:
            self._parsed = _parse_value(self.data)
        return resolve_path(self._parsed, path)

    @property
    def is_unreadable(self) -> bool:
        return self._parsed is MISSING and self.data is not None

    def get_numeral(self, path: Path) -> str:
        """Return how the number at a path is written; empty if the value is nested too deeply."""
        if self._numerals is _UNPARSED:
            try:
                self._numerals = parse_exact(self.data or b"")
            except RecursionError:
                self._numerals = MISSING
        numeral = resolve_path(self._numerals, path)
        return "" if numeral is MISSING else str(numeral)

    def get_field(self, path: Path) -> tuple[Any, bytes | None]:
        """Return what a path leads to, with its text: encoded once for all conditions on it."""
        if self._found is None:
            self._found = {}
        found = self._found.get(path)
        if found is None:
            content = self.get_value(path)
            text = self.format_text(path, content)
            found = self._found[path] = content, None if text is None else text.encode()
        return found

    def get_text(self, path: Path) -> str | None:
        return self.format_text(path, self.get_value(path))

    def format_text(self, path: Path, content: Any) -> str | None:
        """Return the content at a path as the text that it is compared as; None if it has none."""
        return content if type(content) is str else _format_value(self, path, content)


@dataclass(frozen=True, slots=True)
class Filter:
    """A test that lets a record through when all of its parts match.

    A frozen value: equal filters make equal views. Raises ValueError for a malformed pointer.

    Attributes:
        key: The key, or a condition on it; None lets any key through. A record without a key equals
            none.
        headers: Names with a value or condition. If a name occurs more than once in a record, any
            of its headers may match.
        fields: JSON pointers (RFC 6901) into the value, with a text or condition.
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
        key, paths = self.key, [(parse_pointer(pointer), wanted) for pointer, wanted in self.fields]
        checks: list[Callable[[Record, LazyValue], bool]] = []
        if isinstance(key, Condition):
            checks.append(partial(_matches_key, key))
        checks += [
            partial(_matches_header, name, wanted)
            for name, wanted in self.headers
            if isinstance(wanted, Condition)
        ]
        checks += [
            partial(_matches_field, path, wanted)
            for path, wanted in paths
            if isinstance(wanted, Condition)
        ]
        for name, value in (
            ("_key", None if isinstance(key, Condition) else key),
            ("_headers", tuple(h for h in self.headers if not isinstance(h[1], Condition))),
            ("_paths", tuple(p for p in paths if not isinstance(p[1], Condition))),
            ("_condition_checks", tuple(checks)),
        ):
            object.__setattr__(self, name, value)

    @property
    def index_terms(self) -> Iterator[IndexTerm]:
        key = () if self.key is None else ((None, self.key),)
        fields = ((parse_pointer(pointer), wanted) for pointer, wanted in self.fields)
        is_only_part = len(key) + len(self.headers) + len(self.fields) == 1
        for target, wanted in (*key, *self.headers, *fields):
            if not isinstance(wanted, Condition):
                yield IndexTerm(target, (wanted,), is_only_part)
            elif wanted.one_of is not None:
                is_whole_filter = is_only_part and wanted.prefix is None and not wanted.bounds
                is_field = isinstance(target, tuple)
                values = (text if is_field else text.encode() for text in wanted.one_of)
                yield IndexTerm(target, tuple(values), is_whole_filter)

    @property
    def conditions(self) -> Iterator[Condition]:
        """Its conditions, without the parts that are plain values."""
        wanted = self.key, *(part for _, part in (*self.headers, *self.fields))
        return (part for part in wanted if isinstance(part, Condition))

    @property
    def keys(self) -> frozenset[bytes] | None:
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
    """Filters of which one has to let a record through (none: all), and one of `within` as well."""

    filters: tuple[Filter, ...] = ()
    within: Filters | None = None

    def narrow(self, other: Filters) -> Filters:
        if not self.filters or not other.filters:
            return other if other.filters else self
        return replace(other, within=self if other.within is None else self.narrow(other.within))

    @property
    def pointers(self) -> frozenset[str]:
        own = frozenset(pointer for filter_ in self.filters for pointer, _ in filter_.fields)
        return own if self.within is None else own | self.within.pointers

    @property
    def required_pointers(self) -> frozenset[str]:
        """Return the pointers of the fields without which one of the filters matches nothing."""
        own = frozenset(
            pointer
            for filter_ in self.filters
            for pointer, wanted in filter_.fields
            if not (isinstance(wanted, Condition) and wanted.exists is False)
        )
        return own if self.within is None else own | self.within.required_pointers

    @property
    def condition_count(self) -> int:
        """Return how many conditions there are, where those on long pointers count more."""
        own = sum(
            (filter_.key is not None)
            + len(filter_.headers)
            + sum(get_pointer_cost(pointer) for pointer, _ in filter_.fields)
            for filter_ in self.filters
        )
        return own if self.within is None else own + self.within.condition_count

    @property
    def size(self) -> int:
        """Return about how many bytes they take beside their text, also in an index.

        Measured: 180 to 300 for a listed value, and of each alternative but the first one 220, and
        500 for each field. Each further step of a pointer takes 80, and 370 more in an index, which
        has one pointer of each alternative.
        """
        listed = sum(
            len(part.one_of or ()) for filter_ in self.filters for part in filter_.conditions
        )
        alternatives = sum(
            1 + 2 * (len(filter_.headers) + len(filter_.fields)) for filter_ in self.filters[1:]
        )
        own = 250 * (listed + alternatives)
        for filter_ in self.filters:
            steps = [pointer.count("/", 1) for pointer, _ in filter_.fields]
            own += 80 * sum(steps) + 370 * max(steps, default=0)
        return own if self.within is None else own + self.within.size

    @property
    def has_index_terms(self) -> bool:
        """Return whether each alternative requires some value, by which an index finds it."""
        own = all(any(True for _ in filter_.index_terms) for filter_ in self.filters)
        return own or (self.within is not None and self.within.has_index_terms)

    @property
    def is_key_only(self) -> bool:
        """Return whether they look at keys only, so that all records of a key pass or none."""
        own = not any(filter_.headers or filter_.fields for filter_ in self.filters)
        return own and (self.within is None or self.within.is_key_only)

    @property
    def keys(self) -> frozenset[bytes] | None:
        own = _union_keys([filter_.keys for filter_ in self.filters])
        within = None if self.within is None else self.within.keys
        if own is None or within is None:
            return within if own is None else own
        return own & within

    def __call__(self, record: Record) -> bool:
        """Return whether a record passes. A bound method would take 64 bytes of each filter."""
        return self.matches(record)

    def matches(self, record: Record, value: LazyValue | None = None) -> bool:
        if not self.filters:
            return True
        if value is None:
            value = LazyValue(record.value)
        # Loops here and in `Filter.matches`: 0.11 us for a key; any() and all() over generators
        # took 0.36 us.
        for filter_ in self.filters:
            if filter_.matches(record, value):
                return self.within is None or self.within.matches(record, value)
        return False


MATCH_ALL: Final = Filters()
"""Filters that let every record through."""


def get_lookup_keys(accepts: Callable[[Record], bool] | None) -> frozenset[bytes] | None:
    """Return at most MAX_LOOKUP_KEYS keys of which a record has to have one to pass, or None."""
    level = accepts if isinstance(accepts, Filters) else None
    while level is not None:
        keys = _unite_few_keys(level.filters)
        if keys is not None:
            return keys
        level = level.within
    return None


def get_judging_cost(accepts: Callable[[Record], bool] | None) -> int:
    """Return how dear it is to judge a record, where 1 is to look at it.

    Turns of the event loop are limited by it: a condition takes about as long as all else that is
    done with an entry, and clients choose up to 64.
    """
    return 1 + (accepts.condition_count if isinstance(accepts, Filters) else 0)


def get_pointer_cost(pointer: str) -> int:
    """Return as how many conditions one on a field counts: a pointer of 32 steps takes 3 us."""
    return 1 + pointer.count("/") // 8


def parse_pointer(pointer: str) -> Path:
    if not _POINTER_PATTERN.fullmatch(pointer):
        raise ValueError(
            f"{pointer!r} is not a JSON pointer (RFC 6901); write '/field' or '/field/0/name'"
        )
    # '~1' before '~0', or '~01' would become '/' (RFC 6901 4).
    steps = pointer.split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def get_child(parent: Any, step: str) -> Any:
    if isinstance(parent, dict):
        return parent.get(step, MISSING)
    # The length is bounded because int() of a long text takes quadratic time.
    if isinstance(parent, list) and _INDEX_PATTERN.fullmatch(step) and len(step) < 10:
        index = int(step)
        return parent[index] if index < len(parent) else MISSING
    return MISSING


def _union_keys(named: Sequence[frozenset[bytes] | None]) -> frozenset[bytes] | None:
    # One filter that names no keys lets records of any key through.
    known = [keys for keys in named if keys is not None]
    return frozenset().union(*known) if known and len(known) == len(named) else None


def _unite_few_keys(filters: Sequence[Filter]) -> frozenset[bytes] | None:
    if not 0 < len(filters) <= MAX_LOOKUP_KEYS:
        return None
    # Asked for each reader, so the keys of a long list are not even encoded.
    conditions = [each.key for each in filters if isinstance(each.key, Condition)]
    if any(len(each.one_of or ()) > MAX_LOOKUP_KEYS for each in conditions):
        return None
    keys = _union_keys([each.keys for each in filters])
    return None if keys is None or len(keys) > MAX_LOOKUP_KEYS else keys


def _matches_key(condition: Condition, record: Record, value: LazyValue) -> bool:
    return condition.matches_any(() if record.key is None else (record.key,))


def _matches_header(name: str, condition: Condition, record: Record, value: LazyValue) -> bool:
    return condition.matches_any([content for header, content in record.headers if header == name])


def _matches_field(path: Path, condition: Condition, record: Record, value: LazyValue) -> bool:
    content, text = value.get_field(path)
    if content is MISSING:
        return condition.matches_any(())
    return condition.matches_field(content, text, partial(value.get_numeral, path))


def _parse_value(data: bytes | None) -> Any:
    try:
        return parse_json(data) if data is not None else MISSING
    except orjson.JSONDecodeError:
        return MISSING


def resolve_path(root: Any, path: Path) -> Any:
    """Return the part of a JSON document at a path, or MISSING."""
    for step in path:
        root = get_child(root, step)
        if root is MISSING:
            break
    return root


def _format_value(value: LazyValue, path: Path, content: Any) -> str | None:
    if isinstance(content, str):
        return content
    if isinstance(content, float) and abs(content) >= _MIN_INEXACT_INTEGER:
        numeral = value.get_numeral(path)
        # A number with a fraction or an exponent (1e19) has the text that orjson writes for it.
        is_kept = numeral.removeprefix("-").isdigit() or isinf(content)
        return numeral if is_kept else orjson.dumps(content).decode()
    if content is None or isinstance(content, bool | int | float):
        return orjson.dumps(content).decode()
    return None


def is_glob(text: str) -> bool:
    return "*" in text


def matches_glob(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name, in time linear in the name's length.

    `*` stands for any text, and all else for itself. `fnmatch` is not used: as a regular
    expression, a client's `*a*a*a*...` takes longer with every star.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    start, end = len(first), len(name) - len(last)
    if start > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:  # the leftmost match of each part leaves the most for the next ones
        start = name.find(part, start, end)
        if start < 0:
            return False
        start += len(part)
    return True
