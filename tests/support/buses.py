"""A relay and the buses of some workers, in the test's own loop."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.until import until

from gateway.web.workers.bus import Bus
from gateway.web.workers.relay import Relay


class Host:
    """relay, path: of the supervisor. buses: of the workers 1, 2, ..."""

    def __init__(self, path: Path, workers: int) -> None:
        self.path = path
        self.relay = Relay(path)
        self.buses = [Bus(path, n, workers) for n in range(1, workers + 1)]
        self._running: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """All of them are there when it returns."""
        await self.relay.start()
        self._running = [asyncio.create_task(bus.run()) for bus in self.buses]
        await self.linked()

    async def linked(self) -> None:
        every = [bus.worker for bus in self.buses]
        await until(
            lambda: self.relay.workers == every and all(bus.linked for bus in self.buses),
            lambda: f"only {self.relay.workers} are there",
            60,
        )

    async def end(self, worker: int) -> None:
        """As if its process had ended."""
        self._running[worker - 1].cancel()
        await asyncio.gather(self._running[worker - 1], return_exceptions=True)
        await until(lambda: worker not in self.relay.workers, f"the end of {worker}", 60)

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.relay.close()


@asynccontextmanager
async def host(workers: int) -> AsyncIterator[Host]:
    """To be `run` once it is said who hears what."""
    with tempfile.TemporaryDirectory(prefix="bus-") as directory:
        made = Host(Path(directory) / "bus", workers)
        try:
            yield made
        finally:
            await made.close()
