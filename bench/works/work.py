"""What works share: rows, repeats, a start that everybody took part in, and what was odd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ..crowd import PATIENCE, Crowd
from ..figure import median, quantile
from ..machine import Cost
from ..peers.peer import Peer, Served

PER_CPU = "deliveries of a CPU second"
PER_SECOND = "deliveries of a second"
RATED = (PER_CPU, PER_SECOND)


class Row(NamedTuple):
    """One number. case: under what (`200 clients`). low, high: of the repeats; n: how many."""

    case: str
    what: str
    value: float
    unit: str
    low: float
    high: float
    n: int


@dataclass
class Cell:
    """All that one work found of one peer. notes: what a reader must know of it. seconds: that
    it took, with starting and ending."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, case: str, what: str, unit: str, *values: float) -> None:
        """The median of the repeats."""
        low, high = min(values), max(values)
        self.rows.append(Row(case, what, median(values), unit, low, high, len(values)))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def watch(self, case: str, costs: Sequence[Cost]) -> None:
        """Say when it was not the server that was measured."""
        client = median([c.client / c.wall for c in costs])
        ours = median([c.ours / c.wall for c in costs])
        server, clients = (median([c.others[n] for c in costs]) for n in (0, 1))
        if client > 0.9:
            self.note(f"{case}: the clients took {client:.0%} of a core; they were the limit")
        elif ours > 0.9:
            self.note(f"{case}: clients, producer and Kafka took {ours:.0%} of their core")
        if max(server, clients) > 0.05:
            taken = f"{server:.0%} of the server's core, {clients:.0%} of the clients'"
            self.note(f"{case}: others took {taken}")

    def latencies(self, case: str, repeats: Sequence[Sequence[float]]) -> None:
        """In ms, from seconds; a quantile is not claimed of fewer samples than it needs."""
        for name, q, least in (("p50", 0.5, 1), ("p99", 0.99, 100), ("p99.9", 0.999, 1000)):
            if min(map(len, repeats)) >= least:
                found = [1000 * quantile(seconds, q) for seconds in repeats]
                self.add(case, f"latency {name}", "ms", *found)


@asynccontextmanager
async def crowd_of(
    served: Served,
    peer: Peer,
    count: int,
    *,
    keys: bool = False,
    partitions: int = 12,
    timed: int = 0,
) -> AsyncIterator[Crowd]:
    """So many clients, each of which has shown that it gets every record."""
    async with Crowd() as crowd:
        await join(crowd, served, peer, count, timed=timed)
        await warm(served, crowd, count if keys else 0, partitions)
        crowd.times.clear()
        yield crowd


async def join(crowd: Crowd, served: Served, peer: Peer, count: int, timed: int = 0) -> None:
    request, greeting = served.request, peer.greeting
    await crowd.open(served.port, count, lambda n: request(n, b""), greeting, timed=timed)


async def warm(served: Served, crowd: Crowd, keys: int = 0, partitions: int = 12) -> None:
    """Send a few records, until a round of them has come to everybody, once.

    Raises TimeoutError if that does not happen within `PATIENCE`.
    """
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        before = crowd.got
        for n in range(keys or partitions):
            served.feed.send(key=n if keys else None)
        due = before + (keys or partitions * len(crowd))
        await crowd.until(due, within=1.0)
        await quiet(crowd)
        if crowd.got == due:
            return
    raise TimeoutError(f"{crowd.got - before} of {due - before} records of a warming round came")


async def quiet(crowd: Crowd, still: float = 0.1) -> None:
    """Until nothing has come for a moment."""
    before = -1
    while crowd.got != before:
        before = crowd.got
        await asyncio.sleep(still)
