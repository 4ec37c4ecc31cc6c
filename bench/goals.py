"""Define the goals of this gateway, and print whether a run meets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .journal import Run
from .results import format_number
from .works.transfer import LIBRARY_SHARE
from .works.work import PER_CPU, Row

GATEWAY_PEERS = ("gateway-sse", "gateway-ws")
SSE_PEER, WS_PEER = GATEWAY_PEERS


class Goal(NamedTuple):
    """what: a row's, of the cases that begin with `case`. least: the value is to be at least
    `bound`, else at most. of_raw: the share of the raw loop's is meant."""

    work: str
    case: str
    what: str
    bound: float
    is_minimum: bool = False
    is_raw_share: bool = False
    peers: Sequence[str] = GATEWAY_PEERS


GOALS = (
    Goal("broadcast", "", PER_CPU, 1.0, is_minimum=True, is_raw_share=True),
    Goal("lat", "", PER_CPU, 180e3, is_minimum=True),
    Goal("lat", "", "latency p50", 3),
    Goal("lat", "", "latency p99", 10),
    Goal("sat", "", "delivered in time", 100, is_minimum=True),
    Goal("sat", "", "of a core", 40),
    Goal("sat", "", PER_CPU, 1e6, is_minimum=True),
    Goal("sat", "", "latency p99", 60),
    Goal("keys", "", PER_CPU, 40e3, is_minimum=True),
    Goal("idle", "", "PSS of a client", 5, peers=(SSE_PEER,)),
    Goal("idle", "", "PSS of a client", 8, peers=(WS_PEER,)),
    Goal("storm", "", "CPU of a client", 0.15),
    Goal("storm", "", "last first block", 0.8),
    Goal("first", "", "latency p50", 2),
    Goal("partitions", "1,000 ", "of 12 partitions", 0.8, is_minimum=True),
    Goal("catchup", "", "lost", 0),
    Goal("catchup", "", "twice", 0),
    Goal("catchup", "", "damaged", 0),
    Goal("catchup", "cut", "CPU", 2),
    Goal("catchup", "restart", "CPU", 2),
    Goal("catchup", "cut", "whole and live, the last", 2),
    Goal("catchup", "restart", "whole and live, the last", 2),
    Goal("catchup", "cut", "read from Kafka, of the values' bytes", 2.2),
    Goal("catchup", "restart", "read from Kafka, of the values' bytes", 2.2),
    Goal("loop", "", "longest callback, cpu", 10),
    Goal("crowd", "", "lost", 0),
    Goal("crowd", "", "twice", 0),
    Goal("crowd", "", "memory of a client", 3, peers=(SSE_PEER,)),
    Goal("crowd", "", "last delivery", 200),
    Goal("crowd", "", "all back", 8),
    Goal("million", "1,000,000", "memory of a client", 2.5),
    Goal("million", "1,000,000", "CPU of a record", 1.5),
    Goal("million", "1,000,000", "longest callback, cpu", 20),
    Goal("million", "1,000,000", "longest pause of the collector", 50),
    Goal("million", "1,000,000", "a scrape", 50),
    Goal("overload", "", "lost", 0),
    Goal("overload", "", "twice", 0),
    Goal("overload", "", "refused without Retry-After", 0),
    Goal("overload", "", "without an answer", 0),
    Goal("overload", "", "normal again", 5),
    Goal("telemetry", "", "of what it does without", 95, is_minimum=True),
    Goal("telemetry", "", "a scrape", 50),
    Goal("sidecar-produce", "sidecar", LIBRARY_SHARE, 0.5, is_minimum=True, peers=("sidecar",)),
    Goal("sidecar-consume", "sidecar", LIBRARY_SHARE, 0.4, is_minimum=True, peers=("sidecar",)),
)


def render_goals(run: Run) -> Iterator[str]:
    """A Markdown table of the goals that the run has looked at; nothing if there are none."""
    lines = [line for goal in GOALS for line in _render_rows(run, goal)]
    if lines:
        yield from ("## Goals", "", "| work | case | peer | what | goal | found | |")
        yield "|---|---|---|---|---:|---:|---|"
        yield from lines


def _render_rows(run: Run, goal: Goal) -> Iterator[str]:
    for peer in goal.peers:
        cell = run.cells.get((goal.work, peer))
        for row in cell.rows if cell else ():
            if row.what == goal.what and row.case.startswith(goal.case):
                value = run.get_raw_share(goal.work, peer, row) if goal.is_raw_share else row.value
                paced = (
                    run.get_raw_share(goal.work, peer, row, is_paced=True)
                    if goal.is_raw_share
                    else None
                )
                if value is not None:
                    beside = "" if paced is None else f" ({format_number(paced)} of raw, paced)"
                    yield _render_row(goal, peer, row, value, beside)


def _render_row(goal: Goal, peer: str, row: Row, value: float, suffix: str) -> str:
    met = value >= goal.bound if goal.is_minimum else value <= goal.bound
    sign = "at least" if goal.is_minimum else "at most"
    unit = "of raw" if goal.is_raw_share else row.unit
    bound = f"{sign} {format_number(goal.bound)} {unit}"
    found = format_number(value) + suffix
    cells = (goal.work, row.case, peer, row.what, bound, found, "met" if met else "**no**")
    return "| " + " | ".join(cells) + " |"
