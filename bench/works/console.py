"""Measure how long the console's page keeps a browser busy.

A gateway reads 2,000 partitions and has 10,000 clients, which it gets no records for. The page is
opened in a real Chromium, which reports every task of 50 ms and more by itself (Long Tasks API);
the time between two frames says what is below that. Kafka is librdkafka's mock: its partitions are
as good for the page as those of a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.admin_api import ADMIN_SECTION, open_admin_api
from support.gateways import build_config, build_route, running_gateway_process
from support.playwright_page import open_page
from support.records import RecordToSend, produce_records

from gateway.kafka.embedded import EmbeddedKafka

from ..client_pool import ClientPool
from ..peers.gateway_peer import GREETING
from ..peers.peer import Peer, build_sse_request
from ..results import Cell, quantile

if TYPE_CHECKING:
    from playwright.async_api import Page

TOPICS = 20
PAGE_TIMEOUT_MS = 120_000  # until a page has what it waits for, on a busy machine

# Frames are counted as long as the page is watched; a page in the background has none.
WATCH_SCRIPT = """
window.bench = { tasks: [], frames: [], last: null };
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) bench.tasks.push(each.duration);
}).observe({ type: "longtask" });
(function frame(at) {
  if (bench.last !== null) bench.frames.push(at - bench.last);
  bench.last = at;
  requestAnimationFrame(frame);
})(performance.now());
"""
RESET_SCRIPT = "bench.tasks = []; bench.frames = []; bench.last = null;"
# A screenful in a quarter of a second, down and up again, as a wheel does.
SCROLL_SCRIPT = """([selector, seconds]) => new Promise((resolve) => {
  const target = document.querySelector(selector), began = performance.now();
  let step = target.clientHeight / 15;
  (function scroll() {
    const before = target.scrollTop;
    target.scrollTop += step;
    if (target.scrollTop === before) step = -step;
    if (performance.now() - began < 1000 * seconds) requestAnimationFrame(scroll);
    else resolve();
  })();
})"""


@dataclass(frozen=True)
class Size:
    """seconds: for which the page is watched in each condition."""

    partitions: int = 2000
    clients: int = 10_000
    seconds: float = 15.0


async def run(_: object, __: Peer, size: Size) -> Cell:
    cell = Cell()
    each, remaining = divmod(size.partitions, TOPICS)
    counts = {f"bench-{number}": each + (number < remaining) for number in range(TOPICS)}
    topics = {name: count for name, count in counts.items() if count}
    with EmbeddedKafka(topics, fetch_version=11) as kafka:
        async with _open_console(kafka, topics, size) as page:
            await page.wait_for_function(
                "n => document.querySelector('#partition-count').textContent === n",
                arg=str(size.partitions),
                timeout=PAGE_TIMEOUT_MS,
            )
            await _watch(cell, page, "partitions, at rest", asyncio.sleep(size.seconds))
            scroll = page.evaluate(SCROLL_SCRIPT, ["#grid", size.seconds])
            await _watch(cell, page, "partitions, scrolling", scroll)
            writes = _write_to_all(kafka, topics, size.seconds)
            await _watch(cell, page, "partitions, all of them changing", writes)
            await page.evaluate("location.hash = '#clients'")
            await page.locator("#client-rows tr").first.wait_for(timeout=PAGE_TIMEOUT_MS)
            await _watch(cell, page, "clients, at rest", asyncio.sleep(size.seconds))
            scroll = page.evaluate(SCROLL_SCRIPT, ["#clients .scroll", size.seconds])
            await _watch(cell, page, "clients, scrolling", scroll)
    return cell


@asynccontextmanager
async def _open_console(
    kafka: EmbeddedKafka, topics: dict[str, int], size: Size
) -> AsyncIterator[Page]:
    names = list(topics)
    routes = [build_route(names[0], "value")]
    admin, bootstrap = {**ADMIN_SECTION}, {"bootstrap": names}
    config = build_config(kafka.bootstrap, names, routes, kafka=bootstrap, admin=admin)
    request = build_sse_request(f"/events/{names[0]}")
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway_process(config))
        pool = await stack.enter_async_context(ClientPool())
        await pool.open_clients(gateway.port, size.clients, lambda _: request, GREETING)
        api = await stack.enter_async_context(open_admin_api(gateway))
        page = await stack.enter_async_context(open_page(f"{api.base_url}/console"))
        await page.evaluate(WATCH_SCRIPT)
        yield page


async def _watch(cell: Cell, page: Page, case: str, meanwhile: Any) -> None:
    """The longest task and frame while something is done."""
    await page.evaluate(RESET_SCRIPT)
    await meanwhile
    seen = await page.evaluate("bench")
    tasks, frames = seen["tasks"], seen["frames"]
    cell.add_row(case, "tasks of 50 ms and more", "", len(tasks))
    cell.add_row(case, "longest of them", "ms", max(tasks, default=0.0), n=len(tasks))
    cell.add_row(case, "between two frames, p99", "ms", quantile(frames, 0.99), n=len(frames))
    cell.add_row(case, "between two frames, longest", "ms", max(frames), n=len(frames))


async def _write_to_all(kafka: EmbeddedKafka, topics: dict[str, int], seconds: float) -> None:
    """A record to each partition, again and again."""
    ends = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < ends:
        for topic, partitions in topics.items():
            records = [RecordToSend(b"{}", partition=number) for number in range(partitions)]
            await produce_records(kafka.bootstrap, topic, records)
