"""Define what works share: rows, repeats, a common start of all clients, and notes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from support.waiting import wait_until

from ..client_pool import CLIENT_TIMEOUT_S, ClientPool
from ..exact_client import ExactClient, connect_clients
from ..feed import Feed
from ..figure import median, quantile
from ..machine import Cost
from ..peers.peer import Peer, RunningServer

PER_CPU = "deliveries of a CPU second"
PER_SECOND = "deliveries of a second"
ROUNDS_PER_SECOND = "rounds of a second"
QUIET_S, SLOW_QUIET_S = 0.1, 1.0  # s without a record; of who is quick, and of who is not
RATE_FIGURES = (PER_CPU, PER_SECOND)
PACED_SUFFIX = ", paced"  # ends the case of a bare loop that does not go back to back


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

    def add_row(self, case: str, what: str, unit: str, *values: float) -> None:
        """The median of the repeats."""
        low, high = min(values), max(values)
        self.rows.append(Row(case, what, median(values), unit, low, high, len(values)))

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def add_cost_notes(self, case: str, costs: Sequence[Cost]) -> None:
        """Say when it was not the server that was measured."""
        client = median([c.client_cpu_s / c.wall_s for c in costs])
        ours = median([c.local_cpu_s / c.wall_s for c in costs])
        server, clients = (median([c.foreign_shares[n] for c in costs]) for n in (0, 1))
        if client > 0.9:
            self.add_note(f"{case}: the clients took {client:.0%} of a core; they were the limit")
        elif ours > 0.9:
            self.add_note(f"{case}: clients, producer and Kafka took {ours:.0%} of their core")
        if max(server, clients) > 0.05:
            taken = f"{server:.0%} of the server's core, {clients:.0%} of the clients'"
            self.add_note(f"{case}: others took {taken}")

    def add_latencies(self, case: str, repeats: Sequence[Sequence[float]]) -> None:
        """In ms, from seconds; a quantile is not claimed of fewer samples than it needs."""
        for name, q, least in (("p50", 0.5, 1), ("p99", 0.99, 100), ("p99.9", 0.999, 1000)):
            if min(map(len, repeats)) >= least:
                found = [1000 * quantile(seconds, q) for seconds in repeats]
                self.add_row(case, f"latency {name}", "ms", *found)


@contextmanager
def note_failure(cell: Cell, case: str) -> Iterator[None]:
    """A case that fails is told, and the others are kept."""
    try:
        yield
    except (TimeoutError, OSError) as error:
        cell.add_note(f"{case}: failed, {error!r}")


@asynccontextmanager
async def open_pool(
    server: RunningServer,
    peer: Peer,
    client_count: int,
    *,
    has_own_keys: bool = False,
    partitions: int = 12,
    timed_every: int = 0,
) -> AsyncIterator[ClientPool]:
    """So many clients, each of which has shown that it gets every record."""
    async with ClientPool() as crowd:
        await join_clients(crowd, server, peer, client_count, timed_every=timed_every)
        await warm_up(
            server,
            crowd.get_record_count,
            client_count,
            client_count if has_own_keys else 0,
            partitions,
        )
        crowd.arrivals.clear()
        yield crowd


@asynccontextmanager
async def open_reader(
    server: RunningServer, peer: Peer, partitions: int = 12
) -> AsyncIterator[ExactClient]:
    """One more client, which reads every byte, and has shown that it gets every record."""
    reader = ExactClient(peer.wire, server.dictionary)
    await connect_clients([reader], server.port, server.build_request)
    try:
        await warm_up(server, lambda: reader.record_count, 1, partition_count=partitions)
        yield reader
    finally:
        reader.disconnect()


async def join_clients(
    pool: ClientPool, server: RunningServer, peer: Peer, client_count: int, timed_every: int = 0
) -> None:
    request, greeting = server.build_request, peer.greeting
    await pool.open_clients(
        server.port, client_count, lambda n: request(n, b""), greeting, timed_every=timed_every
    )


async def warm_up(
    server: RunningServer,
    get_count: Callable[[], int],
    client_count: int,
    key_count: int = 0,
    partition_count: int = 12,
) -> None:
    """Send a few records, until a round of them has come to everybody, once, and all is still.

    got: records that came, at all clients together. Raises TimeoutError if that does not happen
    within `PATIENCE`.
    """
    ends, slow = time.monotonic() + CLIENT_TIMEOUT_S, SLOW_QUIET_S
    while not await _run_warm_up_round(
        server.feed, get_count, client_count, key_count, partition_count, slow
    ):
        if time.monotonic() > ends:
            raise TimeoutError("no warming round came to everybody, and once")
        slow *= 2  # where a machine pauses for longer, the rest of each round was in the next


async def _run_warm_up_round(
    feed: Feed,
    get_count: Callable[[], int],
    client_count: int,
    key_count: int,
    partition_count: int,
    quiet_s: float,
) -> bool:
    """Did one record of each partition, or key, come to everybody? slow: s without a record after
    which the rest of them is not waited for."""
    due = get_count() + (key_count or partition_count * client_count)
    for n in range(key_count or partition_count):
        feed.send(key=n if key_count else None)
    with suppress(TimeoutError):
        await wait_until(lambda: get_count() >= due, timeout_s=1.0)
    # The rest of a round that is under way must not become part of the next.
    await wait_until_quiet(get_count, QUIET_S if get_count() >= due else quiet_s)
    return get_count() == due


async def wait_until_quiet(get_count: Callable[[], int], quiet_s: float = QUIET_S) -> None:
    """Until nothing has come for a moment."""
    before = -1
    while get_count() != before:
        before = get_count()
        await asyncio.sleep(quiet_s)
