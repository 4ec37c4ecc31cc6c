"""Hand an update of the tail to the channels that it concerns, however many others there are.

A channel without filters and fields encodes the update itself. Of the others, the filter index
finds those that a record concerns; gaps, faults and readiness concern all. An event is built once
for all channels that share an encoder. A record is encoded for all of them before the next one, so
that those which show other fields of it share the parsed value. The channels that got a chunk are
noted with the update, and when the update is too old they are the only ones to drop chunks, so that
idle channels cost nothing: 2,000 channels, each for one key, take 4 us a record in all.

The readiness of a partition concerns every channel, but moves no position. Where filtered channels
are many, they are informed later, some at a time: all at once takes 14 us each, 14 s for a million.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from gateway.core.log.record import Entry, Fault, Ready, Record, Skip

from .channel import Channel, Encoder, build_event
from .chunk_ring import ChannelEvent
from .conflation import conflate
from .filter_index import FilterIndex
from .filters import Filters
from .tail import Tail, TailUpdate

MAX_UPDATES = 4096  # updates whose chunks and positions are kept at most
MAX_MOVES = 16 * MAX_UPDATES  # positions that these updates moved: 10 MiB
MIN_HOLDERS = 4096  # chunk holders that are noted at most before those without a chunk are dropped
# Channels that are removed, and bytes of their filters, before the holders are looked through.
MIN_REMOVED, MAX_REMOVED_BYTES = 64, 1 << 20
MAX_NOTIFIED_AT_ONCE = 50  # filtered channels that are told at once of a partition's state


class ChannelDispatcher:
    """The channels of one tail.

    Owned by the hub's `SharedTail`, which passes every `TailUpdate` to it exactly once, in order.

    Invariant between calls: `_chunk_holders` has one list for each update from `tail.oldest_seq` to
    `tail.seq`, where the last one is for the next update. The list of an update names the channels
    that got a chunk of it, and have not all dropped it: those that have are forgotten now and then,
    since on a topic with few records many clients may come and go within `MAX_UPDATES`.
    """

    def __init__(
        self, tail: Tail, on_unreadable: Callable[[Record], None] = lambda record: None
    ) -> None:
        self.tail = tail
        self._unfiltered: set[Channel] = set()  # without filters and fields
        self._filter_index: FilterIndex[Channel] = FilterIndex(on_unreadable)
        seqs = range(tail.oldest_seq, tail.seq + 1)
        self._chunk_holders: deque[list[Channel]] = deque([] for _ in seqs)
        self._holder_count = 0  # in all of these lists
        self._max_holder_count = MIN_HOLDERS  # before those without a chunk are forgotten
        self._removed_count = self._removed_bytes = 0  # since they were: some may still be named
        # What is still to be told, the oldest first, and the channels that do not have it yet. Of
        # each partition there is only what the latest update said.
        self._notices: deque[tuple[list[Entry], list[Channel]]] = deque()

    @property
    def has_notices(self) -> bool:
        return bool(self._notices)

    def add(self, channel: Channel, filters: Filters, *, has_fields: bool = False) -> None:
        if filters.filters or has_fields:
            self._filter_index.add(channel, filters)
        else:
            self._unfiltered.add(channel)

    def remove(self, channel: Channel, filters: Filters, size: int = 0) -> None:
        """Remove a channel that has no followers any more, and drop its chunks.

        `size` are the bytes of its view, which are as many as its clients choose.
        """
        if channel in self._unfiltered:
            self._unfiltered.remove(channel)
        else:
            self._filter_index.remove(channel, filters)
        channel.evict_before(self.tail.seq + 1)
        self._removed_count += 1
        self._removed_bytes += size
        is_last = not self._unfiltered and not self._filter_index
        if is_last:
            self._notices.clear()
        has_many = self._removed_count > MIN_REMOVED + self._holder_count // 4
        if is_last or has_many or self._removed_bytes > MAX_REMOVED_BYTES:
            self._forget_dropped_chunks()

    def publish(self, update: TailUpdate) -> list[Channel]:
        published = [
            channel
            for channel in self._unfiltered
            if channel.followers and channel.publish(update) is not None
        ]
        if self._filter_index:
            published += self._publish_filtered(update)
        self._note_holders(published)
        self._chunk_holders.append([])
        self._trim_updates()
        return published

    def publish_notices(self) -> list[Channel]:
        """Inform the next filtered channels, if any, of a partition's state; return those."""
        if not self._notices:
            return []
        published = list[Channel]()
        entries, channels = self._notices[0]
        batch = channels[-MAX_NOTIFIED_AT_ONCE:]
        # Before anything can fail, so that nothing is told twice.
        del channels[-MAX_NOTIFIED_AT_ONCE:]
        if not channels:
            self._notices.popleft()
        update = TailUpdate(self.tail.seq, (), self.tail.token_text)
        for channel in batch:
            built = (build_event(channel.encoder, entry, update.token_text) for entry in entries)
            events = [event for event in built if event is not None]
            if events and channel.followers:
                channel.publish_events(update, events, entries)
                published.append(channel)
        # As with announced positions: the chunk has the number of the next update.
        self._note_holders(published)
        return published

    def announce_position(self, channel: Channel) -> bool:
        if channel.announce_position() is None:
            return False
        # The chunk has the number of the next update, and is dropped together with those of that.
        self._note_holders([channel])
        return True

    def _publish_filtered(self, update: TailUpdate) -> list[Channel]:
        # What is told later must not come before what was to be told earlier.
        if self._notices or len(self._filter_index) > MAX_NOTIFIED_AT_ONCE:
            update = self._defer_notices(update)
        # What concerns every channel.
        controls = [entry for entry, _ in update.entries if type(entry) not in (Record, Skip)]
        find = self._find_latest(update) if self.tail.is_conflated else self._find_channels
        events_by_channel = self._select_events(update, find)
        for channel, events in events_by_channel.items():
            channel.publish_events(update, events, controls)
        return list(events_by_channel)

    def _defer_notices(self, update: TailUpdate) -> TailUpdate:
        notices = [entry for entry, _ in update.entries if type(entry) in (Ready, Fault)]
        if not notices:
            return update
        # Who was not told yet of what these partitions were before is told what they are now.
        tps = {entry.tp for entry in notices}
        for earlier, _ in self._notices:
            earlier[:] = [entry for entry in earlier if entry.tp not in tps]
        self._notices = deque(item for item in self._notices if item[0])
        self._notices.append((notices, list(self._filter_index)))
        rest = [each for each in update.entries if type(each.entry) not in (Ready, Fault)]
        return update._replace(entries=rest)

    def _select_events(
        self, update: TailUpdate, find: Callable[[Entry], Iterable[Channel]]
    ) -> dict[Channel, list[ChannelEvent]]:
        """Return the events that each channel shows of an update.

        Where ids come in batches, an event gets the last token text before the channel's next
        event, so that its id also covers the entries that the channel does not show.
        """
        events_by_channel: dict[Channel, list[ChannelEvent]] = {}
        is_batched, last_index = not self.tail.has_exact_tokens, dict[Channel, int]()
        text_index, last_text = -1, b""
        for n, (entry, text) in enumerate(update.entries):
            built: dict[Encoder, ChannelEvent | None] = {}
            for channel in find(entry):
                encoder = channel.encoder
                if encoder not in built:
                    built[encoder] = build_event(encoder, entry, text)
                event = built[encoder]
                if event is None or not channel.followers:
                    continue
                events = events_by_channel.setdefault(channel, [])
                # A text that was written at or after the channel's previous event covers it.
                if is_batched and events and text_index >= last_index[channel]:
                    events[-1] = events[-1]._replace(token_text=last_text)
                if is_batched:
                    last_index[channel] = n
                events.append(event)
            if is_batched and text is not None:
                text_index, last_text = n, text
        return events_by_channel

    def _find_latest(self, update: TailUpdate) -> Callable[[Entry], Iterable[Channel]]:
        """Return what finds the channels in which an entry is not replaced by a later one."""
        # Filter first, then conflate: a record that a channel does not show replaces none there.
        shown: dict[Channel, list[Entry]] = {}
        for entry, _ in update.entries:
            for channel in self._find_channels(entry):
                if channel.followers:
                    shown.setdefault(channel, []).append(entry)
        latest: dict[int, list[Channel]] = {}
        for channel, entries in shown.items():
            for entry in conflate(entries):
                latest.setdefault(id(entry), []).append(channel)
        return lambda entry: latest.get(id(entry), ())

    def _find_channels(self, entry: Entry) -> Iterable[Channel]:
        if type(entry) is Record:
            return self._filter_index.find(entry)
        return () if type(entry) is Skip else self._filter_index

    def _trim_updates(self) -> None:
        """Forget old updates that no channel holds a chunk of, and those beyond the bounds.

        The last update stays. Channels drop their chunks of an update before it is forgotten:
        followers that fall behind by this need `position_before`.
        """
        tail = self.tail
        while tail.seq - tail.oldest_seq > 1:
            before = tail.oldest_seq + 1
            holders = self._chunk_holders[0]
            while holders and not holders[-1].holds_update(tail.oldest_seq):
                holders.pop()
                self._holder_count -= 1
            if holders and tail.seq - before < MAX_UPDATES and tail.move_count <= MAX_MOVES:
                return
            self._chunk_holders.popleft()
            self._holder_count -= len(holders)
            for channel in holders:
                channel.evict_before(before)
            tail.forget_updates(before)

    def _note_holders(self, channels: Sequence[Channel]) -> None:
        self._chunk_holders[-1] += channels
        self._holder_count += len(channels)
        if self._holder_count > self._max_holder_count:
            self._forget_dropped_chunks()

    def _forget_dropped_chunks(self) -> None:
        """Forget the channels that hold no chunk of an update any more, in O(1) per note."""
        count = self._removed_count = self._removed_bytes = 0
        for seq, holders in enumerate(self._chunk_holders, self.tail.oldest_seq):
            if holders:
                holders[:] = [channel for channel in holders if channel.holds_update(seq)]
                count += len(holders)
        self._holder_count, self._max_holder_count = count, max(MIN_HOLDERS, 2 * count)
