"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE = 60.0  # s; far above what anything takes here; with Spark beside it, node took 20


async def until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "the condition",
    within: float = PATIENCE,
    every: float = 0.01,
) -> None:
    """Return once `condition()` is true. TimeoutError naming `what` after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        if loop.time() > deadline:
            missing = what if isinstance(what, str) else what()
            raise TimeoutError(f"{missing}: not within {within:g} s")
        await asyncio.sleep(every)
