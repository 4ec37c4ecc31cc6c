"""Format a plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .sizing import PlanLine, SizingPlan

_SIZE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))


def render_text(plan: SizingPlan) -> str:
    return "\n".join(_iter_lines(plan))


def to_json(plan: SizingPlan) -> dict[str, Any]:
    """Return a plan as a JSON object; sizes are in bytes and times in seconds."""
    return {
        "lines": [line._asdict() for line in plan.lines],
        "refused": plan.refused,
        "told": plan.notes,
    }


def format_value(line: PlanLine) -> str:
    """Return the value of a line with its unit, such as `2 GB`, `16 s` or `4.2 min`."""
    if line.unit in ("bytes", "bytes/s"):
        return _format_size(line.value) + line.unit.removeprefix("bytes")
    if line.unit == "s":
        return _format_time(line.value)
    number = (
        f"{line.value:,.0f}" if line.value >= 10 or line.value % 1 == 0 else f"{line.value:.1f}"
    )
    return f"{number}{'' if line.unit in ('%', '/s') else ' '}{line.unit}".rstrip()


def _iter_lines(plan: SizingPlan) -> Iterator[str]:
    name_width = max(len(line.name) for line in plan.lines)
    value_width = max(len(format_value(line)) for line in plan.lines)
    for line in plan.lines:
        yield f"{line.name:<{name_width}}  {format_value(line):>{value_width}}  {line.why}"
    yield from (f"note: {each}" for each in plan.notes)
    yield from (f"not on this design: {each}" for each in plan.refused)


def _format_size(value: float) -> str:
    for size, unit in _SIZE_UNITS:
        if value >= size:
            # From 1,000 TB on, `g` would switch to exponents.
            return f"{value / size:,.3g} {unit}" if value < 1e15 else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"


def _format_time(value: float) -> str:
    if value >= 7200:
        return f"{value / 3600:.3g} h"
    return f"{value / 60:.3g} min" if value >= 120 else f"{value:.3g} s"
