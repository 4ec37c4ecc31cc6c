"""The filters and fields that a client chooses, wherever it writes them.

One reader for `?filter=`, WebSocket messages, the Python API and `gateway tail`. JSON is a
filter object or a list of them (any may match):

    {"key": COND, "headers": {"region": COND}, "value": {"/amount": COND}}

COND is a text, number or boolean to be equal to, or an object of `in`, `prefix`, `exists`,
`gt`, `gte`, `lt`, `lte`, all of which must hold. The short form is in `condition_text`.

What a client sends is bounded: each record of the stream is compared with all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

from gateway.config.source.expression import nearest
from gateway.config.source.substitution import shown
from gateway.core.channel.conditions import BOUNDS, Condition
from gateway.core.channel.exact_json import Number, number_of
from gateway.core.channel.filters import Filter, Filters, path_of

from .condition import scalar
from .condition_text import Short, merged

LONGEST: Final = 16 * 1024  # characters of a client's filter
LISTED: Final = 100  # values of an `in`; fields
CONDITIONS: Final = 64  # of a client's filter in all
MAX_FILTERS: Final = CONDITIONS  # repetitions of `?filter=`: each has a condition
POINTER: Final = 1024  # characters

_PARTS = ("key", "headers", "value")
_KINDS = ("in", "prefix", "exists", *BOUNDS)


def filters_of(given: object) -> Filters:
    """What a client's filter lets through.

    given: text (JSON, or the short form), JSON as Python reads it, or None for no filter.
    Raises ValueError saying what to write.
    """
    return filters_of_all([given])


def filters_of_all(given: Iterable[object]) -> Filters:
    """What all of several filters let through, as of a repeated `?filter=`.

    Raises ValueError saying what to write.
    """
    read, made = _Reader(), Filters()
    told = [one for one in given if one is not None]
    if len(told) > MAX_FILTERS:
        raise ValueError(f"{len(told)} filters are given; give at most {MAX_FILTERS}")
    if sum(len(one) for one in told if isinstance(one, str)) > LONGEST:
        raise ValueError(f"the filter has more than {LONGEST} characters; ask for less")
    parsed = [_parsed(one) for one in told]
    short = [one for one in parsed if isinstance(one, Short)]
    for one in (*merged(short), *(one for one in parsed if not isinstance(one, Short))):
        made = made.narrowed(read.filters(one))
    return made


def filters_of_route(written: Iterable[Mapping[str, Any]]) -> Filters:
    """The filters of a route, their holes filled in.

    Raises ValueError where a range was given no number.
    """
    read = _Reader(bounded=False)
    return Filters(tuple(read.filter(one, "") for one in written))


def fields_of(given: object) -> tuple[str, ...]:
    """The fields that a client wants of a value, in the order of their pointers.

    given: `/id,/customer/name`, a list of pointers, or such a list as JSON; None and an empty
    text are no choice. Raises ValueError saying what to write.
    """
    if given is None or given == "":
        return ()
    if isinstance(given, str):
        given = _parsed(given) if given.startswith("[") else given.split(",")
    if not isinstance(given, list | tuple) or not given:
        raise ValueError("expects JSON pointers; write such as /id,/customer/name")
    if len(given) > LISTED:
        raise ValueError(f"more than {LISTED} fields; ask for fewer")
    read = _Reader()
    return tuple(sorted({read.pointer(pointer, "") for pointer in given}))


class _Reader:
    """Reads filters, and counts what they cost where that is bounded."""

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self._conditions = 0
        self._characters = 0

    def filters(self, given: Any) -> Filters:
        if not isinstance(given, list | tuple):
            return Filters((self.filter(given, ""),))
        if not given:
            raise ValueError("an empty list lets nothing through; leave the filter out")
        made = {self.filter(one, f"[{index}]") for index, one in enumerate(given)}
        return Filters(tuple(sorted(made, key=repr)))

    def filter(self, given: Any, at: str) -> Filter:
        if not isinstance(given, Mapping):
            _refuse(at, f"expects an object, not {_what(given)}; write such as {{'key': 'ada'}}")
        _only(given, _PARTS, at)
        keys = [self.wanted(given["key"], _below(at, "key"))] if "key" in given else []
        headers = self.each(given, "headers", at, self.text)
        fields = self.each(given, "value", at, self.pointer)
        if not (keys or headers or fields):
            _refuse(at, "an empty filter matches every record; add key, headers or value")
        return Filter(
            key=_encoded(keys[0]) if keys else None,
            headers=tuple((name, _encoded(wanted)) for name, wanted in headers),
            fields=tuple(fields),
        )

    def each(
        self, given: Mapping[str, Any], part: str, at: str, name_of: Callable[[Any, str], str]
    ) -> list[tuple[str, str | Condition]]:
        at, conditions = _below(at, part), given.get(part, {})
        if not isinstance(conditions, Mapping):
            _refuse(at, f"expects an object, not {_what(conditions)}; write {{'name': 'text'}}")
        named = [(name_of(name, at), wanted) for name, wanted in conditions.items()]
        named.sort(key=lambda each: each[0])
        return [(name, self.wanted(wanted, f"{at}[{shown(name)}]")) for name, wanted in named]

    def wanted(self, given: Any, at: str) -> str | Condition:
        self._conditions += 1
        if self._bounded and self._conditions > CONDITIONS:
            _refuse(at, f"the filter has more than {CONDITIONS} conditions; ask for fewer")
        if not isinstance(given, Mapping):
            return self.scalar(given, at)
        _only(given, _KINDS, at)
        one_of = self.list(given["in"], _below(at, "in")) if "in" in given else None
        if one_of is not None and len(set(one_of)) == 1 and given.keys() == {"in"}:
            return one_of[0]
        prefix = self.text(given["prefix"], _below(at, "prefix")) if "prefix" in given else None
        exists = _flag(given["exists"], _below(at, "exists")) if "exists" in given else None
        there = [name for name in BOUNDS if name in given]
        bounds = tuple((name, self.number(given[name], _below(at, name))) for name in there)
        try:
            return Condition(one_of=one_of, prefix=prefix, exists=exists, bounds=bounds)
        except ValueError as error:
            _refuse(at, str(error))

    def list(self, given: Any, at: str) -> tuple[str, ...]:
        if not isinstance(given, list | tuple) or not given:
            _refuse(at, f"expects a list, not {_what(given)}; write such as ['a', 'b']")
        if self._bounded and len(given) > LISTED:
            _refuse(at, f"has {len(given)} values; give at most {LISTED}")
        return tuple(self.scalar(each, at) for each in given)

    def number(self, given: Any, at: str) -> Number:
        if isinstance(given, bool) or not isinstance(given, str | int | float | Decimal):
            _refuse(at, f"expects a number, not {_what(given)}; write such as 10 or 0.5")
        number = given if isinstance(given, Decimal) else number_of(self.scalar(given, at))
        if number is None:
            _refuse(at, f"expects a number, not {_what(given)}; write such as 10 or 0.5")
        return number

    def scalar(self, given: Any, at: str) -> str:
        if not isinstance(given, str | int | float | Decimal):
            _refuse(at, f"expects text, not {_what(given)}; write a text, or {{'exists': false}}")
        return self.text(scalar(given), at)

    def pointer(self, given: Any, at: str) -> str:
        pointer = self.text(given, at)
        if len(pointer) > POINTER:
            _refuse(at, f"has a pointer of {len(pointer)} characters; use at most {POINTER}")
        if not pointer.startswith("/"):
            _refuse(at, f"{shown(pointer)} is no JSON pointer (RFC 6901); write such as /region")
        path_of(pointer)
        return pointer

    def text(self, given: Any, at: str) -> str:
        if not isinstance(given, str):
            _refuse(at, f"expects text, not {_what(given)}; put it in quotes")
        self._characters += len(given)
        if self._bounded and self._characters > LONGEST:
            _refuse(at, f"the filter has more than {LONGEST} characters; ask for less")
        try:
            given.encode()
        except UnicodeEncodeError:
            _refuse(at, "has half a surrogate pair, which is in no text; leave it out")
        return given


def _parsed(given: object) -> object:
    """Text as JSON, or as a short form; anything else is JSON already."""
    if not isinstance(given, str):
        return given
    text = given.lstrip()
    if len(text) > LONGEST:
        raise ValueError(f"the filter has more than {LONGEST} characters; ask for less")
    if not text:
        raise ValueError("an empty filter; write such as key=ada, or leave it out")
    if text[0] not in "{[":
        return Short.parse(text)
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error}); check its quotes and brackets") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _only(given: Mapping[Any, Any], known: Iterable[str], at: str) -> None:
    for name in given:
        if name not in known:
            _refuse(at, f"unknown key {shown(name)}; {nearest(str(name), known)}")


def _flag(given: Any, at: str) -> bool:
    if not isinstance(given, bool):
        _refuse(at, f"expects true or false, not {_what(given)}; write one of them")
    return given


def _encoded(wanted: str | Condition) -> bytes | Condition:
    return wanted.encode() if isinstance(wanted, str) else wanted


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _what(given: object) -> str:
    return "null" if given is None else shown(given)


def _refuse(at: str, what: str) -> NoReturn:
    raise ValueError(f"{at}: {what}" if at else what)
