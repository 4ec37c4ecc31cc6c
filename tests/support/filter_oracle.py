"""Filters as README has them, by code of their own: what a client writes, held against a record.

It shares no code with the gateway but orjson's way to write a double. A number is its literal
here, so that none is rounded before it is compared.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import orjson

Headers = Sequence[tuple[str, bytes | None]]

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le
}  # fmt: skip
_NOTHING = object()


class Literal(NamedTuple):
    """A number as it is written."""

    text: str


class Text(NamedTuple):
    """What is compared. number: the literal that is held against a range."""

    text: bytes
    number: bytes


class Shown(NamedTuple):
    """A record, as filters see it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def passes(filters: Any, record: Shown) -> bool:
    """Does a filter, or any of a list of them, let it through?"""
    listed = filters if isinstance(filters, list) else [filters]
    return any(_holds(each, record) for each in listed)


def field_of(value: bytes | None, pointer: str) -> Any:
    """What stands there, numbers as literals; a mark of its own if nothing does."""
    try:
        found = json.loads((value or b"").decode(), parse_int=Literal, parse_float=Literal,
                           parse_constant=_refuse)  # fmt: skip
    except (ValueError, RecursionError):
        return _NOTHING
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and re.fullmatch("0|[1-9][0-9]{0,8}", name, re.ASCII):
            found = found[int(name)] if int(name) < len(found) else _NOTHING
        else:
            return _NOTHING
    return found


def _holds(filter: Mapping[str, Any], record: Shown) -> bool:
    if "key" in filter:
        there = [] if record.key is None else [Text(record.key, record.key)]
        if not _any(filter["key"], there):
            return False
    for name, wanted in filter.get("headers", {}).items():
        contents = [content for each, content in record.headers if each == name]
        if not _any(wanted, [None if each is None else Text(each, each) for each in contents]):
            return False
    for pointer, wanted in filter.get("value", {}).items():
        found = field_of(record.value, pointer)
        if not _any(wanted, [] if found is _NOTHING else [_text(found)]):
            return False
    return True


def _any(wanted: Any, there: Sequence[Text | None]) -> bool:
    """Of what there is under one name; None has no text."""
    if not isinstance(wanted, Mapping):
        return _written(wanted) in [None if each is None else each.text for each in there]
    if wanted.keys() == {"exists"}:
        return wanted["exists"] is bool(there)
    return any(each is not None and _is(wanted, each) for each in there)


def _is(wanted: Mapping[str, Any], found: Text) -> bool:
    text, literal = found
    if "in" in wanted and text not in map(_written, wanted["in"]):
        return False
    if not text.startswith(wanted.get("prefix", "").encode()):
        return False
    bounds = [(holds, wanted[name]) for name, holds in _BOUNDS.items() if name in wanted]
    if not bounds:
        return True
    if not (literal.isascii() and _NUMBER.fullmatch(literal.decode())):
        return False
    number = Decimal(literal.decode())
    return all(holds(number, Decimal(_written(bound).decode())) for holds, bound in bounds)


def _written(scalar: Any) -> bytes:
    """The text that a scalar of a filter is compared as."""
    if isinstance(scalar, str):
        return scalar.encode()
    if isinstance(scalar, int) and not isinstance(scalar, bool):
        return str(scalar).encode()
    return orjson.dumps(scalar)


def _text(found: Any) -> Text | None:
    """Of a field; None for an object or array."""
    if isinstance(found, str):
        return Text(found.encode(), found.encode())
    if isinstance(found, Literal):
        text = found.text
        if not text.removeprefix("-").isdigit():
            text = orjson.dumps(float(text)).decode()
        return Text(b"0" if text == "-0" else text.encode(), found.text.encode())
    if isinstance(found, (dict, list)):
        return None
    text = orjson.dumps(found)  # true, false or null
    return Text(text, text)


def _refuse(text: str) -> Any:
    raise ValueError(text)
