"""Measure the lag of the event loop: how long a callback waits while other callbacks run."""

from __future__ import annotations

import asyncio
from time import perf_counter

from .counts import Histogram

INTERVAL_S = 0.25  # seconds between measurements, each of which takes 20 us


class LoopLag:
    def __init__(self) -> None:
        self.seconds = Histogram()

    async def run(self) -> None:
        while True:
            due = perf_counter() + INTERVAL_S  # uvloop's clock has a resolution of 1 ms
            await asyncio.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, perf_counter() - due))
