"""How late the event loop is: whoever wants its next turn waits for so long."""

from __future__ import annotations

import asyncio

from .histogram import Histogram

EVERY = 0.25  # seconds; 20 us each


class Lateness:
    """Looks at the loop that it runs in. seconds: how late it was each time."""

    def __init__(self) -> None:
        self.seconds = Histogram()

    async def run(self) -> None:
        """Until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + EVERY
            await asyncio.sleep(EVERY)
            self.seconds.observe(max(0.0, now() - due))
