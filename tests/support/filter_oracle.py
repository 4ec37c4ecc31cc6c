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

_NUMBER_PATTERN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_BOUND_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le
}  # fmt: skip
_MISSING = object()


class NumberLiteral(NamedTuple):
    """A number as it is written."""

    text: str


class ComparedText(NamedTuple):
    """What is compared. number: the literal that is held against a range."""

    text: bytes
    literal: bytes


class FilterRecord(NamedTuple):
    """A record, as filters see it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def matches_filters(filters: Any, record: FilterRecord) -> bool:
    """Does a filter, or any of a list of them, let it through?"""
    listed = filters if isinstance(filters, list) else [filters]
    return any(_matches_filter(each, record) for each in listed)


def get_field(value: bytes | None, pointer: str) -> Any:
    """What stands there, numbers as literals; a mark of its own if nothing does."""
    try:
        found = json.loads(
            (value or b"").decode("utf-8-sig"),
            parse_int=NumberLiteral,
            parse_float=NumberLiteral,
            parse_constant=_reject_constant,
        )
    except (ValueError, RecursionError):
        return _MISSING
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and re.fullmatch("0|[1-9][0-9]{0,8}", name, re.ASCII):
            found = found[int(name)] if int(name) < len(found) else _MISSING
        else:
            return _MISSING
    return found


def _matches_filter(filter: Mapping[str, Any], record: FilterRecord) -> bool:
    if "key" in filter:
        there = [] if record.key is None else [ComparedText(record.key, record.key)]
        if not _matches_any(filter["key"], there):
            return False
    for name, wanted in filter.get("headers", {}).items():
        contents = [content for each, content in record.headers if each == name]
        if not _matches_any(
            wanted, [None if each is None else ComparedText(each, each) for each in contents]
        ):
            return False
    for pointer, wanted in filter.get("value", {}).items():
        found = get_field(record.value, pointer)
        if not _matches_any(wanted, [] if found is _MISSING else [_encode_field(found)]):
            return False
    return True


def _matches_any(condition: Any, contents: Sequence[ComparedText | None]) -> bool:
    """Of what there is under one name; None has no text."""
    if not isinstance(condition, Mapping):
        return _encode_scalar(condition) in [
            None if each is None else each.text for each in contents
        ]
    if condition.keys() == {"exists"}:
        return condition["exists"] is bool(contents)
    return any(each is not None and _matches_condition(condition, each) for each in contents)


def _matches_condition(condition: Mapping[str, Any], compared: ComparedText) -> bool:
    text, literal = compared
    if "in" in condition and text not in map(_encode_scalar, condition["in"]):
        return False
    if not text.startswith(condition.get("prefix", "").encode()):
        return False
    bounds = [
        (holds, condition[name]) for name, holds in _BOUND_OPERATORS.items() if name in condition
    ]
    if not bounds:
        return True
    if not (literal.isascii() and _NUMBER_PATTERN.fullmatch(literal.decode())):
        return False
    number = Decimal(literal.decode())
    return all(holds(number, Decimal(_encode_scalar(bound).decode())) for holds, bound in bounds)


def _encode_scalar(scalar: Any) -> bytes:
    """The text that a scalar of a filter is compared as."""
    if isinstance(scalar, str):
        return scalar.encode()
    if isinstance(scalar, int) and not isinstance(scalar, bool):
        return str(scalar).encode()
    return orjson.dumps(scalar)


def _encode_field(value: Any) -> ComparedText | None:
    """Of a field; None for an object or array."""
    if isinstance(value, str):
        return ComparedText(value.encode(), value.encode())
    if isinstance(value, NumberLiteral):
        text = value.text
        if not text.removeprefix("-").isdigit():
            text = orjson.dumps(float(text)).decode()
        return ComparedText(b"0" if text == "-0" else text.encode(), value.text.encode())
    if isinstance(value, (dict, list)):
        return None
    text = orjson.dumps(value)  # true, false or null
    return ComparedText(text, text)


def _reject_constant(text: str) -> Any:
    raise ValueError(text)
