"""One topic set as its clients share it: a tail, and a channel for each view of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from ..core.channel import Channel, trim
from ..core.record import Entry
from ..core.tail import Tail
from .wire import Wire

ANNOUNCE = 10.0  # seconds between `position` events where every event has its id

ChannelKey: TypeAlias = tuple[bytes, Wire]  # digest of the view


class SharedTail:
    """A tail, its channels by view, and when it was last of use."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.channels: dict[ChannelKey, Channel] = {}
        self.used = 0.0
        self.announced: dict[ChannelKey, float] = {}
        self.changed: set[asyncio.Future[None]] = set()

    @property
    def idle(self) -> bool:
        return not any(channel.followers for channel in self.channels.values())

    def is_due(self, key: ChannelKey, now: float) -> bool:
        """Is it time to tell a channel's idle clients where they are? At once where ids come
        in batches only: they must not stay out for longer than a quarter of a second."""
        if self.tail.exact and now - self.announced.get(key, now - ANNOUNCE) < ANNOUNCE:
            return False
        self.announced[key] = now
        return True

    def publish(self, entries: Iterable[Entry], wall: int) -> None:
        """What became ready in one turn of the loop, to all channels. `wall` in seconds of the
        epoch."""
        turn = self.tail.turn(entries, wall)
        for channel in self.channels.values():
            if channel.followers and channel.publish(turn) is not None:
                channel.notify()
        trim(self.tail, self.channels.values())
        for waiting in self.changed:
            if not waiting.done():
                waiting.set_result(None)
