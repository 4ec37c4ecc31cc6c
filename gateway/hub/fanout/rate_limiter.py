"""Limit what a client of a route with `maxRate` is sent.

The limiter sets the credit of the client's subscription to what the rate leaves, and wakes the
client by a timer when time has passed. Records beyond the credit wait as they do for a client that
grants no credit: at first in the channel's ring, and then as the route's `slowClient` says. A
subscription with credit never joins a round, so clients without a rate are not slowed down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self

from gateway.config import Rate
from gateway.core.client.subscription import Subscription
from gateway.core.client.throttle import Throttle


class RateLimiter:
    """Lend credit to one subscription within a rate.

    `Hub.subscribe` creates one for a client, which owns and closes it. It is the only one that
    takes from the subscription: the credit that the subscription has is what the rate and the
    client leave together.

    Attributes:
        throttle: The number of records that the rate leaves.
        credit: The number of records that the client itself has asked for; None for any number.
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

        Args:
            subscription: The subscription; its credit is what its client has asked for.
            previous: The throttle of the client that this one replaces; what it let through counts.
        """
        limiter = cls(Throttle(rate.count, rate.seconds, previous), subscription.credit)
        subscription.limit_credit(limiter.get_capacity(asyncio.get_running_loop().time()))
        return limiter

    def grant_credit(self, records: int) -> None:
        """Let a client that asked for a limit be sent so many more records, within the rate."""
        if self.credit is not None:
            self.credit += records

    def get_capacity(self, now: float) -> int:
        """Return the number of records that may be sent now.

        Args:
            now: The time by the loop's clock, in seconds.
        """
        capacity = self.throttle.get_capacity(now)
        return capacity if self.credit is None else min(capacity, self.credit)

    def take(self, subscription: Subscription, max_bytes: int, wake: Callable[[], None]) -> bytes:
        """Take bytes from the subscription, as far as the rate and the client's credit allow.

        Args:
            subscription: The subscription; nobody else may take from it.
            max_bytes: About how many bytes to take.
            wake: Called when more may be sent, if the rate is why nothing more may be sent now.

        Returns:
            The bytes; empty if there are none.
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
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_available(self, wake: Callable[[], None]) -> None:
        self._timer = None
        wake()
