"""Define the goals of this gateway on two cores, and tell which of them a run misses.

A goal is meant: missing it is a regression, or a machine that is too busy. Behind it may be a
stretch goal, which nothing has reached yet, or only on some machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .results import PER_CPU, Run, format_number

READ_SHARE = "read from Kafka, of the values' bytes"
LIBRARY_SHARE = "of the library's"
LAST_WHOLE = "whole and live, the last"
CALLBACK = "longest callback, cpu"


class Goal(NamedTuple):
    """Of a figure of the cases that begin with `case`, and of the peers that begin with `peer`.

    The value is to be at most `bound`, or at least that if is_minimum. is_raw_share: the share of
    the raw loop's is meant.
    """

    work: str
    what: str
    bound: float | None
    stretch: float | None = None
    case: str = ""
    peer: str = "gateway"
    is_minimum: bool = False
    is_raw_share: bool = False


GOALS = (
    Goal("broadcast", PER_CPU, 0.5, 1.0, is_minimum=True, is_raw_share=True),
    Goal("lat", PER_CPU, 65e3, 180e3, is_minimum=True),
    Goal("lat", "latency p50", 5, 3),
    Goal("lat", "latency p99", 15, 10),
    Goal("sat", "delivered in time", 100, is_minimum=True),
    Goal("sat", "of a core", 40),
    Goal("sat", PER_CPU, 1e6, is_minimum=True),
    Goal("sat", "latency p99", 120, 60),
    Goal("keys", PER_CPU, 13e3, 40e3, is_minimum=True),
    Goal("idle", "PSS of a client", 5, peer="gateway-sse"),
    Goal("idle", "PSS of a client", 8, peer="gateway-ws"),
    Goal("storm", "CPU of a client", 0.4, 0.15),
    Goal("storm", "last first block", 2, 0.8),
    Goal("partitions", "of 12 partitions", 0.35, 0.8, "1,000 ", is_minimum=True),
    *(Goal(work, "lost", 0) for work in ("catchup", "crowd", "overload")),
    *(Goal(work, "twice", 0) for work in ("catchup", "crowd", "overload")),
    Goal("catchup", "damaged", 0),
    *(Goal("catchup", "CPU", 2, case=case) for case in ("cut", "restart")),
    *(Goal("catchup", LAST_WHOLE, 3, 2, case) for case in ("cut", "restart")),
    *(Goal("catchup", READ_SHARE, 2.2, case=case) for case in ("cut", "restart")),
    Goal("loop", CALLBACK, 10),
    Goal("crowd", "memory of a client", 3, peer="gateway-sse"),
    Goal("crowd", "last delivery", 500, 200),
    Goal("crowd", "all back", 20, 8),
    Goal("million", "memory of a client", 2.5, case="1,000,000"),
    Goal("million", "CPU of a record", 1.5, case="1,000,000"),
    Goal("million", CALLBACK, 20, case="1,000,000"),
    Goal("million", "longest pause of the collector", 50, case="1,000,000"),
    Goal("million", "a scrape", 50, case="1,000,000"),
    Goal("overload", "refused without Retry-After", 0),
    Goal("overload", "without an answer", 0),
    Goal("overload", "normal again", 5),
    Goal("begin", "latency p50", 10, 5, "warm"),
    Goal("begin-leaderless", "latency p50", 200, 100),
    Goal("failover", "after a producer could write", 1, 0.3),
    *(
        Goal("rebalance", "its partitions silent", bound, None, f"{protocol}, {ending}", "sidecar")
        for protocol in ("KIP-848", "cooperative")
        for ending, bound in (
            ("leaves", 0.25), ("another one is ready for 5 s", 0.25), ("killed", 7),
            ("static", 2.25),
        )
    ),
    Goal("rebalance", "REBALANCING", 0.1, case="KIP-848", peer="sidecar"),
    Goal("rolling", "records lost", 0),
    Goal("rolling", "records twice", 0),
    Goal("console", "tasks of 50 ms and more", 0, case="partitions, at rest"),
    *(
        Goal(f"sidecar-{work}", LIBRARY_SHARE, bound, stretch, "sidecar", "sidecar", True)
        for work, bound, stretch in (("produce", 0.4, 0.5), ("consume", 0.35, 0.4))
    ),
    *(
        Goal(f"spark-{work}", what, bound, case=case, peer="spark", is_minimum=True)
        for work, case, what, bound in (
            ("sessions", "closed, Spark's own, 50,000 users", "events", 15e3),
            ("join", "join ", "records", 30e3),
            ("enrich", "Redis, 1,000,000 users, all missed", "records", 80e3),
            ("exactly_once", "exactly once to plain sink", "ratio", 0.5),
        )
    ),
    *(
        Goal(f"spark-{work}", what, bound, case=case, peer="spark")
        for work, case, what, bound in (
            ("enrich", "the next job's in this JVM", "first enriched row", 2),
            # 2 at the lookup; the rest is the pause between writes, and the way into the row.
            ("enrich", "bound 2 s at the lookup", "oldest value in a row", 2.5),
            ("restart", "clean, 1,000,000", "start to first batch", 6),
            ("restart", "snapshot truncated, 1,000,000", "start to first batch", 8),
            ("latency", "micro-batch, stateless", "received p99", 450),
            ("latency", "micro-batch, window count", "received p99", 1000),
            ("latency", "real-time, stateless", "received p99", 50),
        )
    ),
    Goal("spark-exactly_once", "transactions", 150, 100, "small batch", "spark"),
    *(
        Goal("attacks", what, bound, stretch, peer="")
        for what, bound, stretch in (
            ("p99", 60, None), ("p99 to idle", None, 2), (CALLBACK, 50, 20), ("lost", 0, None),
            ("twice", 0, None), ("MiB beyond", 64, None), ("longest id", 512, None),
            ("not let in", 0, None), ("beyond its limits", 0, None),
        )
    ),
)  # fmt: skip


class Miss(NamedTuple):
    """A goal that was missed. cells: of a line of the page."""

    case: str
    what: str
    is_stretch: bool
    cells: tuple[str, ...]


def judge(run: Run) -> tuple[list[Miss], int, int]:
    """Return what was missed, and how many goals and stretch goals were looked at."""
    misses: list[Miss] = []
    counts = [0, 0]
    for goal in GOALS:
        for cell in run.cells:
            if cell.work != goal.work or not cell.peer.startswith(goal.peer):
                continue
            for row in cell.rows:
                if row.what != goal.what or not row.case.startswith(goal.case):
                    continue
                value = run.get_raw_share(cell, row) if goal.is_raw_share else row.value
                for is_stretch, bound in enumerate((goal.bound, goal.stretch)):
                    if value is None or bound is None:
                        continue
                    counts[is_stretch] += 1
                    if value < bound if goal.is_minimum else value > bound:
                        sign = "at least" if goal.is_minimum else "at most"
                        unit = "of raw" if goal.is_raw_share else row.unit
                        wanted = f"{sign} {format_number(bound)} {unit}".strip()
                        label = "stretch" if is_stretch else "**no**"
                        found = format_number(value)
                        line = goal.work, row.case, cell.peer, row.what, wanted, found, label
                        misses.append(Miss(row.case, row.what, bool(is_stretch), line))
    return sorted(misses, key=lambda miss: miss.is_stretch), counts[0], counts[1]


def render_goals(run: Run) -> Iterator[str]:
    """Tell how many goals are met, and which are not; nothing if the run has none."""
    misses, goal_count, stretch_count = judge(run)
    if not goal_count + stretch_count:
        return
    stretches = sum(miss.is_stretch for miss in misses)
    met, reached = goal_count - len(misses) + stretches, stretch_count - stretches
    yield from ("## Goals", "", f"{met} of {goal_count} goals are met.")
    if stretch_count:
        yield f"Of {stretch_count} stretch goals {reached} are reached."
    if misses:
        yield from (
            "",
            "| work | case | peer | what | goal | found | |",
            "|---|---|---|---|---:|---:|---|",
        )
        yield from (f"| {' | '.join(miss.cells)} |" for miss in misses)
