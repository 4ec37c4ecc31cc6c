"""Conditions in short, for an address or a command line; several hold together.

    key=ada  key^=a  header.region=eu  /amount>=10  /amount<20  /status=in(a,b)  /email  !/email

A name or list in which `=`, `<`, `>`, `^` or a comma stands is written as JSON.
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
    """part: `key`, `headers` or `value`. name: of the header, or the pointer; empty for a key."""

    part: str
    name: str
    condition: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> ShortCondition:
        """Raises ValueError saying what to write."""
        found = _SHORT_FORM.fullmatch(text)
        if found is None or (found[1] and found[5]):
            raise ValueError(
                f"{safe_repr(text)} is not understood; write such as key=ada, key^=a, "
                "header.region=eu, /amount>=10, /status=in(a,b), /email or !/email, "
                'or JSON such as {"key": "ada"}'
            )
        condition = _build_condition(found[5], found[6]) if found[5] else {"exists": not found[1]}
        if found[2]:
            return cls("key", "", condition)
        return (
            cls("headers", found[3], condition) if found[3] else cls("value", found[4], condition)
        )


def merge_conditions(short_conditions: Iterable[ShortCondition]) -> list[dict[str, Any]]:
    """Filters, all of which must match, as few as can be: /a>=1 and /a<9 are one range.

    The first `/a>=` goes into the first of them, the second into the second: each has one place,
    which nobody looks for.
    """
    rounds: list[dict[tuple[str, str], dict[str, Any]]] = []
    before: Counter[tuple[str, str, str]] = Counter()
    for part, name, condition in sorted(short_conditions, key=repr):
        (kind,) = condition
        at = before[part, name, kind]
        before[part, name, kind] += 1
        if at == len(rounds):
            rounds.append({})
        rounds[at].setdefault((part, name), {}).update(condition)
    return [_build_filter(conditions) for conditions in rounds]


def _build_condition(operator: str, text: str) -> dict[str, Any]:
    if operator != "=":
        return {_OPERATORS[operator]: text}
    if text.startswith("in(") and text.endswith(")"):
        return {"in": text[3:-1].split(",")}
    return {"in": [text]}


def _build_filter(conditions: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for (part, name), condition in conditions.items():
        if part == "key":
            made[part] = condition
        else:
            made.setdefault(part, {})[name] = condition
    return made
