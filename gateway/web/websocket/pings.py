"""Ping all WebSockets of a server by one timer, however many there are.

The connections are spread over a wheel of slots, of which the timer visits one after the other. A
timer for each connection would hold 520 bytes and take 0.5 us a ping. New connections go to the
slots in rotation, so that a thousand clients that connected at once are not pinged at once.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from gateway.wire.websocket import encode_ping

if TYPE_CHECKING:
    from .connection import WebSocketConnection

SLOT_COUNT = 64


class PingScheduler:
    """A wheel of slots that visits every connection once an interval.

    There is one for each server. The timer runs while there are connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self.loop = loop
        self._slot_interval_s = interval_s / SLOT_COUNT
        self._slots: list[set[WebSocketConnection]] = [set() for _ in range(SLOT_COUNT)]
        self._current_slot = 0
        self._last_slot = 0
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def add(self, target: WebSocketConnection) -> None:
        self._last_slot = (self._last_slot + 1) % SLOT_COUNT
        target.ping_slot = self._last_slot
        self._slots[target.ping_slot].add(target)
        self._count += 1
        if self._timer is None:
            self._timer = self.loop.call_later(self._slot_interval_s, self._ping_current_slot)

    def discard(self, target: WebSocketConnection) -> None:
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
        # One frame for all of them: a server's frames carry no mask.
        now, frame = self.loop.time(), encode_ping(payload)
        for target in list(self._slots[self._current_slot]):
            target.on_ping_due(now, payload, frame)
