"""Run a blocking call in a daemon thread.

`asyncio.to_thread` is not used, because its threads are joined when the loop closes and again when
the process exits: a telemetry back end that does not answer would delay both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(func: Callable[[], T], name: str) -> T:
    """Run a function in a daemon thread, which goes on if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = func()
        except BaseException as exc:
            error = exc
        with suppress(RuntimeError):  # the loop is closed, so nobody waits for the result
            loop.call_soon_threadsafe(set_outcome, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
