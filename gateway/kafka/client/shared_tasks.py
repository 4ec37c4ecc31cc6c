"""Let several callers wait for one task, which goes on when one of them gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.errors import BrokerUnavailable
from gateway.telemetry.logs import create_detached_task

T = TypeVar("T")


def start_shared_task(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task for `wait_for_shared`. It may fail without anybody waiting any more."""
    task = create_detached_task(coro)
    task.add_done_callback(_retrieve_exception)
    return task


async def wait_for_shared(
    task: asyncio.Task[T],
    reason: str = "the connections to Kafka are closed",
    *,
    node: int | None = None,
) -> T:
    """Return the result of a shared task; BrokerUnavailable if only the task was cancelled."""
    try:
        # The shield: one caller that gives up must not take the task from the others.
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        # If both were cancelled it is the caller's, because a task whose cancellation is swallowed
        # never ends.
        if not task.cancelled() or (caller is not None and caller.cancelling() > 0):
            raise
        raise BrokerUnavailable(reason, node=node) from None


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved: no warning when nobody waits for it any more
