"""An event loop whose clock jumps to the next timer as soon as nothing else is left to do."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Minutes of timers pass in milliseconds. Nothing in it may use a socket or a thread."""

    def __init__(self) -> None:
        self.current_time = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self.current_time


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing is left to do, and no timer is set"
        self._loop.current_time += max(0.0, timeout)
        # Or timers run a nanosecond early: time stood still where two tasks waited in turns.
        self._loop._clock_resolution = math.ulp(self._loop.current_time)
        return super().select(0)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Return what `main` returns, run in a `VirtualLoop` of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run a test in a `VirtualLoop` of its own. Its fixtures may not be asynchronous."""

    @wraps(test)
    def run_test(*args: P.args, **options: P.kwargs) -> T:
        return run_in_virtual_time(test(*args, **options))

    return run_test
