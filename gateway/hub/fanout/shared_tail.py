"""One topic set as its clients share it: a tail, and a channel for each view of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gateway.core.channel.channel import Channel
from gateway.core.channel.dispatcher import ChannelDispatcher
from gateway.core.channel.filters import Filters
from gateway.core.log.partition_reader import PartitionReader
from gateway.core.log.record import Entry, Record
from gateway.core.log.tail import Tail, TailUpdate
from gateway.hub.reads.stream_start import count_partitions
from gateway.hub.wires.wire import Wire

from .view import View

if TYPE_CHECKING:
    from gateway.telemetry.traces import TracedRecord, Tracing

ANNOUNCE_INTERVAL_S = (
    10.0  # seconds between `position` events where no event brought an id meanwhile
)
MAX_ANNOUNCED_AT_ONCE = 200  # channels that are told theirs without a turn for others: 2 ms

ChannelKey: TypeAlias = tuple[View, Wire]  # compared whole: a digest would let two views share


class SharedTail:
    """A tail, its channels by view, and when it was last of use."""

    tracing: Tracing | None = None

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.channels: dict[ChannelKey, Channel] = {}
        self.used_at = 0.0
        self.has_left_channels = False  # somebody went: a channel may have nobody
        self.refreshed_at = 0.0  # when readiness was looked at, by the loop's clock
        self.resolving_readers: Sequence[PartitionReader] = ()  # those that were then
        self.ready_waiters: set[asyncio.Future[None]] = set()
        self._partition_counts: dict[str, int] = {}
        self._counted_partitions = 0  # partitions when it was
        self._dispatcher = ChannelDispatcher(tail)
        self._announce_queue: deque[tuple[float, Channel]] = (
            deque()
        )  # who is to hear of its position when
        self._unannounced: dict[Channel, None] = {}  # who may have sent events after its last id

    @property
    def is_idle(self) -> bool:
        return not any(channel.followers for channel in self.channels.values())

    def count_partitions(self) -> dict[str, int]:
        """How many partitions each topic has, as clients are told."""
        if self._counted_partitions != len(self.tail.logs):
            self._counted_partitions, self._partition_counts = (
                len(self.tail.logs),
                count_partitions(self.tail.logs),
            )
        return self._partition_counts

    def add_channel(self, key: ChannelKey, channel: Channel, filters: Filters) -> None:
        self.channels[key] = channel
        self._dispatcher.add(channel, filters)
        self._announce_queue.appendleft((0.0, channel))

    def remove_left_channels(self) -> list[Channel]:
        """Channels that nobody follows any more go; those that went."""
        if not self.has_left_channels:
            return []
        self.has_left_channels = False
        left = [key for key, channel in self.channels.items() if not channel.followers]
        gone = [self.channels.pop(key) for key in left]
        for channel in gone:
            self._dispatcher.remove(channel)
            self._unannounced.pop(channel, None)
        return gone

    def publish(self, entries: Iterable[Entry], wall: int) -> None:
        """What became ready in one turn of the loop, to the channels that it concerns. `wall` in
        seconds of the epoch."""
        turn = self.tail.apply_entries(entries, wall)
        told = self._dispatcher.publish(turn)
        if self.tracing is not None and not self.tail.is_conflated:
            self._trace_records(self.tracing, turn, told)
        if not self.tail.has_exact_tokens:
            self._unannounced.update(dict.fromkeys(told))
        for channel in told:
            channel.notify_followers()
        self.tail.wake_readers()
        for waiting in self.ready_waiters:
            if not waiting.done():
                waiting.set_result(None)

    def _trace_records(
        self, tracing: Tracing, update: TailUpdate, channels: Sequence[Channel]
    ) -> None:
        """Note which of the records just published are traced."""
        found: list[tuple[Record, TracedRecord]] = []
        for entry, _ in update.entries:
            if type(entry) is Record and entry.headers and tracing.may_trace(entry.headers):
                followed = tracing.trace_record(*entry.tp, entry.offset, entry.headers)
                if followed is not None:
                    found.append((entry, followed))
        for channel in channels if found else ():
            if channel.first_seq == channel.next_seq:  # dropped at once, for want of memory
                continue
            accepts, chunk = channel.accepts, channel.get_chunk(channel.next_seq - 1)
            chunk.traced_records = [
                one for entry, one in found if accepts is None or accepts(entry)
            ]

    def announce_positions(self, now: float) -> None:
        """Tell clients where they are, by the loop's clock: at once those that were sent events
        after their last id (it must not stay out for longer than a quarter of a second), the
        others now and then."""
        for _ in range(MAX_ANNOUNCED_AT_ONCE):
            if self._unannounced:
                channel, _ = self._unannounced.popitem()
                if not channel.has_unsent_id:
                    continue
            elif self._announce_queue and self._announce_queue[0][0] <= now:
                _, channel = self._announce_queue.popleft()
                if not channel.followers:
                    continue
                self._announce_queue.append((now + ANNOUNCE_INTERVAL_S, channel))
                if channel.has_sent_id:
                    channel.has_sent_id = False
                    continue
            else:
                return
            if self._dispatcher.announce_position(channel):
                channel.notify_followers()
        asyncio.get_running_loop().call_soon(self.announce_positions, now)
