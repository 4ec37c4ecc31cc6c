"""Measure how long the console's page keeps a browser busy: `python -m bench.console`.

A gateway reads 2,000 partitions and has 10,000 clients, which it gets no records for. The page is
opened in a real Chromium, which reports every task of 50 ms and more by itself (Long Tasks API);
the time between two frames says what is below that. Kafka is librdkafka's mock: its partitions are
as good for the page as those of a broker.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.admin_api import ADMIN_SECTION, open_admin_api
from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process
from support.playwright_page import open_page
from support.records import RecordToSend, produce_records

from gateway.kafka.embedded import EmbeddedKafka

from . import results
from .client_pool import ClientPool
from .figure import Figure, quantile

if TYPE_CHECKING:
    from playwright.async_api import Page

TOPICS = 20
PAGE_TIMEOUT_MS = 120_000  # until a page has what it waits for, on a busy machine
LIVE_EVENT = b"event: begin"

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


async def measure(size: Size = Size()) -> list[Figure]:
    figures: list[Figure] = []
    each, remaining = divmod(size.partitions, TOPICS)
    topics = {
        f"bench-{number}": each + (number < remaining)
        for number in range(TOPICS)
        if each or number < remaining
    }
    with EmbeddedKafka(topics, fetch_version=11) as kafka:
        async with _open_console(kafka, topics, size) as (page, _):
            await page.wait_for_function(
                "n => document.querySelector('#partition-count').textContent === n",
                arg=str(size.partitions),
                timeout=PAGE_TIMEOUT_MS,
            )
            figures += await _watch(page, "partitions, at rest", asyncio.sleep(size.seconds))
            scroll = page.evaluate(SCROLL_SCRIPT, ["#grid", size.seconds])
            figures += await _watch(page, "partitions, scrolling", scroll)
            writes = _write_to_all(kafka, topics, size.seconds)
            figures += await _watch(page, "partitions, all of them changing", writes)
            await page.evaluate("location.hash = '#clients'")
            await page.locator("#client-rows tr").first.wait_for(timeout=PAGE_TIMEOUT_MS)
            figures += await _watch(page, "clients, at rest", asyncio.sleep(size.seconds))
            scroll = page.evaluate(SCROLL_SCRIPT, ["#clients .scroll", size.seconds])
            figures += await _watch(page, "clients, scrolling", scroll)
    return figures


@asynccontextmanager
async def _open_console(
    kafka: EmbeddedKafka, topics: dict[str, int], size: Size
) -> AsyncIterator[tuple[Page, GatewayProcess]]:
    names = list(topics)
    config = build_config(
        kafka.bootstrap,
        names,
        [build_route(names[0], "value")],
        kafka={"bootstrap": names},
        admin={**ADMIN_SECTION},
    )
    request = f"GET /events/{names[0]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway_process(config))
        pool = await stack.enter_async_context(ClientPool())
        await pool.open_clients(gateway.port, size.clients, lambda _: request, LIVE_EVENT)
        admin = await stack.enter_async_context(open_admin_api(gateway))
        page = await stack.enter_async_context(open_page(f"{admin.base_url}/console"))
        await page.evaluate(WATCH_SCRIPT)
        yield page, gateway


async def _watch(page: Page, what: str, meanwhile: Any) -> list[Figure]:
    """The longest task and frame while something is done."""
    await page.evaluate(RESET_SCRIPT)
    await meanwhile
    seen = await page.evaluate("bench")
    tasks, frames = seen["tasks"], seen["frames"]
    return [
        Figure(f"{what}: tasks of 50 ms and more", len(tasks), "tasks"),
        Figure(f"{what}: longest of them", max(tasks, default=0.0), "ms", len(tasks)),
        Figure(f"{what}: between two frames, p99", quantile(frames, 0.99), "ms", len(frames)),
        Figure(f"{what}: between two frames, longest", max(frames), "ms", len(frames)),
    ]


async def _write_to_all(kafka: EmbeddedKafka, topics: dict[str, int], seconds: float) -> None:
    """A record to each partition, again and again."""
    ends = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < ends:
        for topic, partitions in topics.items():
            records = [RecordToSend(b"{}", partition=number) for number in range(partitions)]
            await produce_records(kafka.bootstrap, topic, records)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--partitions", type=int, default=Size.partitions, help="default 2000")
    parser.add_argument("--clients", type=int, default=Size.clients, help="default 10000")
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="of each condition")
    parser.add_argument("--note", default="", help="kept with the result: what else ran meanwhile")
    parser.add_argument("--dry", action="store_true", help="print, keep nothing")
    asked = parser.parse_args(arguments)
    machine = results.describe_machine(asked.note)
    size = Size(asked.partitions, asked.clients, asked.seconds)
    measured = {"console": asyncio.run(measure(size))}
    machine |= results.get_load("after")
    print(results.render_table(machine, measured))
    if not asked.dry:
        print(f"kept in {results.save_figures(machine, measured)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
