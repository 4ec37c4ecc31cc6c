"""Parse the short form of conditions, for an address or a command line.

All conditions of a text must hold:

    key=ada  key^=a  header.region=eu  /amount>=10  /amount<20  /status=in(a,b)  /email  !/email

A name or list that contains `=`, `<`, `>`, `^` or a comma must be written as JSON, and so must a
name that ends with `!`, and a value that begins with `=`, `<` or `>`: these look like operators.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from gateway.config.source.substitution import safe_repr

_SHORT_FORM = re.compile(
    r"(!?)(?:(key)|header\.([^=<>^]+)|(/[^=<>^]*))(?:(\^=|>=|<=|=|<|>)(.*))?", re.DOTALL
)
_OPERATORS = {"^=": "prefix", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


class ShortCondition(NamedTuple):
    """One condition of the short form.

    Attributes:
        part: `key`, `headers` or `value`.
        name: The name of the header, or the JSON pointer of the field; empty for a key.
        condition: The condition as JSON has it, with exactly one operator.
    """

    part: str
    name: str
    condition: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> ShortCondition:
        """Parse one condition; raise ValueError saying what to write."""
        match = _SHORT_FORM.fullmatch(text)
        if match is None or (match[1] and match[5]):
            raise ValueError(
                f"{safe_repr(text)} is not understood; write such as key=ada, key^=a, "
                "header.region=eu, /amount>=10, /status=in(a,b), /email or !/email, "
                'or JSON such as {"key": "ada"}'
            )
        if match[5] and (text[match.start(5) - 1] == "!" or match[6][:1] in ("=", "<", ">")):
            raise ValueError(
                f"{safe_repr(text)} has an unknown operator; use =, ^=, <, <=, > or >=, or "
                "JSON for a name or a value with such characters"
            )
        condition = _build_condition(match[5], match[6]) if match[5] else {"exists": not match[1]}
        if match[2]:
            return cls("key", "", condition)
        return (
            cls("headers", match[3], condition) if match[3] else cls("value", match[4], condition)
        )


def merge_conditions(short_conditions: Iterable[ShortCondition]) -> list[dict[str, Any]]:
    """Merge conditions into as few filters as possible, all of which must match.

    `/a>=1` and `/a<9` become one range. If a condition occurs twice for the same field with the
    same operator, the first goes into the first filter and the second into the second, so that the
    position in the result follows from counting, without a search.
    """
    merged: list[dict[tuple[str, str], dict[str, Any]]] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for part, name, condition in sorted(short_conditions, key=repr):
        (operator,) = condition
        index = seen[part, name, operator]
        seen[part, name, operator] += 1
        if index == len(merged):
            merged.append({})
        merged[index].setdefault((part, name), {}).update(condition)
    return [_build_filter(conditions) for conditions in merged]


def _build_condition(operator: str, text: str) -> dict[str, Any]:
    if operator != "=":
        return {_OPERATORS[operator]: text}
    if text.startswith("in(") and text.endswith(")"):
        return {"in": text[3:-1].split(",")}
    return {"in": [text]}


def _build_filter(conditions: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for (part, name), condition in conditions.items():
        if part == "key":
            result[part] = condition
        else:
            result.setdefault(part, {})[name] = condition
    return result
