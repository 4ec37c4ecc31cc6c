"""Timers towards a moment of the wall clock, such as the end of a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

MAX_TIMER_SECONDS = 10.0  # from one look at the wall clock to the next


class WallAlarm:
    """Call something once a moment of the wall clock has come, also if that clock is stepped.

    Timers of the event loop go by a monotonic clock, which knows nothing of steps and stands still
    while a machine is suspended. So the wall clock is looked at every ten seconds.
    """

    __slots__ = ("_at", "_clock", "_ring", "_timer")

    def __init__(
        self, at: float, ring: Callable[[], object], clock: Callable[[], float] = time.time
    ) -> None:
        """Arm it, for the running loop.

        Args:
            at: The moment, in seconds since 1970. One that is past rings in the next turn.
            ring: Called once, unless the alarm was cancelled before.
            clock: Tells the time, in seconds since 1970.
        """
        self._at = at
        self._clock = clock
        self._ring = ring
        self._timer = self._arm()

    def cancel(self) -> None:
        """Let it not ring."""
        self._timer.cancel()

    def _arm(self) -> asyncio.TimerHandle:
        left = min(max(0.0, self._at - self._clock()), MAX_TIMER_SECONDS)
        return asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        if self._clock() < self._at:
            self._timer = self._arm()
        else:
            self._ring()
