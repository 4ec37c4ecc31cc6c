"""Aggregates that merge: what of a measure's SQL can be kept where Spark's own aggregation is not.

`first` and `last` are those by event time, and among equal times by partition and offset: what a
replay reads in another order must come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import sql

MERGEABLE_KINDS = ("count", "sum", "min", "max", "first", "last")
ORDERED_KINDS = ("first", "last")

_CALL_PATTERN = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)


class Measure(NamedTuple):
    """kind: one of KINDS, or None where only Spark can tell. argument: SQL, `*` for all rows."""

    name: str
    expression: str
    kind: str | None
    argument: str

    @property
    def is_ordered(self) -> bool:
        return self.kind in ORDERED_KINDS


def parse_measures(settings: Mapping[str, str]) -> tuple[Measure, ...]:
    """In the order they are written in."""
    return tuple(_parse_measure(name, text) for name, text in settings.items())


def check_measures(settings: Mapping[str, str], columns: Mapping[str, str]) -> Iterable[str]:
    """Columns that measures name and the input lacks. columns: nothing, if they are not known."""
    for name, text in settings.items():
        yield from sql.check_columns(f"measures.{name}", sql.iter_columns(text), columns)


def _parse_measure(name: str, expression: str) -> Measure:
    match = _CALL_PATTERN.fullmatch(expression)
    if match is None or not _is_single_call(match[2]):
        return Measure(name, expression, None, expression)
    kind, argument = match[1].lower(), match[2].strip()
    distinct = argument[:8].lower().strip() == "distinct"
    several = any(word.text == "," for word in _iter_top_level_tokens(argument))
    known = kind in MERGEABLE_KINDS and not distinct and not several and argument
    return Measure(name, expression, kind if known else None, argument)


def _is_single_call(arguments: str) -> bool:
    """Does the bracket that the call opens close at its end? Not in `sum(a) / sum(b)`."""
    depth = 0
    for word in sql.tokenize(arguments):
        depth += (word.text == "(") - (word.text == ")")
        if depth < 0:
            return False
    return depth == 0


def _iter_top_level_tokens(argument: str) -> Iterable[sql.SqlToken]:
    depth = 0
    for word in sql.tokenize(argument):
        depth += (word.text == "(") - (word.text == ")")
        if depth == 0:
            yield word


def describe_unsupported_key(name: str) -> str:
    """Return what is wrong with a column of a nested type in `by`."""
    what = f"by: '{name}' is no plain value, which emit: updates and maxLength need"
    return f"{what}; name a part of it in a job before, or take its to_json"


def describe_unsupported_measure(measure: Measure, type_name: str) -> str:
    """Return what is wrong with a measure whose values do not merge."""
    what = f"no {measure.kind} of {type_name} is kept"
    options = "with emit: updates and maxLength"
    return f"measures.{measure.name}: {options} {what}; use a plain value, such as a part of it"
