"""Work that goes on beside the application, whatever becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0  # seconds until what failed is begun again


async def run_supervised(run: Callable[[], Awaitable[None]], name: str) -> None:
    """Run it, and again where it fails: one must not end the others."""
    while True:
        try:
            return await run()
        except Exception:
            log.exception("%s failed; it is begun again", name)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # it failed while it ended, and would never end
            await asyncio.sleep(RESTART_DELAY_S)
