"""A relay and the buses of some workers, in the test's own loop."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.waiting import wait_until

from gateway.web.workers.bus import Bus
from gateway.web.workers.relay import Relay


class WorkerBuses:
    """relay, path: of the supervisor. buses: of the workers 1, 2, ..."""

    def __init__(self, socket_path: Path, worker_count: int, **options: Any) -> None:
        """options: of `Relay`."""
        self.socket_path = socket_path
        self.relay = Relay(socket_path, **options)
        self.buses = [Bus(socket_path, n, worker_count) for n in range(1, worker_count + 1)]
        self._bus_tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """All of them are there when it returns."""
        await self.relay.start()
        self._bus_tasks = [asyncio.create_task(bus.run()) for bus in self.buses]
        await self.wait_until_linked()

    async def wait_until_linked(self) -> None:
        every = [bus.worker for bus in self.buses]
        await wait_until(
            lambda: self.relay.workers == every and all(bus.is_linked for bus in self.buses),
            lambda: f"only {self.relay.workers} are there",
            60,
        )

    async def stop_worker(self, worker: int) -> None:
        """As if its process had ended."""
        self._bus_tasks[worker - 1].cancel()
        await asyncio.gather(self._bus_tasks[worker - 1], return_exceptions=True)
        await wait_until(lambda: worker not in self.relay.workers, f"the end of {worker}", 60)

    async def close(self) -> None:
        for task in self._bus_tasks:
            task.cancel()
        await asyncio.gather(*self._bus_tasks, return_exceptions=True)
        await self.relay.close()


@asynccontextmanager
async def worker_buses(worker_count: int, **options: Any) -> AsyncIterator[WorkerBuses]:
    """To be `run` once it is said who hears what."""
    with tempfile.TemporaryDirectory(prefix="bus-") as directory:
        made = WorkerBuses(Path(directory) / "bus", worker_count, **options)
        try:
            yield made
        finally:
            await made.close()
