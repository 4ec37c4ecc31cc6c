"""Work that goes on beside the application, whatever becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

AGAIN = 1.0  # seconds until what failed is begun again


async def kept(run: Callable[[], Awaitable[None]], what: str) -> None:
    """Run it, and again where it fails: one must not end the others."""
    while True:
        try:
            return await run()
        except Exception:
            log.exception("%s failed; it is begun again", what)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # it failed while it ended, and would never end
            await asyncio.sleep(AGAIN)
