"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WAIT_TIMEOUT_S = 60.0  # s; far above what anything takes here; with Spark beside it, node took 20


async def wait_until(
    condition: Callable[[], object],
    description: str | Callable[[], str] = "the condition",
    timeout_s: float = WAIT_TIMEOUT_S,
    interval_s: float = 0.01,
) -> None:
    """Return once `condition()` is true. TimeoutError naming `what` after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            missing = description if isinstance(description, str) else description()
            raise TimeoutError(f"{missing}: not within {timeout_s:g} s")
        await asyncio.sleep(interval_s)
