"""Measure what counters, a scrape and tracing cost, by two gateways in turns, one without them.

The one with all of it is scraped every five seconds, and 1 % of the records (all have a
traceparent) and of its requests are traced, to a back end in the process of the clients. In the
other the counters are removed (`bench.uncounted_gateway`). Both have all clients at once, and work
in turns, so that the machine's other load affects both alike. Then scrapes are measured, one after
the other, with as many clients as the server allows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import httpx
from support.otlp import running_collector

from .. import uncounted_gateway
from ..client_pool import ClientPool
from ..feed import send_steadily
from ..figure import median
from ..kafka import Kafka
from ..machine import Cost, measure_cost
from ..peers.peer import Peer, RunningServer, ServerShape
from .work import PER_CPU, Cell, open_pool

UNCOUNTED_COMMAND = (sys.executable, uncounted_gateway.__file__)
WITH_TELEMETRY, WITHOUT_TELEMETRY = "with telemetry", "without"
SCRAPE_INTERVAL_S = 5.0  # s from one scrape to the next
UNCOUNTED_SHARE = "of what it does without"


@dataclass(frozen=True)
class Case:
    """keys: each client has its own. rate: records a second."""

    clients: int
    rate: float
    has_own_keys: bool = False

    @property
    def name(self) -> str:
        return f"{self.clients:,}{' own keys' if self.has_own_keys else ''} x {self.rate:,g}/s"


@dataclass(frozen=True)
class Size:
    """seconds: of one turn. scraped: clients of the scrapes."""

    cases: tuple[Case, ...] = (Case(200, 100), Case(1000, 100), Case(2000, 4000, has_own_keys=True))
    turn_s: float = 1.5
    turn_count: int = 7
    scraped_clients: int = 10_000
    scrape_count: int = 10


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    with running_collector() as back:
        telemetry = {"traces": {"otlp": back.url, "sample": "1%"}}
        for case in size.cases:
            shape = ServerShape(has_own_keys=case.has_own_keys, is_traced=True)
            bare = replace(shape, command=UNCOUNTED_COMMAND)
            full = replace(shape, telemetry=telemetry)
            async with peer.serve(kafka, bare) as without, peer.serve(kafka, full) as whole:
                await _measure_case(cell, peer, case, size, without, whole)
                cell.add_row(case.name, "spans", "", len(back.spans))
                back.requests.clear()
    await _measure_scrapes(cell, kafka, peer, size)
    return cell


async def _measure_case(
    cell: Cell, peer: Peer, case: Case, size: Size, bare: RunningServer, full: RunningServer
) -> None:
    """Turns of both; each but the first is begun by the other one."""
    done: dict[str, list[float]] = {WITH_TELEMETRY: [], WITHOUT_TELEMETRY: []}
    costs: list[Cost] = []
    count = case.clients
    async with (
        open_pool(bare, peer, count, has_own_keys=case.has_own_keys) as one,
        open_pool(full, peer, count, has_own_keys=case.has_own_keys) as other,
        _scrape_regularly(full.port),
    ):
        both = [(WITHOUT_TELEMETRY, bare, one), (WITH_TELEMETRY, full, other)]
        for turn in range(size.turn_count):
            for how, served, crowd in both if turn % 2 else reversed(both):
                rate, spent = await _run_turn(served, crowd, case, size.turn_s)
                done[how].append(rate)
                costs.append(spent)
    for how, rates in done.items():
        cell.add_row(f"{case.name}, {how}", PER_CPU, "1/s", *rates)
    pairs = zip(done[WITH_TELEMETRY], done[WITHOUT_TELEMETRY], strict=True)
    cell.add_row(case.name, UNCOUNTED_SHARE, "%", *(100 * one / other for one, other in pairs))
    cell.add_cost_notes(case.name, costs)


async def _run_turn(
    server: RunningServer, pool: ClientPool, case: Case, seconds: float
) -> tuple[float, Cost]:
    sent, before = server.feed.sent_count, pool.record_count
    with measure_cost(server.pid) as spent:
        await send_steadily(server.feed, case.rate, seconds, len(pool) if case.has_own_keys else 0)
        due = (server.feed.sent_count - sent) * (1 if case.has_own_keys else len(pool))
        await pool.wait_for_records(before + due)
    return (pool.record_count - before) / spent.cpu_s, spent


@asynccontextmanager
async def _scrape_regularly(port: int) -> AsyncIterator[None]:
    """By somebody, every second, as Prometheus might."""

    async def scrape() -> None:
        closed = {"Connection": "close"}  # the server closes those that are idle for so long
        async with httpx.AsyncClient(trust_env=False, timeout=60, headers=closed) as http:
            while True:
                (await http.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status()
                await asyncio.sleep(SCRAPE_INTERVAL_S)

    scraping = asyncio.create_task(scrape())
    try:
        yield
    finally:
        scraping.cancel()
        with suppress(asyncio.CancelledError):
            await scraping


async def _measure_scrapes(cell: Cell, kafka: Kafka, peer: Peer, size: Size) -> None:
    count = min(size.scraped_clients, peer.max_clients)
    case, taken, used = f"{count:,} clients", [], []
    async with (
        peer.serve(kafka, ServerShape()) as served,
        open_pool(served, peer, count),
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        for _ in range(size.scrape_count):
            with measure_cost(served.pid) as spent:
                began = time.monotonic()
                answer = await http.get(f"http://127.0.0.1:{served.port}/metrics")
                taken.append(time.monotonic() - began)
            answer.raise_for_status()
            used.append(spent.cpu_s)
            await asyncio.sleep(0.1)
    cell.add_row(case, "a scrape", "ms", *(1000 * each for each in taken))
    cell.add_row(case, "CPU of a scrape", "ms", *(1000 * each for each in used))
    if median(taken) > 0.05:
        cell.add_note(f"{case}: a scrape took more than 50 ms")
