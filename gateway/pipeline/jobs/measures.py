"""Aggregates that merge: what of a measure's SQL can be kept where Spark's own aggregation is not.

`first` and `last` are those by event time, and among equal times by partition and offset: what a
replay reads in another order must come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import sql

KINDS = ("count", "sum", "min", "max", "first", "last")
ORDERED = ("first", "last")

_CALL = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)


class Measure(NamedTuple):
    """kind: one of KINDS, or None where only Spark can tell. argument: SQL, `*` for all rows."""

    name: str
    text: str
    kind: str | None
    argument: str

    @property
    def ordered(self) -> bool:
        return self.kind in ORDERED


def measures(settings: Mapping[str, str]) -> tuple[Measure, ...]:
    """In the order they are written in."""
    return tuple(_read(name, text) for name, text in settings.items())


def problems(settings: Mapping[str, str], columns: Mapping[str, str]) -> Iterable[str]:
    """Columns that measures name and the input lacks. columns: nothing, if they are not known."""
    for name, text in settings.items():
        yield from sql.lacking(f"measures.{name}", sql.named(text), columns)


def _read(name: str, text: str) -> Measure:
    match = _CALL.fullmatch(text)
    if match is None or not _one_call(match[2]):
        return Measure(name, text, None, text)
    kind, argument = match[1].lower(), match[2].strip()
    distinct = argument[:8].lower().strip() == "distinct"
    several = any(word.text == "," for word in _outer(argument))
    known = kind in KINDS and not distinct and not several and argument
    return Measure(name, text, kind if known else None, argument)


def _one_call(inside: str) -> bool:
    """Does the bracket that the call opens close at its end? Not in `sum(a) / sum(b)`."""
    depth = 0
    for word in sql.words(inside):
        depth += (word.text == "(") - (word.text == ")")
        if depth < 0:
            return False
    return depth == 0


def _outer(argument: str) -> Iterable[sql.Word]:
    depth = 0
    for word in sql.words(argument):
        depth += (word.text == "(") - (word.text == ")")
        if depth == 0:
            yield word


def no_key(name: str) -> str:
    """Return what is wrong with a column of a nested type in `by`."""
    what = f"by: '{name}' is no plain value, which emit: updates and maxLength need"
    return f"{what}; name a part of it in a job before, or take its to_json"


def not_kept(measure: Measure, kind: str) -> str:
    """Return what is wrong with a measure whose values do not merge."""
    what = f"measures.{measure.name}: with emit: updates and maxLength no {measure.kind} of {kind}"
    return f"{what} is kept; use a plain value, such as a part of it"
