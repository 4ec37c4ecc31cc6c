"""Run tasks that nobody awaits, that several callers wait for, or that something may interrupt.

None of the first is garbage-collected, and every error of them is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Set
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

RESTART_DELAY_S = 1.0  # before what failed is run again

log = logging.getLogger(__name__)


class BackgroundTasks:
    """The background tasks of one owner, which closes them.

    The event loop has only weak references to tasks, so they are held here until they end.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, coro: Coroutine[Any, Any, T], name: str, *, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start a task that handles its expected errors itself; the log shows `name`."""
        task = asyncio.get_running_loop().create_task(coro, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self, *, keep: Set[object] = frozenset()) -> None:
        for task in self._tasks - keep:
            task.cancel()

    async def wait(
        self, timeout_s: float | None = None, *, return_when: str = asyncio.ALL_COMPLETED
    ) -> None:
        """Wait for all tasks, also those that are started meanwhile.

        Args:
            return_when: `FIRST_COMPLETED` to wait for one task only, as of `asyncio.wait`.
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

        A task that ends may start another one, which may run as long as the cancelled tasks do, and
        is then cancelled. Starting it is no error: its owner could only ignore that.
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
    """Run work until it returns, and again after each failure that it does not handle itself."""
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


class Interrupted(Exception):
    """Something else has happened before the work was done."""


async def run_unless(work: Awaitable[T], *interruptions: Coroutine[Any, Any, object]) -> T:
    """Return the result of work; cancel it and raise `Interrupted` once an interruption is over."""
    task = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(each) for each in interruptions]
    try:
        await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted
        return task.result()
    finally:
        for each in (task, *others):
            each.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)
        del task  # its exception refers to this frame: it would be a cycle


def start_shared_task(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task for `wait_for_shared`. It may fail without anybody waiting any more."""
    # Its log lines have no ids of the caller's context: it goes on when that one gives up.
    task = asyncio.get_running_loop().create_task(coro, context=Context())
    task.add_done_callback(_retrieve_exception)
    return task


async def wait_for_shared(task: asyncio.Task[T], cancelled: Exception) -> T:
    """Return the result of a shared task, or raise `cancelled` if only the task was cancelled."""
    try:
        # The shield: one caller that gives up must not take the task from the others.
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        # If both were cancelled it is the caller's, because a task whose cancellation is swallowed
        # never ends.
        if not task.cancelled() or (caller is not None and caller.cancelling() > 0):
            raise
        raise cancelled from None


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved: no warning when nobody waits for it any more
