"""What works share: rows, repeats, a start that everybody took part in, and what was odd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from support.until import until

from ..crowd import PATIENCE, Crowd
from ..exact import Exact, connect
from ..feed import Feed
from ..figure import median, quantile
from ..machine import Cost
from ..peers.peer import Peer, Served

PER_CPU = "deliveries of a CPU second"
PER_SECOND = "deliveries of a second"
ROUNDS = "rounds of a second"
STILL, SLOW = 0.1, 1.0  # s without a record; of who is quick, and of who is not
RATED = (PER_CPU, PER_SECOND)
PACED = ", paced"  # ends the case of a bare loop that does not go back to back


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


@contextmanager
def alone(cell: Cell, case: str) -> Iterator[None]:
    """A case that fails is told, and the others are kept."""
    try:
        yield
    except (TimeoutError, OSError) as error:
        cell.note(f"{case}: failed, {error!r}")


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
        await warm(served, crowd.count, count, count if keys else 0, partitions)
        crowd.times.clear()
        yield crowd


@asynccontextmanager
async def reader_of(served: Served, peer: Peer, partitions: int = 12) -> AsyncIterator[Exact]:
    """One more client, which reads every byte, and has shown that it gets every record."""
    reader = Exact(peer.wire)
    await connect([reader], served.port, served.request)
    try:
        await warm(served, lambda: reader.got, 1, partitions=partitions)
        yield reader
    finally:
        reader.cut()


async def join(crowd: Crowd, served: Served, peer: Peer, count: int, timed: int = 0) -> None:
    request, greeting = served.request, peer.greeting
    await crowd.open(served.port, count, lambda n: request(n, b""), greeting, timed=timed)


async def warm(
    served: Served, got: Callable[[], int], clients: int, keys: int = 0, partitions: int = 12
) -> None:
    """Send a few records, until a round of them has come to everybody, once, and all is still.

    got: records that came, at all clients together. Raises TimeoutError if that does not happen
    within `PATIENCE`.
    """
    ends, slow = time.monotonic() + PATIENCE, SLOW
    while not await _round(served.feed, got, clients, keys, partitions, slow):
        if time.monotonic() > ends:
            raise TimeoutError("no warming round came to everybody, and once")
        slow *= 2  # where a machine pauses for longer, the rest of each round was in the next


async def _round(
    feed: Feed, got: Callable[[], int], clients: int, keys: int, partitions: int, slow: float
) -> bool:
    """Did one record of each partition, or key, come to everybody? slow: s without a record after
    which the rest of them is not waited for."""
    due = got() + (keys or partitions * clients)
    for n in range(keys or partitions):
        feed.send(key=n if keys else None)
    with suppress(TimeoutError):
        await until(lambda: got() >= due, within=1.0)
    # The rest of a round that is under way must not become part of the next.
    await quiet(got, STILL if got() >= due else slow)
    return got() == due


async def quiet(got: Callable[[], int], still: float = STILL) -> None:
    """Until nothing has come for a moment."""
    before = -1
    while got() != before:
        before = got()
        await asyncio.sleep(still)
