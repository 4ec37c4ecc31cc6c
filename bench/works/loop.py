"""Measure the longest callback of the gateway's loop, with 10,000 clients.

The gateway is started by `bench.timed_gateway`, which times every callback. Records are produced,
and a few clients come and go.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .. import timed_gateway
from ..client_pool import ClientPool
from ..feed import send_steadily
from ..kafka import Kafka
from ..machine import measure_cost
from ..peers.peer import Peer, ServerShape
from ..results import Cell
from .work import join_clients, open_pool

LONG_CALLBACK_S = 0.010  # s; what no callback should take


@dataclass(frozen=True)
class Size:
    clients: int = 10_000
    rate: float = 5.0
    seconds: float = 5.0
    brief_clients: int = 20


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        report = Path(folder) / "callbacks.json"
        shape = ServerShape(command=(sys.executable, timed_gateway.__file__, str(report)))
        async with (
            peer.serve(kafka, shape) as served,
            open_pool(served, peer, size.clients) as crowd,
        ):
            began, before, sent = time.monotonic(), crowd.record_count, served.feed.sent_count
            with measure_cost(served.pid) as spent:
                flowing = asyncio.create_task(send_steadily(served.feed, size.rate, size.seconds))
                while not flowing.done():
                    async with ClientPool() as guests:
                        await join_clients(guests, served, peer, size.brief_clients)
                        await asyncio.sleep(0.1)
                await flowing
                due = (served.feed.sent_count - sent) * size.clients
                await crowd.wait_for_records(before + due)
            ended = time.monotonic()
            assert served.stop is not None
            await served.stop()
        told = json.loads(report.read_text())
    case = f"{size.clients:,} clients, {size.rate:g}/s"
    during = [each for each in told["long"] if began <= each["at"] < ended]
    for clock in ("cpu", "wall"):
        longest = max((each[clock] for each in during), default=told["least"])
        cell.add_row(case, f"longest callback, {clock}", "ms", 1000 * longest)
    over = [each for each in during if each["cpu"] > LONG_CALLBACK_S]
    cell.add_row(case, "callbacks above 10 ms of CPU", "", len(over))
    if over:
        worst = max(over, key=lambda each: each["cpu"])
        cell.add_note(f"{case}: the longest was {worst['what']}")
    cell.add_cost_notes(case, [spent])
    return cell
