"""Clients that were cut come back: is all there that they missed, once, and at what cost?

`cut` is a net that went away for a moment, with the server running on; `restart` a server that
knows nothing but what the clients tell it; `deploy` more clients and more records behind. Records
flow meanwhile. A client is done when it has all that it missed and one made since.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import psutil
from support.proxy import Api, KafkaProxy
from support.until import until

from ..exact import Exact, connect
from ..feed import steadily
from ..figure import median
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Served, Shape
from ..records import SIZE
from .work import Cell

ROUND = 12  # records, one a partition
BATCH = 50
WITHIN = 60.0  # s; who comes back later than that is not waited for
STALLED = 5.0  # s without a record that was missed: no more of them will come
MB = 1e6


@dataclass(frozen=True)
class Case:
    """missed: records behind. restart: the server is ended and started meanwhile."""

    name: str
    clients: int
    missed: int
    restart: bool = False


CASES = (
    Case("cut", 500, 2000),
    Case("restart", 500, 2000, restart=True),
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
        try:
            await _case(cell, kafka, peer, case, size)
        except (TimeoutError, OSError) as error:  # the other cases are worth having
            cell.note(f"{case.name}: failed, {error!r}")
    if not cell.rows:
        raise TimeoutError("; ".join(cell.notes))
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
        await _take_part(served, clients)
        await _come_back(cell, case, served, clients, size.rate, proxy)
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


async def _take_part(served: Served, clients: list[Exact]) -> None:
    """Connect, and send until each has had a record of every partition, so that it has a token
    behind which it can be cut."""
    await connect(clients, served.port, served.request)
    for _ in range(20):
        due = [client.got + ROUND for client in clients]

        def all_came(due: list[int] = due) -> bool:
            return all(c.got >= count for c, count in zip(clients, due, strict=True))

        for _ in range(ROUND):
            served.feed.send()
        with suppress(TimeoutError):
            await until(all_came, "the first records", 5)
        await asyncio.sleep(0.2)
        if due == [client.got for client in clients]:
            return
    raise TimeoutError("not all clients came to get every record")


async def _come_back(
    cell: Cell,
    case: Case,
    served: Served,
    clients: list[Exact],
    rate: float,
    proxy: KafkaProxy | None,
) -> None:
    for client in clients:
        client.cut()
    first = served.feed.sent
    await _miss(served, case)
    end = served.feed.sent
    for client in clients:
        client.expect(first, end)
    since, read = time.monotonic(), _read(proxy)
    watching = asyncio.create_task(_peak(served.pid))
    tasks = [watching, asyncio.create_task(_flow(served, rate))]
    try:
        with cost(served.pid) as spent:
            tasks.append(asyncio.create_task(_connect(clients, served)))
            in_time = await _done(clients)
        read = _read(proxy) - read
        fetches = proxy.count(Api.FETCH, since=since) if proxy else 0
    finally:
        for task in tasks:
            task.cancel()
        peak, *_ = await asyncio.gather(*tasks, return_exceptions=True)
    name = f"{case.name}: {case.clients:,} clients, {case.missed:,} records"
    done = [client.done_at - since for client in clients if client.done_at]
    if not in_time:
        cell.note(
            f"{case.name}: after {WITHIN:g} s {len(done)} of {len(clients)} were whole and live"
        )
        cell.add(name, "CPU", "s", spent.cpu)
        return
    await _quiet(clients)
    lost = sum(client.lost(first, served.feed.sent) for client in clients)
    cell.add(name, "lost", "records", lost)
    cell.add(name, "twice", "records", sum(client.twice for client in clients))
    cell.add(name, "damaged", "records", sum(client.damaged for client in clients))
    cell.add(name, "CPU", "s", spent.cpu)
    if len(done) == len(clients):
        cell.add(name, "whole and live, the last", "s", max(done))
        cell.add(name, "whole and live, median", "s", median(done))
    else:
        cell.note(f"{name}: {len(clients) - len(done)} clients never were whole and live")
    if proxy is not None and read:
        share = read / (SIZE * (served.feed.sent - first))
        cell.add(name, "read from Kafka, of the values' bytes", "times", share)
        cell.add(name, "fetches", "requests", fetches)
    if isinstance(peak, float):
        cell.add(name, "memory at most", "MB", peak / MB)
    cell.watch(name, [spent])


async def _miss(served: Served, case: Case) -> None:
    # Many at once: what is around a batch is little beside what is in it.
    for sent in range(0, case.missed, BATCH):
        served.feed.send(min(BATCH, case.missed - sent))
        await asyncio.sleep(0)
    await served.feed.flush()
    if case.restart:
        assert served.restart is not None
        await served.restart()
    else:
        await asyncio.sleep(0.5)  # what ends the clients' streams is not part of coming back


def _read(proxy: KafkaProxy | None) -> int:
    return sum(broker.to_client for broker in proxy.brokers) if proxy else 0


async def _done(clients: list[Exact]) -> bool:
    """Until all are, or nothing that was missed has come for a while: who has no stream yet is
    as late as who has one. False if some were still getting theirs after `WITHIN`."""
    left, began = -1, time.monotonic()
    moved = began
    while not all(client.done_at for client in clients):
        now = sum(client.left for client in clients)
        if now != left:
            left, moved = now, time.monotonic()
        elif time.monotonic() - moved > STALLED:
            return True
        if time.monotonic() - began > WITHIN:
            return False
        await asyncio.sleep(0.01)
    return True


async def _quiet(clients: list[Exact]) -> None:
    before = -1

    def still() -> bool:
        nonlocal before
        now = sum(client.got for client in clients)
        before, same = now, now == before
        return same

    await until(still, "the end of all records", 60, 0.3)


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
