"""Decide when to send to clients: by what it costs, by the rate of a route, by the wall clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self

from gateway.config import Rate
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import Throttle

REST_FACTOR = 16.0  # the rest after a flush or a slice, as a multiple of what it cost
MAX_REST_S = 0.008  # seconds


class BatchPacing:
    """Decide how long records that arrive from Kafka wait for more.

    Each flush and each slice of a round is followed by a rest in proportion to its cost, except a
    flush of a single record: the next most likely arrives alone, too, and would only arrive later
    (200 clients, 100 records a second: p50 1.9 ms instead of 5 ms).

    `Hub` creates one at each start. `SharedReads` and the `Broadcaster` record in it what they do,
    and the fetcher awaits `pause` before it asks Kafka for more.

    Attributes:
        is_single: The last flush applied a single entry.
        is_behind: Entries that were delivered wait for another flush.
        pushes_done: How many of `pushes_scheduled` have run.
    """

    def __init__(
        self, *, rest_factor: float = REST_FACTOR, clock: Callable[[], float] | None = None
    ) -> None:
        self.is_single = self.is_behind = self.has_rounds = False
        self.pushes_scheduled = self.pushes_done = 0
        self._rest_factor = rest_factor
        self._now = clock or asyncio.get_running_loop().time
        self._rest_until = 0.0

    @property
    def remaining_rest(self) -> float:
        return max(0.0, self._rest_until - self._now())

    async def pause(self) -> None:
        """Wait until the entries just delivered are published and written, and the rest is over.

        The fetcher asks Kafka only then. An answer that arrived during the rest would have to wait
        (2,000 clients with a filter each, 4,000 records a second: p50 6 ms instead of 14 ms).
        """
        await asyncio.sleep(0)  # let it be flushed
        while self.is_behind:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # let its round begin
        rest = self.remaining_rest
        while rest > 0:
            await asyncio.sleep(rest)
            rest = self.remaining_rest

    def record_cost(self, seconds: float) -> None:
        if self.is_single:
            return
        now = self._now()
        rest = self._rest_factor * seconds
        self._rest_until = min(now + MAX_REST_S, max(now, self._rest_until) + rest)


class RateLimiter:
    """Lend credit to one subscription within a rate.

    It limits what a client of a route with `maxRate` is sent: it sets the credit of the client's
    subscription to what the rate leaves, and wakes the client by a timer. Records beyond the credit
    wait as for a client that grants no credit: at first in the channel's ring, and then as the
    route's `slowClient` says. A subscription with credit never joins a round, so clients without a
    rate are not slowed down.

    The client owns and closes it. Nothing else takes from the subscription, whose credit is what
    the rate and the client leave together. `credit` is what the client itself has asked for.
    """

    __slots__ = ("_timer", "credit", "throttle")

    def __init__(self, throttle: Throttle, credit: int | None = None) -> None:
        self.throttle = throttle
        self.credit = credit
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def from_rate(
        cls, rate: Rate, subscription: Subscription, previous: Throttle | None = None
    ) -> Self:
        """Create the limiter of a subscription from which nothing was taken yet.

        `previous` is the throttle of the replaced client; the records that it let through count.
        """
        limiter = cls(Throttle(rate.count, rate.seconds, previous), subscription.credit)
        subscription.limit_credit(limiter.get_capacity(asyncio.get_running_loop().time()))
        return limiter

    def grant_credit(self, records: int) -> None:
        if self.credit is not None:
            self.credit += records

    def get_capacity(self, now: float) -> int:
        capacity = self.throttle.get_capacity(now)
        return capacity if self.credit is None else min(capacity, self.credit)

    def take(self, subscription: Subscription, max_bytes: int, wake: Callable[[], None]) -> bytes:
        """Take about `max_bytes`, as far as the rate and the client's credit allow.

        If the rate is why nothing more may be sent now, `wake` is called when more may be.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        # What is sent now comes off the credit that is lent here, and tells how much it was.
        capacity = self.get_capacity(now)
        subscription.limit_credit(capacity)
        data = subscription.take(max_bytes, time.time())
        assert subscription.credit is not None
        spent = capacity - subscription.credit
        if spent:
            self.throttle.record_sent(spent, now)
            if self.credit is not None:
                self.credit -= spent
        # What is left is lent at once, so that `credit == 0` says whether it has to wait.
        subscription.limit_credit(self.get_capacity(now))
        # If the client itself has no credit, `grant_credit` is what wakes it.
        if subscription.credit == 0 and self.credit != 0 and self._timer is None:
            self._timer = loop.call_at(
                self.throttle.next_capacity_at(now), self._on_available, wake
            )
        return data

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_available(self, wake: Callable[[], None]) -> None:
        self._timer = None
        wake()


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
