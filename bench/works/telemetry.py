"""What counting, a scrape and tracing cost: two gateways in turns, one of them without.

The one with all of it is scraped every five seconds, and 1 % of the records (all have a
traceparent) and of its requests are traced, to a back end in the process of the clients; in the
other the counting is taken out (`bench.uncounted`). Both have all clients at once, and are worked
in turns, so that what else the machine does meets both alike. Then scrapes, one after the other,
with as many clients as it takes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import httpx
from support.otlp import collector

from .. import uncounted
from ..crowd import Crowd
from ..feed import steadily
from ..figure import median
from ..kafka import Kafka
from ..machine import Cost, cost
from ..peers.peer import Peer, Served, Shape
from .work import PER_CPU, Cell, crowd_of

UNCOUNTED = (sys.executable, uncounted.__file__)
WITH, WITHOUT = "with telemetry", "without"
EVERY = 5.0  # s from one scrape to the next
SHARE = "of what it does without"


@dataclass(frozen=True)
class Case:
    """keys: each client has its own. rate: records a second."""

    clients: int
    rate: float
    keys: bool = False

    @property
    def name(self) -> str:
        return f"{self.clients:,}{' own keys' if self.keys else ''} x {self.rate:,g}/s"


@dataclass(frozen=True)
class Size:
    """seconds: of one turn. scraped: clients of the scrapes."""

    cases: tuple[Case, ...] = (Case(200, 100), Case(1000, 100), Case(2000, 4000, keys=True))
    seconds: float = 1.5
    turns: int = 7
    scraped: int = 10_000
    scrapes: int = 10


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    with collector() as back:
        telemetry = {"traces": {"otlp": back.url, "sample": "1%"}}
        for case in size.cases:
            shape = Shape(keys=case.keys, traced=True)
            bare = replace(shape, command=UNCOUNTED)
            full = replace(shape, telemetry=telemetry)
            async with peer.serve(kafka, bare) as without, peer.serve(kafka, full) as whole:
                await _case(cell, peer, case, size, without, whole)
                cell.add(case.name, "spans", "", len(back.spans))
                back.requests.clear()
    await _scrapes(cell, kafka, peer, size)
    return cell


async def _case(
    cell: Cell, peer: Peer, case: Case, size: Size, without: Served, whole: Served
) -> None:
    """Turns of both; each but the first is begun by the other one."""
    done: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    costs: list[Cost] = []
    count = case.clients
    async with (
        crowd_of(without, peer, count, keys=case.keys) as one,
        crowd_of(whole, peer, count, keys=case.keys) as other,
        _scraped(whole.port),
    ):
        both = [(WITHOUT, without, one), (WITH, whole, other)]
        for turn in range(size.turns):
            for how, served, crowd in both if turn % 2 else reversed(both):
                rate, spent = await _turn(served, crowd, case, size.seconds)
                done[how].append(rate)
                costs.append(spent)
    for how, rates in done.items():
        cell.add(f"{case.name}, {how}", PER_CPU, "1/s", *rates)
    pairs = zip(done[WITH], done[WITHOUT], strict=True)
    cell.add(case.name, SHARE, "%", *(100 * one / other for one, other in pairs))
    cell.watch(case.name, costs)


async def _turn(served: Served, crowd: Crowd, case: Case, seconds: float) -> tuple[float, Cost]:
    sent, before = served.feed.sent, crowd.got
    with cost(served.pid) as spent:
        await steadily(served.feed, case.rate, seconds, len(crowd) if case.keys else 0)
        due = (served.feed.sent - sent) * (1 if case.keys else len(crowd))
        await crowd.until(before + due)
    return (crowd.got - before) / spent.cpu, spent


@asynccontextmanager
async def _scraped(port: int) -> AsyncIterator[None]:
    """By somebody, every second, as Prometheus might."""

    async def forever() -> None:
        closed = {"Connection": "close"}  # the server closes those that are idle for so long
        async with httpx.AsyncClient(trust_env=False, timeout=60, headers=closed) as http:
            while True:
                (await http.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status()
                await asyncio.sleep(EVERY)

    scraping = asyncio.create_task(forever())
    try:
        yield
    finally:
        scraping.cancel()
        with suppress(asyncio.CancelledError):
            await scraping


async def _scrapes(cell: Cell, kafka: Kafka, peer: Peer, size: Size) -> None:
    count = min(size.scraped, peer.most)
    case, taken, used = f"{count:,} clients", [], []
    async with (
        peer.serve(kafka, Shape()) as served,
        crowd_of(served, peer, count),
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        for _ in range(size.scrapes):
            with cost(served.pid) as spent:
                began = time.monotonic()
                answer = await http.get(f"http://127.0.0.1:{served.port}/metrics")
                taken.append(time.monotonic() - began)
            answer.raise_for_status()
            used.append(spent.cpu)
            await asyncio.sleep(0.1)
    cell.add(case, "a scrape", "ms", *(1000 * each for each in taken))
    cell.add(case, "CPU of a scrape", "ms", *(1000 * each for each in used))
    if median(taken) > 0.05:
        cell.note(f"{case}: a scrape took more than 50 ms")
