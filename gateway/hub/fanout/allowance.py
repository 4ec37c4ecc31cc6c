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


class Allowance:
    """
    credit: records that the client itself has asked for; None for any number.
    """

    __slots__ = ("_alarm", "credit", "throttle")

    def __init__(self, throttle: Throttle, credit: int | None = None) -> None:
        self.throttle = throttle
        self.credit = credit
        self._alarm: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, rate: Rate, subscription: Subscription, before: Throttle | None = None) -> Self:
        """Of a subscription that was not taken from yet, whose credit is all that its client asked
        for. before: of the client in whose place it comes."""
        made = cls(Throttle(rate.count, rate.seconds, before), subscription.credit)
        subscription.credit = made.room(asyncio.get_running_loop().time())
        return made

    def grant(self, records: int) -> None:
        """To a client that asked for a limit."""
        if self.credit is not None:
            self.credit += records

    def room(self, now: float) -> int:
        """Records that may be sent now, by the loop's clock."""
        room = self.throttle.room(now)
        return room if self.credit is None else min(room, self.credit)

    def take(self, subscription: Subscription, budget: int, wake: Callable[[], None]) -> bytes:
        """As of the subscription, of which it is the only one that takes. wake: called when there
        is room again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        subscription.credit = lent = self.room(now)
        data = subscription.take(budget)
        spent = lent - subscription.credit
        if spent:
            self.throttle.spend(spent, now)
            if self.credit is not None:
                self.credit -= spent
        subscription.credit = self.room(now)
        if subscription.credit == 0 and self.credit != 0 and self._alarm is None:
            self._alarm = loop.call_at(self.throttle.again(now), self._ring, wake)
        return data

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self, wake: Callable[[], None]) -> None:
        self._alarm = None
        wake()
