"""Parse the filters and fields that a client chooses.

This parser is used for `?filter=`, WebSocket messages, the Python API and `gateway tail`. JSON is a
filter object or a list of them (any may match):

    {"key": COND, "headers": {"region": COND}, "value": {"/amount": COND}}

COND is a text, number or boolean to be equal to, or an object of `in`, `prefix`, `exists`, `gt`,
`gte`, `lt`, `lte`, all of which must hold. The short form is in `condition`.

The size of a client's filter is bounded, because each record of the stream is compared with all of
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

from gateway.core.channel.exact_json import Number, parse_number
from gateway.core.channel.filters import (
    BOUND_NAMES,
    Condition,
    Filter,
    Filters,
    get_pointer_cost,
    parse_pointer,
)

from .condition import ShortCondition, format_scalar, merge_conditions
from .substitution import describe_not_text, safe_repr, suggest

MAX_FILTER_CHARS: Final = 16 * 1024  # of all filters of a client together
MAX_LISTED_VALUES: Final = 100  # values of an `in`, and fields
MAX_CONDITIONS: Final = 64  # of all filters of a client together
MAX_FILTERS: Final = MAX_CONDITIONS  # repetitions of `?filter=`: each has at least one condition
MAX_POINTER_CHARS: Final = 1024
MAX_POINTER_STEPS: Final = 32

_FILTER_KEYS = ("key", "headers", "value")
_CONDITION_KEYS = ("in", "prefix", "exists", *BOUND_NAMES)


def parse_filter(value: object) -> Filters:
    """Parse a client's filter.

    Args:
        value: Text (JSON, or the short form), JSON as Python reads it, or None for no filter.

    Raises:
        ValueError: The filter is malformed or too large; the message says what to write.
    """
    return parse_filters([value])


def parse_filters(values: Iterable[object]) -> Filters:
    """Parse several filters, all of which must match, as in a repeated `?filter=`.

    Raises:
        ValueError: One is malformed or together they are too large; the message says what to write.
    """
    parser, filters = _FilterParser(), Filters()
    present = [item for item in values if item is not None]
    if len(present) > MAX_FILTERS:
        raise ValueError(f"{len(present)} filters are given; give at most {MAX_FILTERS}")
    if sum(len(item) for item in present if isinstance(item, str)) > MAX_FILTER_CHARS:
        raise ValueError(f"the filter has more than {MAX_FILTER_CHARS} characters; ask for less")
    parsed = [_decode_filter(item) for item in present]
    short_conditions = [item for item in parsed if isinstance(item, ShortCondition)]
    for item in (
        *merge_conditions(short_conditions),
        *(item for item in parsed if not isinstance(item, ShortCondition)),
    ):
        filters = filters.narrow(parser.parse_filters(item))
    return filters


def build_route_filters(filters: Iterable[Mapping[str, Any]]) -> Filters:
    """Build the filters of a route, whose placeholders are filled in.

    They are not bounded, since the operator wrote them.

    Raises:
        ValueError: A bound of a range is not a number.
    """
    parser = _FilterParser(bounded=False)
    return Filters(tuple(parser.parse_filter(raw, "") for raw in filters))


def parse_fields(value: object) -> tuple[str, ...]:
    """Parse the fields that a client wants of a value, sorted by their pointers.

    Args:
        value: `/id,/customer/name`, a list of pointers, or such a list as JSON. None and an empty
            text choose nothing.

    Raises:
        ValueError: There is no pointer or there are too many; the message says what to write.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = _decode_filter(value) if value.startswith("[") else value.split(",")
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("expects JSON pointers; write such as /id,/customer/name")
    if len(value) > MAX_LISTED_VALUES:
        raise ValueError(f"more than {MAX_LISTED_VALUES} fields; ask for fewer")
    parser = _FilterParser()
    return tuple(sorted({parser.parse_pointer(pointer, "") for pointer in value}))


