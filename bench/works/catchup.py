"""Clients that were cut come back: is all there that they missed, once, and at what cost?

`cut` is a net that went away for a moment, with the server running on; `restart` a server that
knows nothing but what the clients tell it; `deploy` more clients and more records behind. Records
flow meanwhile. A client is done when it has all that it missed and one made since.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import psutil
from support.proxy import Api, KafkaProxy

from ..exact import Exact, connect, received
from ..feed import steadily
from ..figure import median
from ..kafka import Kafka
from ..machine import Cost, cost
from ..peers.peer import Peer, Served, Shape
from ..records import SIZE
from .work import Cell, alone, quiet, warm

BATCH = 50
WITHIN = 60.0  # s; who comes back later than that is not waited for
STALLED = 5.0  # s without a record that was missed: no more of them will come
MB = 1e6
READ = "read from Kafka, of the values' bytes"


@dataclass(frozen=True)
class Case:
    """missed: records behind. restart: the server is ended and started meanwhile."""

    name: str
    clients: int
    missed: int
    restart: bool = False
    repeats: int = 1


CASES = (
    Case("cut", 500, 2000, repeats=5),
    Case("restart", 500, 2000, restart=True, repeats=5),
    Case("deploy", 1000, 10_000, restart=True),
)


@dataclass(frozen=True)
class Size:
    cases: Sequence[Case] = CASES
    rate: float = 100.0
    proxied: bool = True


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for case in size.cases:
        with alone(cell, case.name):
            await _case(cell, kafka, peer, case, size)
    return cell


async def _case(cell: Cell, kafka: Kafka, peer: Peer, case: Case, size: Size) -> None:
    async with (
        _proxy(kafka, size.proxied) as proxy,
        peer.serve(kafka, _shape(case, proxy)) as served,
    ):
        if case.restart and served.restart is None:
            cell.note(f"{case.name}: what it keeps is in memory, and gone with a restart")
            return
        clients = [Exact(peer.wire) for _ in range(case.clients)]
        await connect(clients, served.port, served.request)
        # A record of every partition, so that each has a token behind which it can be cut.
        await warm(served, partial(received, clients), len(clients))
        outcomes = list[Outcome]()
        # Where some were not whole the next time would show what is left of this one.
        while len(outcomes) < case.repeats and all(len(o.done) == len(clients) for o in outcomes):
            outcomes.append(await _come_back(case, served, clients, size.rate, proxy))
        _tell(cell, case, clients, outcomes)
        for client in clients:
            client.cut()


def _shape(case: Case, proxy: KafkaProxy | None) -> Shape:
    servers = "" if proxy is None else proxy.bootstrap
    return Shape(servers=servers, history=2 * case.missed + 5000)


@asynccontextmanager
async def _proxy(kafka: Kafka, wanted: bool) -> AsyncIterator[KafkaProxy | None]:
    if not wanted:
        yield None
        return
    async with KafkaProxy.around(kafka.servers) as proxy:
        yield proxy


@dataclass
class Outcome:
    """done: s until each client that ever was whole and live was so. in_time: all that will come
    came. share: what was read from Kafka, of the bytes of the values. peak: bytes of memory."""

    spent: Cost
    done: list[float]
    in_time: bool
    lost: int
    share: float
    fetches: int
    peak: float


async def _come_back(
    case: Case, served: Served, clients: list[Exact], rate: float, proxy: KafkaProxy | None
) -> Outcome:
    first, end = await _miss(served, clients, case)
    for client in clients:
        client.expect(first, end)
    since, read = time.monotonic(), _read(proxy)
    watching = asyncio.create_task(_peak(served.pid))
    tasks = [watching, asyncio.create_task(_flow(served, rate))]
    try:
        with cost(served.pid) as spent:
            connecting = asyncio.create_task(_connect(clients, served))
            tasks.append(connecting)
            in_time = await _done(clients, connecting)
        read = _read(proxy) - read
        fetches = proxy.count(Api.FETCH, since=since) if proxy else 0
    finally:
        for task in tasks:
            task.cancel()
        peak, *_ = await asyncio.gather(*tasks, return_exceptions=True)
    done = [client.done_at - since for client in clients if client.done_at]
    if in_time:
        await quiet(partial(received, clients), 0.3)
    lost = sum(client.lost(first, served.feed.sent) for client in clients)
    share = read / (SIZE * (served.feed.sent - first))
    most = peak if isinstance(peak, float) else 0.0
    return Outcome(spent, done, in_time, lost, share, fetches, most)


def _tell(cell: Cell, case: Case, clients: list[Exact], outcomes: list[Outcome]) -> None:
    """What must not be at all is told of all repeats together."""
    name = f"{case.name}: {case.clients:,} clients, {case.missed:,} records"
    last = outcomes[-1]
    if len(last.done) < len(clients):
        missing = f"{len(clients) - len(last.done)} of {len(clients)} were not whole and live"
        cell.note(f"{case.name}: {missing}" + ("" if last.in_time else f" within {WITHIN:g} s"))
    if last.in_time:
        cell.add(name, "lost", "records", sum(each.lost for each in outcomes))
        cell.add(name, "twice", "records", sum(client.twice for client in clients))
        cell.add(name, "damaged", "records", sum(client.damaged for client in clients))
    cell.add(name, "CPU", "s", *(each.spent.cpu for each in outcomes))
    if len(last.done) == len(clients):
        cell.add(name, "whole and live, the last", "s", *(max(each.done) for each in outcomes))
        cell.add(name, "whole and live, median", "s", *(median(each.done) for each in outcomes))
    if any(each.share for each in outcomes):
        cell.add(name, READ, "times", *(each.share for each in outcomes))
        cell.add(name, "fetches", "requests", *(each.fetches for each in outcomes))
    cell.add(name, "memory at most", "MB", max(each.peak for each in outcomes) / MB)
    cell.watch(name, [each.spent for each in outcomes])


async def _miss(served: Served, clients: list[Exact], case: Case) -> tuple[int, int]:
    """The first record that was missed, and the first that was not."""
    for client in clients:
        client.cut()
    first = served.feed.sent
    # Many at once: what is around a batch is little beside what is in it.
    for sent in range(0, case.missed, BATCH):
        served.feed.send(min(BATCH, case.missed - sent))
        await asyncio.sleep(0)
    await served.feed.flush()
    end = served.feed.sent
    if case.restart:
        assert served.restart is not None
        await served.restart()
    else:
        await asyncio.sleep(0.5)  # what ends the clients' streams is not part of coming back
    return first, end


def _read(proxy: KafkaProxy | None) -> int:
    return sum(broker.to_client for broker in proxy.brokers) if proxy else 0


async def _done(clients: list[Exact], connecting: asyncio.Task[float]) -> bool:
    """Until all are, or everybody has a stream and nothing that was missed has come for a while.
    False if some were still getting theirs after `WITHIN`. Raises OSError if one got no stream."""
    left, began = -1, time.monotonic()
    moved = began
    while not all(client.done_at for client in clients):
        now = sum(client.left for client in clients)
        if now != left:
            left, moved = now, time.monotonic()
        elif connecting.done() and time.monotonic() - moved > STALLED:
            connecting.result()
            return True
        if time.monotonic() - began > WITHIN:
            return False
        await asyncio.sleep(0.01)
    return True


async def _connect(clients: list[Exact], served: Served) -> float:
    await connect(clients, served.port, served.request, within=None)
    return 0.0


async def _flow(served: Served, rate: float) -> float:
    await steadily(served.feed, rate, 1e9)
    return 0.0


async def _peak(pid: int) -> float:
    """The most memory that a process had, until cancelled, in bytes."""
    peak = 0.0
    try:
        while True:
            peak = max(peak, float(psutil.Process(pid).memory_info().rss))
            await asyncio.sleep(0.1)
    except (asyncio.CancelledError, psutil.Error):
        return peak
