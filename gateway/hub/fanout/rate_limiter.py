"""Limit what a client of a route with `maxRate` is sent.

The limiter sets the credit of the client's subscription to what the rate leaves, and wakes the
client by a timer. Records beyond the credit wait as for a client that grants no credit: at first in
the channel's ring, and then as the route's `slowClient` says. A subscription with credit never
joins a round, so clients without a rate are not slowed down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self

from gateway.config import Rate
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import Throttle


class RateLimiter:
    """Lend credit to one subscription within a rate.

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
