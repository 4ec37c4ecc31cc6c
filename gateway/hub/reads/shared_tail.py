"""Share the live end of a topic set: one tail, and a channel for each view of it.

The entries of one turn of the event loop are applied to the tail and dispatched to the channels
that they concern; their followers are woken afterwards. A `SteppedTail` publishes in steps instead,
at most one per interval of the route.

Clients that are sent no record still have to learn their position now and then, or they would
resume from far behind: `announce_positions` tells them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from gateway.core.channel.channel import Channel
from gateway.core.channel.dispatcher import ChannelDispatcher
from gateway.core.channel.filters import Filters
from gateway.core.channel.tail import Tail, TailUpdate
from gateway.core.log.partition_log import estimate_entry_size
from gateway.core.log.partition_reader import PartitionReader
from gateway.core.log.record import Entry, Ready, Record, TopicPartition
from gateway.hub.wires.wire import Wire

from .view import View

if TYPE_CHECKING:
    from gateway.telemetry.traces import TracedRecord, Tracing


ANNOUNCE_INTERVAL_S = 10.0  # seconds between `position` events of a channel that sent no other id
# Channels of a sweep, of which there are four a second. With more than 20,000 channels the interval
# grows. An announcement takes 20 us; the caches of the processor hold few of a million channels.
MAX_ANNOUNCED_PER_SWEEP = 500
MAX_ANNOUNCED_AT_ONCE = 50  # channels before other tasks get a turn: 1 ms

ChannelKey: TypeAlias = tuple[View, Wire]
"""What a channel is found by. It is compared whole: digests of two views may be equal."""


class SharedTail:
    """A tail and its channels by view, which get what arrives.

    `Hub` creates one for each set of topics and each interval, and drops it soon after its last
    client left: each costs every record of its topics. `SharedReads` calls `publish`, always after
    it appended the same entries to the partitions' logs.

    Attributes:
        channels: The channels by view and wire, also those without followers until the next sweep,
            in the order in which they are to announce their positions.
        refreshed_at: When `SharedReads` last looked at the readiness of the partitions, by the
            loop's clock.
        resolving_readers: The readers that were looking for their start then.
        ready_waiters: Futures of clients that have not begun; each turn completes them.
    """

    tracing: Tracing | None = None

    def __init__(
        self, tail: Tail, on_unreadable: Callable[[Record], None] = lambda record: None
    ) -> None:
        self.tail = tail
        self.channels: OrderedDict[ChannelKey, Channel] = OrderedDict()
        self.view_bytes = 0
        self.refreshed_at = 0.0
        self.resolving_readers: Sequence[PartitionReader] = ()
        self.ready_waiters: set[asyncio.Future[None]] = set()
        self._partition_counts: dict[str, int] = {}
        self._counted_partitions = 0  # the number of partitions that the counts are of
        self._dispatcher = ChannelDispatcher(tail, on_unreadable)
        self._is_publishing_notices = False  # in this turn of the loop or the next
        self._is_announcing = False
        self._announcements_left = 0  # of this sweep
        # Channels that a client left since the last sweep: they may have no followers. Of a million
        # channels, the sweep looks at these only.
        self._left_channels: dict[Channel, None] = {}
        # Channels that may have sent events after their last id (where ids come in batches).
        self._unannounced: dict[Channel, None] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether no channel has a follower, once those that were left are removed."""
        return not self.channels

    def count_partitions(self) -> dict[str, int]:
        if self._counted_partitions != len(self.tail.logs):
            self._counted_partitions, self._partition_counts = (
                len(self.tail.logs),
                count_partitions(self.tail.logs),
            )
        return self._partition_counts

    def on_client_left(self, channel: Channel) -> None:
        """Note that a client left a channel, which may have no followers any more."""
        self._left_channels[channel] = None

    def add_channel(self, key: ChannelKey, channel: Channel, filters: Filters) -> None:
        self.channels[key] = channel
        channel.key = key
        self.view_bytes += key[0].size
        self._dispatcher.add(channel, filters, has_fields=bool(key[0].fields))
        # Its first client has just been sent an id.
        channel.announce_at = asyncio.get_running_loop().time() + ANNOUNCE_INTERVAL_S

    @property
    def has_left_channels(self) -> bool:
        return bool(self._left_channels)

    def remove_left_channels(self, max_count: int) -> list[Channel]:
        """Remove and return channels without followers, of `max_count` that a client left."""
        removed = list[Channel]()
        for _ in range(min(max_count, len(self._left_channels))):
            channel, _ = self._left_channels.popitem()
            # A client may be closed a second time, when another channel has the key.
            key = cast("ChannelKey", channel.key)
            if channel.followers or self.channels.get(key) is not channel:
                continue
            del self.channels[key]
            self.view_bytes -= key[0].size
            self._dispatcher.remove(channel, key[0].filters, key[0].size)
            self._unannounced.pop(channel, None)
            removed.append(channel)
        return removed

    def publish(self, entries: Iterable[Entry], wall: int) -> None:
        """Apply the entries of one turn, and publish them with the wall clock's time, for ids."""
        update = self.tail.apply_entries(entries, wall)
        published = self._dispatcher.publish(update)
        if self.tracing is not None and not self.tail.is_conflated:
            self._trace_records(self.tracing, update, published)
        if not self.tail.has_exact_tokens:  # else each event has its id
            self._unannounced.update(dict.fromkeys(published))
        for channel in published:
            channel.notify_followers()
        if self._dispatcher.has_notices and not self._is_publishing_notices:
            self._is_publishing_notices = True
            asyncio.get_running_loop().call_soon(self._publish_notices)
        # Private readers follow the tail also where their channel shows nothing of this turn.
        self.tail.wake_readers()
        for waiter in self.ready_waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _publish_notices(self) -> None:
        """Tell some channels of a partition's state, and the others in later turns of the loop."""
        try:
            published = self._dispatcher.publish_notices()
            if not self.tail.has_exact_tokens:
                self._unannounced.update(dict.fromkeys(published))
            for channel in published:
                channel.notify_followers()
        finally:
            self._is_publishing_notices = self._dispatcher.has_notices
            if self._is_publishing_notices:
                asyncio.get_running_loop().call_soon(self._publish_notices)

    def _trace_records(
        self, tracing: Tracing, update: TailUpdate, channels: Sequence[Channel]
    ) -> None:
        traced: list[tuple[Record, TracedRecord]] = []
        for entry, _ in update.entries:
            if type(entry) is Record and entry.headers and tracing.may_trace(entry.headers):
                traced_record = tracing.trace_record(*entry.tp, entry.offset, entry.headers)
                if traced_record is not None:
                    traced.append((entry, traced_record))
        for channel in channels if traced else ():
            if channel.first_seq == channel.next_seq:  # the chunk was dropped to free memory
                continue
            accepts, chunk = channel.accepts, channel.get_chunk(channel.next_seq - 1)
            chunk.traced_records = [
                record for entry, record in traced if accepts is None or accepts(entry)
            ]

    def announce_positions(self, now: float) -> None:
        """Send `position` events to the channels whose clients lack a recent id.

        Channels that sent events after their last id come first: an event must not stay without an
        id for longer than a quarter of a second (the sweep's interval). The other channels follow
        every `ANNOUNCE_INTERVAL_S`, or less often if they are very many, unless they sent an id.
        """
        self._announcements_left = MAX_ANNOUNCED_PER_SWEEP
        if not self._is_announcing:
            self._announce_slice(now)

    def _announce_slice(self, now: float) -> None:
        """Announce the positions of some channels, and of the others in later turns of the loop."""
        self._is_announcing = False
        for _ in range(MAX_ANNOUNCED_AT_ONCE):
            channel = self._take_unannounced() or self._take_due(now)
            if channel is None:
                return
            if self._dispatcher.announce_position(channel):
                channel.notify_followers()
        self._is_announcing = True
        asyncio.get_running_loop().call_soon(self._announce_slice, now)

    def _take_unannounced(self) -> Channel | None:
        while self._unannounced:
            channel, _ = self._unannounced.popitem()
            if channel.has_unsent_id:
                return channel
        return None

    def _take_due(self, now: float) -> Channel | None:
        """Schedule a channel that is due again, and return it; None if this sweep has no more."""
        next_at = now + ANNOUNCE_INTERVAL_S
        while self._announcements_left and self.channels:
            key, channel = next(iter(self.channels.items()))
            if channel.announce_at > now:
                break
            self._announcements_left -= 1
            # Also without followers: another client may come before it is removed.
            self.channels.move_to_end(key)
            channel.announce_at = next_at
            if channel.followers and not channel.has_sent_id:
                return channel
            channel.has_sent_id = False
        return None


