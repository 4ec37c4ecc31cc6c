"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self

WAIT_TIMEOUT_S = 180.0  # far above what anything takes; with Spark beside it, node took 20 s
BLOCK_TIMEOUT_S = 600.0  # s; a Spark job starts in 6 to 60 s, and has batches before it ends


async def wait_until(
    condition: Callable[[], object],
    description: str | Callable[[], str] = "the condition",
    timeout_s: float = WAIT_TIMEOUT_S,
    interval_s: float = 0.01,
) -> None:
    """Return once `condition()` is true. TimeoutError with the description after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            missing = description if isinstance(description, str) else description()
            raise TimeoutError(f"{missing}: not within {timeout_s:g} s")
        await asyncio.sleep(interval_s)


def block_until(
    is_met: Callable[[], object],
    description: str,
    timeout_s: float = BLOCK_TIMEOUT_S,
    interval_s: float = 0.1,
) -> None:
    """As `wait_until`, for code that does not run in an event loop."""
    deadline = time.monotonic() + timeout_s
    while not is_met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{description}: not within {timeout_s:.0f} s")
        time.sleep(interval_s)


class TurnCounter:
    """Count the turns of the event loop in a `with` block, which show that it was not blocked."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._task = asyncio.create_task(self._count_forever())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def _count_forever(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)
