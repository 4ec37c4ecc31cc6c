"""One topic set as its clients share it: a tail, and a channel for each view of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gateway.core.channel.channel import Channel
from gateway.core.channel.dispatcher import Spread
from gateway.core.channel.filters import Filters
from gateway.core.log.partition_reader import Reading
from gateway.core.log.record import Entry, Record
from gateway.core.log.tail import Tail, Turn
from gateway.hub.reads.resume import named
from gateway.hub.wires.wire import Wire

from .view import View

if TYPE_CHECKING:
    from gateway.telemetry.traces import Followed, Tracing

ANNOUNCE = 10.0  # seconds between `position` events where no event brought an id meanwhile
AT_ONCE = 200  # channels that are told theirs without a turn for others: 2 ms

ChannelKey: TypeAlias = tuple[View, Wire]  # compared whole: a digest would let two views share


class SharedTail:
    """A tail, its channels by view, and when it was last of use."""

    tracing: Tracing | None = None

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.channels: dict[ChannelKey, Channel] = {}
        self.used = 0.0
        self.was_left = False  # somebody went: a channel may have nobody
        self.refreshed_at = 0.0  # when readiness was looked at, by the loop's clock
        self.resolving: Sequence[Reading] = ()  # those that were then
        self.changed: set[asyncio.Future[None]] = set()
        self._named: dict[str, int] = {}
        self._counted = 0  # partitions when it was
        self._spread = Spread(tail)
        self._due: deque[tuple[float, Channel]] = deque()  # who is to hear of its position when
        self._owed: dict[Channel, None] = {}  # who may have sent events after its last id

    @property
    def idle(self) -> bool:
        return not any(channel.followers for channel in self.channels.values())

    def named(self) -> dict[str, int]:
        """How many partitions each topic has, as clients are told."""
        if self._counted != len(self.tail.logs):
            self._counted, self._named = len(self.tail.logs), named(self.tail.logs)
        return self._named

    def add(self, key: ChannelKey, channel: Channel, filters: Filters) -> None:
        self.channels[key] = channel
        self._spread.add(channel, filters)
        self._due.appendleft((0.0, channel))

    def drop_left(self) -> list[Channel]:
        """Channels that nobody follows any more go; those that went."""
        if not self.was_left:
            return []
        self.was_left = False
        left = [key for key, channel in self.channels.items() if not channel.followers]
        gone = [self.channels.pop(key) for key in left]
        for channel in gone:
            self._spread.remove(channel)
            self._owed.pop(channel, None)
        return gone

    def publish(self, entries: Iterable[Entry], wall: int) -> None:
        """What became ready in one turn of the loop, to the channels that it concerns. `wall` in
        seconds of the epoch."""
        turn = self.tail.turn(entries, wall)
        told = self._spread.publish(turn)
        if self.tracing is not None and not self.tail.conflates:
            self._follow(self.tracing, turn, told)
        if not self.tail.exact:
            self._owed.update(dict.fromkeys(told))
        for channel in told:
            channel.notify()
        self.tail.wake_readers()
        for waiting in self.changed:
            if not waiting.done():
                waiting.set_result(None)

    def _follow(self, tracing: Tracing, turn: Turn, told: Sequence[Channel]) -> None:
        """Note which of the records just published are traced."""
        found: list[tuple[Record, Followed]] = []
        for entry, _ in turn.items:
            if type(entry) is Record and entry.headers and tracing.may_follow(entry.headers):
                followed = tracing.follow(*entry.tp, entry.offset, entry.headers)
                if followed is not None:
                    found.append((entry, followed))
        for channel in told if found else ():
            if channel.first == channel.head:  # dropped at once, for want of memory
                continue
            accepts, chunk = channel.accepts, channel.chunk(channel.head - 1)
            chunk.followed = [one for entry, one in found if accepts is None or accepts(entry)]

    def announce(self, now: float) -> None:
        """Tell clients where they are, by the loop's clock: at once those that were sent events
        after their last id (it must not stay out for longer than a quarter of a second), the
        others now and then."""
        for _ in range(AT_ONCE):
            if self._owed:
                channel, _ = self._owed.popitem()
                if not channel.owes:
                    continue
            elif self._due and self._due[0][0] <= now:
                _, channel = self._due.popleft()
                if not channel.followers:
                    continue
                self._due.append((now + ANNOUNCE, channel))
                if channel.spoke:
                    channel.spoke = False
                    continue
            else:
                return
            if self._spread.announce(channel):
                channel.notify()
        asyncio.get_running_loop().call_soon(self.announce, now)
