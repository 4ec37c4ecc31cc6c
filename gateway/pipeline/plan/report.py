"""A plan, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .sizing import Line, Plan

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))


def as_text(made: Plan) -> str:
    return "\n".join(_lines(made))


def as_json(made: Plan) -> dict[str, Any]:
    return {
        "lines": [line._asdict() for line in made.lines],
        "refused": made.refused,
        "told": made.told,
    }


def shown(line: Line) -> str:
    """`2.0 GB`, `16 s`, `4.2 min`"""
    if line.unit in ("bytes", "bytes/s"):
        return _size(line.value) + line.unit.removeprefix("bytes")
    if line.unit == "s":
        return _time(line.value)
    number = (
        f"{line.value:,.0f}" if line.value >= 10 or line.value % 1 == 0 else f"{line.value:.1f}"
    )
    return f"{number}{'' if line.unit in ('%', '/s') else ' '}{line.unit}".rstrip()


def _lines(made: Plan) -> Iterator[str]:
    name = max(len(line.name) for line in made.lines)
    value = max(len(shown(line)) for line in made.lines)
    for line in made.lines:
        yield f"{line.name:<{name}}  {shown(line):>{value}}  {line.why}"
    yield from (f"note: {each}" for each in made.told)
    yield from (f"not on this design: {each}" for each in made.refused)


def _size(value: float) -> str:
    for size, unit in _SIZES:
        if value >= size:
            return f"{value / size:,.3g} {unit}" if value < 1e15 else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"


def _time(value: float) -> str:
    if value >= 7200:
        return f"{value / 3600:.3g} h"
    return f"{value / 60:.3g} min" if value >= 120 else f"{value:.3g} s"