class _FilterParser:
    """Parses filters and counts their conditions and characters.

    One instance parses all filters of a client, so that the limits hold for them together. `at` in
    its methods is the path of the value for messages, such as `[0].value`.
    """

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self._conditions = 0
        self._characters = 0

    def parse_filters(self, value: Any) -> Filters:
        """Parse a filter or a list of filters, any of which may match."""
        if not isinstance(value, list | tuple):
            return Filters((self.parse_filter(value, ""),))
        if not value:
            raise ValueError("an empty list lets nothing through; leave the filter out")
        filters = {self.parse_filter(one, f"[{index}]") for index, one in enumerate(value)}
        return Filters(tuple(sorted(filters, key=repr)))

    def parse_filter(self, value: Any, at: str) -> Filter:
        if not isinstance(value, Mapping):
            _refuse(
                at, f"expects an object, not {_describe(value)}; write such as {{'key': 'ada'}}"
            )
        _refuse_unknown_keys(value, _FILTER_KEYS, at)
        keys = [self.parse_condition(value["key"], _join_path(at, "key"))] if "key" in value else []
        headers = self.parse_conditions(value, "headers", at, self.parse_text)
        fields = self.parse_conditions(value, "value", at, self.parse_pointer)
        if not (keys or headers or fields):
            _refuse(at, "an empty filter matches every record; add key, headers or value")
        return Filter(
            key=_encode_text(keys[0]) if keys else None,
            headers=tuple((name, _encode_text(wanted)) for name, wanted in headers),
            fields=tuple(fields),
        )

    def parse_conditions(
        self, value: Mapping[str, Any], part: str, at: str, parse_name: Callable[[Any, str], str]
    ) -> list[tuple[str, str | Condition]]:
        at, conditions = _join_path(at, part), value.get(part, {})
        if not isinstance(conditions, Mapping):
            _refuse(at, f"expects an object, not {_describe(conditions)}; write {{'name': 'text'}}")
        named = [(parse_name(name, at), wanted) for name, wanted in conditions.items()]
        named.sort(key=lambda item: item[0])
        return [
            (name, self.parse_condition(wanted, f"{at}[{safe_repr(name)}]"))
            for name, wanted in named
        ]

    def parse_condition(self, value: Any, at: str) -> str | Condition:
        self._conditions += 1
        if self._bounded and self._conditions > MAX_CONDITIONS:
            _refuse(
                at,
                f"the filter has more than {MAX_CONDITIONS} conditions, of which those on "
                "pointers of 8 steps or more count repeatedly; ask for fewer",
            )
        if not isinstance(value, Mapping):
            return self.parse_scalar(value, at)
        _refuse_unknown_keys(value, _CONDITION_KEYS, at)
        one_of = self.parse_values(value["in"], _join_path(at, "in")) if "in" in value else None
        if one_of is not None and len(set(one_of)) == 1 and value.keys() == {"in"}:
            return one_of[0]
        prefix = (
            self.parse_text(value["prefix"], _join_path(at, "prefix"))
            if "prefix" in value
            else None
        )
        exists = (
            _parse_flag(value["exists"], _join_path(at, "exists")) if "exists" in value else None
        )
        bound_names = [name for name in BOUND_NAMES if name in value]
        bounds = tuple(
            (name, self.parse_number(value[name], _join_path(at, name))) for name in bound_names
        )
        try:
            return Condition(one_of=one_of, prefix=prefix, exists=exists, bounds=bounds)
        except ValueError as error:
            _refuse(at, str(error))

    def parse_values(self, value: Any, at: str) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not value:
            _refuse(at, f"expects a list, not {_describe(value)}; write such as ['a', 'b']")
        if self._bounded and len(value) > MAX_LISTED_VALUES:
            _refuse(at, f"has {len(value)} values; give at most {MAX_LISTED_VALUES}")
        return tuple(self.parse_scalar(item, at) for item in value)

    def parse_number(self, value: Any, at: str) -> Number:
        if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
            _refuse(at, f"expects a number, not {_describe(value)}; write such as 10 or 0.5")
        number = value if isinstance(value, Decimal) else parse_number(self.parse_scalar(value, at))
        if number is None:
            _refuse(at, f"expects a number, not {_describe(value)}; write such as 10 or 0.5")
        return number

    def parse_scalar(self, value: Any, at: str) -> str:
        if not isinstance(value, str | int | float | Decimal):
            _refuse(
                at, f"expects text, not {_describe(value)}; write a text, or {{'exists': false}}"
            )
        return self.parse_text(format_scalar(value), at)

    def parse_pointer(self, value: Any, at: str) -> str:
        pointer = self.parse_text(value, at)
        if len(pointer) > MAX_POINTER_CHARS:
            _refuse(
                at, f"has a pointer of {len(pointer)} characters; use at most {MAX_POINTER_CHARS}"
            )
        if not pointer.startswith("/"):
            _refuse(
                at, f"{safe_repr(pointer)} is no JSON pointer (RFC 6901); write such as /region"
            )
        self._conditions += get_pointer_cost(pointer) - 1  # the rest by `parse_condition`
        steps = len(parse_pointer(pointer))
        if self._bounded and steps > MAX_POINTER_STEPS:
            _refuse(at, f"has a pointer of {steps} steps; use at most {MAX_POINTER_STEPS}")
        return pointer

    def parse_text(self, value: Any, at: str) -> str:
        """Return a text and count its characters."""
        if not isinstance(value, str):
            _refuse(at, describe_not_text(value))
        self._characters += len(value)
        if self._bounded and self._characters > MAX_FILTER_CHARS:
            _refuse(at, f"the filter has more than {MAX_FILTER_CHARS} characters; ask for less")
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(at, "has half a surrogate pair, which is in no text; leave it out")
        return value


def _decode_filter(value: object) -> object:
    """Decode a text as JSON or as the short form; return any other value as it is."""
    if not isinstance(value, str):
        return value
    text = value.lstrip()
    if len(text) > MAX_FILTER_CHARS:
        raise ValueError(f"the filter has more than {MAX_FILTER_CHARS} characters; ask for less")
    if not text:
        raise ValueError("an empty filter; write such as key=ada, or leave it out")
    if text[0] not in "{[":
        return ShortCondition.parse(text)
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error}); check its quotes and brackets") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _refuse_unknown_keys(value: Mapping[Any, Any], known: Iterable[str], at: str) -> None:
    for name in value:
        if name not in known:
            _refuse(at, f"unknown key {safe_repr(name)}; {suggest(str(name), known)}")


def _parse_flag(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        _refuse(at, f"expects true or false, not {_describe(value)}; write one of them")
    return value


def _encode_text(condition: str | Condition) -> bytes | Condition:
    return condition.encode() if isinstance(condition, str) else condition


def _join_path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _describe(value: object) -> str:
    return "null" if value is None else safe_repr(value)


def _refuse(at: str, message: str) -> NoReturn:
    raise ValueError(f"{at}: {message}" if at else message)
