"""Run work that nobody waits for, so that none of it is lost and no error of it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

RESTART_DELAY_S = 1.0  # before what failed is run again

log = logging.getLogger(__name__)


class BackgroundTasks:
    """The background tasks of one owner, which closes them.

    The event loop has only weak references to tasks, so each is held here until it has ended. The
    error of a task is logged.

    Args:
        log: The logger of the owner.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, coro: Coroutine[Any, Any, T], name: str, *, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start a task.

        Args:
            coro: The work. Errors that somebody expects are handled within it.
            name: What it is called in the log, such as `a TLS handshake`.
            context: The context variables of the task; None for a copy of the current ones.
        """
        task = asyncio.get_running_loop().create_task(coro, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for them to end."""
        for task in self._tasks:
            task.cancel()

    async def wait(
        self, timeout_s: float | None = None, *, return_when: str = asyncio.ALL_COMPLETED
    ) -> None:
        """Wait until tasks have ended, or until the time is over.

        Args:
            timeout_s: The longest wait in seconds; None for no limit.
            return_when: Whether to wait for all tasks, also those that are started meanwhile, or
                for the first, as of `asyncio.wait`.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while self._tasks:
            rest = None if deadline is None else max(0.0, deadline - loop.time())
            await asyncio.wait(self._tasks, timeout=rest, return_when=return_when)
            is_over = deadline is not None and loop.time() >= deadline
            if is_over or return_when != asyncio.ALL_COMPLETED:
                return

    async def close(self, grace_s: float = 0.0) -> None:
        """Cancel the tasks that have not ended after so many seconds, and wait for their end.

        A task that ends may start another one, to clean up or because a callback of its own came
        too late. That one may run as long as the tasks that were cancelled, and is then cancelled.
        Starting it is no error: its owner could only ignore that.
        """
        if grace_s:
            await self.wait(grace_s)
        while self._tasks:
            self.cancel()
            await asyncio.wait(self._tasks)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log.error("%s failed", task.get_name(), exc_info=error)


async def run_supervised(
    run: Callable[[], Awaitable[None]], name: str, *, restart_delay_s: float = RESTART_DELAY_S
) -> None:
    """Run work that others depend on until it returns, and run it again after each failure.

    Args:
        run: What to run. Errors that somebody expects are handled within it.
        name: What it is called in the log.
        restart_delay_s: The time before it is run again, in seconds.
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
            await asyncio.sleep(restart_delay_s)
