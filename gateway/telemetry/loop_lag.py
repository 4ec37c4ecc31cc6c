"""How late the event loop is: whoever wants its next turn waits for so long."""

from __future__ import annotations

import asyncio
from time import perf_counter

from .histogram import Histogram

INTERVAL_S = 0.25  # seconds; 20 us each


class LoopLag:
    """Looks at the loop that it runs in. seconds: how late it was each time."""

    def __init__(self) -> None:
        self.seconds = Histogram()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due = perf_counter() + INTERVAL_S  # a loop's own clock counts milliseconds
            await asyncio.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, perf_counter() - due))
