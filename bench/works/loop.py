"""How long one callback keeps the loop of the gateway from everybody else, with 10,000 clients.

The gateway is started by `bench.watched`, which times every callback. Records flow, and a
few clients come and go.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .. import watched
from ..crowd import Crowd
from ..feed import steadily
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Shape
from .work import Cell, crowd_of, join

LONG = 0.010  # s; what no callback should take


@dataclass(frozen=True)
class Size:
    clients: int = 10_000
    rate: float = 5.0
    seconds: float = 5.0
    guests: int = 20


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        report = Path(folder) / "callbacks.json"
        shape = Shape(command=(sys.executable, watched.__file__, str(report)))
        async with (
            peer.serve(kafka, shape) as served,
            crowd_of(served, peer, size.clients) as crowd,
        ):
            began, before, sent = time.monotonic(), crowd.got, served.feed.sent
            with cost(served.pid) as spent:
                flowing = asyncio.create_task(steadily(served.feed, size.rate, size.seconds))
                while not flowing.done():
                    async with Crowd() as guests:
                        await join(guests, served, peer, size.guests)
                        await asyncio.sleep(0.1)
                await flowing
                due = (served.feed.sent - sent) * size.clients
                await crowd.until(before + due)
            ended = time.monotonic()
            assert served.stop is not None
            await served.stop()
        told = json.loads(report.read_text())
    case = f"{size.clients:,} clients, {size.rate:g}/s"
    during = [each for each in told["long"] if began <= each["at"] < ended]
    for clock in ("cpu", "wall"):
        longest = max((each[clock] for each in during), default=told["least"])
        cell.add(case, f"longest callback, {clock}", "ms", 1000 * longest)
    over = [each for each in during if each["cpu"] > LONG]
    cell.add(case, "callbacks above 10 ms of CPU", "", len(over))
    if over:
        worst = max(over, key=lambda each: each["cpu"])
        cell.note(f"{case}: the longest was {worst['what']}")
    cell.watch(case, [spent])
    return cell
