"""Define the goals of the jobs on two cores, and compare a run with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..figure import Figure
from ..results import format_number


class Goal(NamedTuple):
    """Of the figures of a measurement that begin with `begins` and end with `ends`. least: the
    value is to be at least `bound`, else at most."""

    name: str
    prefix: str
    bound: float
    is_minimum: bool = False
    suffix: str = ""

    def applies_to(self, name: str, figure: Figure) -> bool:
        what = figure.what
        return name == self.name and what.startswith(self.prefix) and what.endswith(self.suffix)

    def judge_value(self, value: float) -> str:
        met = value >= self.bound if self.is_minimum else value <= self.bound
        sign = "at least" if self.is_minimum else "at most"
        return f"{sign} {format_number(self.bound)}: {'met' if met else '**no**'}"


GOALS: Sequence[Goal] = (
    Goal("sessions", "closed, Spark's own, 50,000 users", 15e3, is_minimum=True),
    Goal("join", "join ", 30e3, is_minimum=True, suffix=", warm"),
    Goal("enrich", "Redis, 1,000,000 users, all missed", 80e3, is_minimum=True),
    Goal("enrich", "first enriched row", 2),
    # 2 at the lookup; the rest is the pause between writes, and the way from there into the row.
    Goal("enrich", "oldest value in a row", 2.5),
    Goal("restart", "query start to first batch, clean, 1,000,000", 6),
    Goal("restart", "query start to first batch, snapshot truncated", 8),
    Goal("latency", "micro-batch, stateless, received, p99", 450),
    Goal("latency", "micro-batch, window count, received, p99", 1000),
    Goal("latency", "real-time, stateless, received, p99", 50),
    Goal("exactly_once", "exactly once to plain sink", 0.5, is_minimum=True),
    Goal("exactly_once", "small batch, transactions", 100),
)


def judge_figure(name: str, figure: Figure) -> str:
    """What the goal of a figure is and whether it is met; nothing if it has none."""
    return "; ".join(
        goal.judge_value(figure.value) for goal in GOALS if goal.applies_to(name, figure)
    )


def find_missing(name: str, figures: Iterable[Figure]) -> Iterator[str]:
    """Beginnings of figures that there is a goal for, and no figure."""
    found = list(figures)
    for goal in GOALS:
        if goal.name == name and not any(goal.applies_to(name, figure) for figure in found):
            yield goal.prefix
