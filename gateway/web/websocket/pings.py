"""The pings of all WebSockets of a server: one timer, however many there are.

A wheel of slots: each connection stands in one, and is visited once a round. A timer for each
connection would be 520 bytes and 0.5 us a ping. The slots are filled in turn, so that a thousand
that connected at once are not pinged at once.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

from gateway.wire.websocket import encode_ping

SLOT_COUNT = 64


class PingTarget(Protocol):
    ping_slot: int

    def on_ping_due(self, now: float, payload: bytes, frame: bytes) -> None:
        """It is time for a ping, if the last one was answered. payload: that of the frame."""


class PingScheduler:
    """A round takes so many seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self.loop = loop
        self._slot_interval_s = interval_s / SLOT_COUNT
        self._slots: list[set[PingTarget]] = [set() for _ in range(SLOT_COUNT)]
        self._current_slot = 0
        self._last_slot = 0
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, target: PingTarget) -> None:
        self._last_slot = (self._last_slot + 1) % SLOT_COUNT
        target.ping_slot = self._last_slot
        self._slots[target.ping_slot].add(target)
        self._count += 1
        if self._timer is None:
            self._timer = self.loop.call_later(self._slot_interval_s, self._ping_current_slot)

    def discard(self, target: PingTarget) -> None:
        slot = self._slots[target.ping_slot]
        if target in slot:
            slot.discard(target)
            self._count -= 1
        if not self._count and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ping_current_slot(self) -> None:
        self._timer = self.loop.call_later(self._slot_interval_s, self._ping_current_slot)
        self._current_slot = (self._current_slot + 1) % SLOT_COUNT
        payload = os.urandom(4)
        now, frame = self.loop.time(), encode_ping(payload)
        for each in list(self._slots[self._current_slot]):
            each.on_ping_due(now, payload, frame)
