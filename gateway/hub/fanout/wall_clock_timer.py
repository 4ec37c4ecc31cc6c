"""Call functions at a moment of the wall clock, such as the expiry of an access token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

MAX_TIMER_S = 10.0  # seconds from one look at the wall clock to the next


class WallClockTimer:
    """Call a function once a moment of the wall clock has come, also if that clock is stepped.

    Timers of the event loop use a monotonic clock, which ignores steps of the wall clock and stands
    still while a machine is suspended. So this one looks at the wall clock every ten seconds.
    """

    __slots__ = ("_callback", "_clock", "_deadline", "_timer")

    def __init__(
        self,
        deadline: float,
        callback: Callable[[], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start the timer in the running loop.

        If `deadline` (seconds since 1970) is past, the call is made in the loop's next turn.
        """
        self._deadline = deadline
        self._clock = clock
        self._callback = callback
        self._timer = self._schedule_check()

    def cancel(self) -> None:
        self._timer.cancel()

    def _schedule_check(self) -> asyncio.TimerHandle:
        delay = min(max(0.0, self._deadline - self._clock()), MAX_TIMER_S)
        return asyncio.get_running_loop().call_later(delay, self._check_clock)

    def _check_clock(self) -> None:
        if self._clock() < self._deadline:
            self._timer = self._schedule_check()
        else:
            self._callback()
