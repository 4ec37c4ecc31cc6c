"""What a client of a route with `maxRate` may be sent now.

It has as much credit as its rate leaves, and gets more by a timer as time passes: what is beyond
waits as it does for one that grants no credit, in the ring at first, and then as `slowClient` says.
A client that has credit is in no round: it is served by itself, and those who ride pay nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from gateway.config import Rate
from gateway.core.client.subscription import Subscription
from gateway.core.client.throttle import Throttle


class RateLimiter:
    """
    credit: records that the client itself has asked for; None for any number.
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
        """Of a subscription that was not taken from yet, whose credit is all that its client asked
        for. before: of the client in whose place it comes."""
        made = cls(Throttle(rate.count, rate.seconds, previous), subscription.credit)
        subscription.credit = made.get_capacity(asyncio.get_running_loop().time())
        return made

    def grant_credit(self, records: int) -> None:
        """To a client that asked for a limit."""
        if self.credit is not None:
            self.credit += records

    def get_capacity(self, now: float) -> int:
        """Records that may be sent now, by the loop's clock."""
        room = self.throttle.get_capacity(now)
        return room if self.credit is None else min(room, self.credit)

    def take(self, subscription: Subscription, max_bytes: int, wake: Callable[[], None]) -> bytes:
        """As of the subscription, of which it is the only one that takes. wake: called when there
        is room again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        subscription.credit = lent = self.get_capacity(now)
        data = subscription.take(max_bytes)
        spent = lent - subscription.credit
        if spent:
            self.throttle.record_sent(spent, now)
            if self.credit is not None:
                self.credit -= spent
        subscription.credit = self.get_capacity(now)
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
