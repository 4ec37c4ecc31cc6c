"""Read SQL without Spark, as far as the measures of sessions need that; the rest is left to Spark.

`session_processor` merges the measures of session pieces in Python, if they are of
`MERGEABLE_KINDS`. `first` and `last` go by event time, and for equal times by partition and offset,
so that a replay that reads the events in another order has the same result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from gateway.config.types.substitution import suggest
from gateway.pipeline.inputs.types import RECORD_COLUMN_TYPES

# Text in quotes, names in backticks, and comments, as Spark's lexer reads them.
_OPAQUE_PATTERN = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | r?'(?:[^'\\]|\\.|'')*' | r?"(?:[^"\\]|\\.|"")*" | `[^`]*`""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def strip_opaque(sql: str) -> str:
    """Return SQL without comments, and without what is in quotes."""
    return _OPAQUE_PATTERN.sub("", sql)


def check_columns(option: str, names: Iterable[str], columns: Collection[str]) -> Iterator[str]:
    """Yield a problem for each name that is not a column. Case does not count, as in Spark."""
    known = {*columns, *RECORD_COLUMN_TYPES}
    folded = {column.lower() for column in known}
    for name in dict.fromkeys(names):
        if columns and name.lower() not in folded:
            yield f"{option}: there is no column '{name}'; {suggest(name, known)}"


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


def _parse_measure(name: str, expression: str) -> Measure:
    match = _CALL_PATTERN.fullmatch(expression)
    plain = strip_opaque(match[2]) if match else ""
    depths = list(accumulate((char == "(") - (char == ")") for char in plain))
    # The first parenthesis of `sum(a) / sum(b)` is not closed by the last one.
    if match is None or (depths and (min(depths) < 0 or depths[-1])):
        return Measure(name, expression, None, expression)
    kind, argument = match[1].lower(), match[2].strip()
    is_distinct = argument[:8].lower().strip() == "distinct"
    has_several = any(char == "," and not depth for char, depth in zip(plain, depths, strict=True))
    is_mergeable = kind in MERGEABLE_KINDS and not is_distinct and not has_several and argument
    return Measure(name, expression, kind if is_mergeable else None, argument)


def describe_unsupported_key(name: str) -> str:
    problem = f"by: '{name}' is not a plain value, which emit: updates and maxLength need"
    return f"{problem}; select a part of it in a job before this one, or convert it with to_json"


def describe_unsupported_measure(measure: Measure, type_name: str) -> str:
    problem = f"emit: updates and maxLength do not support {measure.kind} of {type_name}"
    return f"measures.{measure.name}: {problem}; use a plain value, such as a part of it"


def format_interval(seconds: float) -> str:
    """Return a duration as Spark's SQL writes it."""
    return f"{round(1e6 * seconds)} microseconds"
