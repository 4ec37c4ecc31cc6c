"""Run work beside the application, again whenever it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0  # before what failed is run again


async def run_supervised(run: Callable[[], Awaitable[None]], name: str) -> None:
    """Run a component until it returns, and run it again after each failure.

    One component that fails must not end the others, which are in the same task group.

    Args:
        run: What to run.
        name: What it is called in the log.
    """
    while True:
        try:
            return await run()
        except Exception:
            log.exception("%s failed; it is run again", name)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # The failure replaced the CancelledError. Running it again would swallow the
                # cancellation, and the application would never end.
                return
            await asyncio.sleep(RESTART_DELAY_S)
