"""Share what works have in common: a start of all clients together, and failures as notes.

A work is a module with `run(kafka, peer, size) -> Cell`, and its `Size`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from support.waiting import wait_until

from ..client_pool import CLIENT_TIMEOUT_S, ClientPool, connect_ledgers
from ..feed import Feed
from ..ledger import Ledger
from ..peers.peer import Peer, RunningServer
from ..results import Cell

QUIET_S, SLOW_QUIET_S = 0.1, 1.0  # s without a record; of who is quick, and of who is not


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
        key_count = client_count if has_own_keys else 0
        await warm_up(server, crowd.get_record_count, client_count, key_count, partitions)
        crowd.arrivals.clear()
        yield crowd


@asynccontextmanager
async def open_reader(server: RunningServer, partitions: int = 12) -> AsyncIterator[Ledger]:
    """One more client, which reads every byte, and has shown that it gets every record."""
    reader = Ledger(server.dictionary)
    await connect_ledgers([reader], server.port, server.build_request)
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

    get_count: of records that came, at all clients together. Raises TimeoutError if that does not
    happen within `CLIENT_TIMEOUT_S`.
    """
    ends, slow = time.monotonic() + CLIENT_TIMEOUT_S, SLOW_QUIET_S
    count, due = key_count or partition_count, key_count or partition_count * client_count
    while not await _run_warm_up_round(server.feed, get_count, count, due, bool(key_count), slow):
        if time.monotonic() > ends:
            raise TimeoutError("no warming round came to everybody, and once")
        slow *= 2  # where a machine pauses for longer, the rest of each round was in the next


async def _run_warm_up_round(
    feed: Feed, get_count: Callable[[], int], count: int, due: int, has_keys: bool, quiet_s: float
) -> bool:
    """Did one record of each partition, or key, come to everybody? quiet_s: without a record after
    which the rest of them is not waited for."""
    due += get_count()
    for n in range(count):
        feed.send(key=n if has_keys else None)
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