MAX_STEP_BYTES = 16 << 20  # bytes of entries that cause a step before the interval is over


class SteppedTail(SharedTail):
    """Publish everything that arrives within an interval as one update.

    `Hub` creates one for the views of routes with an `interval`. Its tail is conflated: of an
    update, channels send only the latest record of each key. Entries that arrive after a quiet
    interval are published at once and start the next interval. So does a `Ready`, because clients
    may be waiting for it to begin. Between calls, a timer is set if entries are held back.
    """

    def __init__(
        self,
        tail: Tail,
        interval: float,
        on_unreadable: Callable[[Record], None] = lambda record: None,
        *,
        max_step_bytes: int = MAX_STEP_BYTES,
    ) -> None:
        super().__init__(tail, on_unreadable)
        self._interval = interval
        self._max_step_bytes = max_step_bytes
        self._loop = asyncio.get_running_loop()
        self._pending_entries: list[Entry] = []
        self._pending_bytes = 0
        self._next_step_at = 0.0  # when the next step may be taken, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, entries: Iterable[Entry], wall: int) -> None:
        """Hold entries back until the next step is due. Its time counts, not `wall`."""
        ready = False
        for entry in entries:
            self._pending_entries.append(entry)
            self._pending_bytes += estimate_entry_size(entry)
            ready = ready or type(entry) is Ready
        if (
            ready
            or self._pending_bytes >= self._max_step_bytes
            or self._loop.time() >= self._next_step_at
        ):
            self._publish_step()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_step_at, self._publish_step)

    def _publish_step(self) -> None:
        if self._timer is not None:  # also if this is its call: cancelling it has no effect then
            self._timer.cancel()
            self._timer = None
        entries, self._pending_entries, self._pending_bytes = self._pending_entries, [], 0
        self._next_step_at = self._loop.time() + self._interval
        super().publish(entries, int(time.time()))


def count_partitions(tps: Iterable[TopicPartition]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tp in tps:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts
