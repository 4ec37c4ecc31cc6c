"""The pings of all WebSockets of a server: one timer, however many there are.

A wheel of slots: each connection stands in one, and is visited once a round. A timer for each
connection would be 520 bytes and 0.5 us a ping. The slots are filled in turn, so that a thousand
that connected at once are not pinged at once.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

from gateway.wire.websocket import ping

SLOTS = 64


class Pinged(Protocol):
    slot: int

    def beat(self, now: float, payload: bytes, frame: bytes) -> None:
        """It is time for a ping, if the last one was answered. payload: that of the frame."""


class Pulse:
    """A round takes so many seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self._every = seconds / SLOTS
        self._slots: list[set[Pinged]] = [set() for _ in range(SLOTS)]
        self._hand = 0
        self._next = 0
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, each: Pinged) -> None:
        self._next = (self._next + 1) % SLOTS
        each.slot = self._next
        self._slots[each.slot].add(each)
        self._count += 1
        if self._timer is None:
            self._timer = self.loop.call_later(self._every, self._tick)

    def discard(self, each: Pinged) -> None:
        slot = self._slots[each.slot]
        if each in slot:
            slot.discard(each)
            self._count -= 1
        if not self._count and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self.loop.call_later(self._every, self._tick)
        self._hand = (self._hand + 1) % SLOTS
        payload = os.urandom(4)
        now, frame = self.loop.time(), ping(payload)
        for each in list(self._slots[self._hand]):
            each.beat(now, payload, frame)
