"""Parse measures, to find out which of them can be merged without Spark's aggregation.

`session_processor` merges the measures of session pieces in Python. `first` and `last` go by event
time, and for equal times by partition and offset, so that a replay that reads the events in another
order has the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import sql

MERGEABLE_KINDS = ("count", "sum", "min", "max", "first", "last")
"""The aggregates that can be merged."""
ORDERED_KINDS = ("first", "last")
"""The aggregates that depend on the order of events."""

_CALL_PATTERN = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)


class Measure(NamedTuple):
    """A measure of a job.

    Attributes:
        kind: One of `MERGEABLE_KINDS`, or None if the measure cannot be merged.
        argument: The SQL of the aggregate's argument, `*` for all rows; the whole expression if
            `kind` is None and it is not a single call.
    """

    name: str
    expression: str
    kind: str | None
    argument: str

    @property
    def is_ordered(self) -> bool:
        return self.kind in ORDERED_KINDS


def parse_measures(settings: Mapping[str, str]) -> tuple[Measure, ...]:
    return tuple(_parse_measure(name, text) for name, text in settings.items())


def check_measures(settings: Mapping[str, str], columns: Mapping[str, str]) -> Iterable[str]:
    """Yield a problem for each unknown column of a measure, if the columns are known."""
    for name, text in settings.items():
        yield from sql.check_columns(f"measures.{name}", sql.iter_columns(text), columns)


def _parse_measure(name: str, expression: str) -> Measure:
    match = _CALL_PATTERN.fullmatch(expression)
    if match is None or not _is_single_call(match[2]):
        return Measure(name, expression, None, expression)
    kind, argument = match[1].lower(), match[2].strip()
    is_distinct = argument[:8].lower().strip() == "distinct"
    has_several = any(token.text == "," for token in _iter_top_level_tokens(argument))
    is_mergeable = kind in MERGEABLE_KINDS and not is_distinct and not has_several and argument
    return Measure(name, expression, kind if is_mergeable else None, argument)


def _is_single_call(arguments: str) -> bool:
    """Return whether the first parenthesis of an expression is closed by its last one.

    This is not so for `sum(a) / sum(b)`. The text between these two parentheses is given.
    """
    depth = 0
    for token in sql.tokenize(arguments):
        depth += (token.text == "(") - (token.text == ")")
        if depth < 0:
            return False
    return depth == 0


def _iter_top_level_tokens(argument: str) -> Iterable[sql.SqlToken]:
    depth = 0
    for token in sql.tokenize(argument):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            yield token


def describe_unsupported_key(name: str) -> str:
    problem = f"by: '{name}' is not a plain value, which emit: updates and maxLength need"
    return f"{problem}; select a part of it in a job before this one, or convert it with to_json"


def describe_unsupported_measure(measure: Measure, type_name: str) -> str:
    problem = f"emit: updates and maxLength do not support {measure.kind} of {type_name}"
    return f"measures.{measure.name}: {problem}; use a plain value, such as a part of it"
