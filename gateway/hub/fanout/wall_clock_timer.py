"""Timers towards a moment of the wall clock, such as the end of a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

MAX_TIMER_S = 10.0  # from one look at the wall clock to the next


class WallClockTimer:
    """Call something once a moment of the wall clock has come, also if that clock is stepped.

    Timers of the event loop go by a monotonic clock, which knows nothing of steps and stands still
    while a machine is suspended. So the wall clock is looked at every ten seconds.
    """

    __slots__ = ("_callback", "_clock", "_deadline", "_timer")

    def __init__(
        self,
        deadline: float,
        callback: Callable[[], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Arm it, for the running loop.

        Args:
            at: The moment, in seconds since 1970. One that is past rings in the next turn.
            ring: Called once, unless the alarm was cancelled before.
            clock: Tells the time, in seconds since 1970.
        """
        self._deadline = deadline
        self._clock = clock
        self._callback = callback
        self._timer = self._schedule_check()

    def cancel(self) -> None:
        """Let it not ring."""
        self._timer.cancel()

    def _schedule_check(self) -> asyncio.TimerHandle:
        left = min(max(0.0, self._deadline - self._clock()), MAX_TIMER_S)
        return asyncio.get_running_loop().call_later(left, self._check_clock)

    def _check_clock(self) -> None:
        if self._clock() < self._deadline:
            self._timer = self._schedule_check()
        else:
            self._callback()
