"""Work that goes on beside a `with` block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

R = TypeVar("R")


@asynccontextmanager
async def running_task(work: Coroutine[Any, Any, R]) -> AsyncIterator[asyncio.Task[R]]:
    """Run `work` in a task, and cancel it at the end of the block. Raises what it has raised."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
