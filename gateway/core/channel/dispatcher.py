"""One turn to the channels that it concerns, whatever the number of the others.

A channel without a filter takes a turn as it is. Of the others the index says which ones a
record concerns; gaps and readiness concern all. An event is made once for all channels of
one encoder. What a channel holds is let go when its turn is too old, by the turn, so that
no channel is looked at for nothing: 2,000 on keys of their own take 4 us a record in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.core.log.record import Entry, Gap, Ready, Record, Skip
from gateway.core.log.tail import Tail, TailUpdate

from .channel import Channel, ChannelEvent, Encoder, build_event
from .conflation import conflate
from .filter_index import FilterIndex
from .filters import Filters

MAX_UPDATES = 4096


class ChannelDispatcher:
    """The channels of one tail."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._unfiltered: set[Channel] = set()
        self._filter_index: FilterIndex[Channel] = FilterIndex()
        turns = range(tail.oldest_seq, tail.seq + 1)
        self._chunk_holders: deque[list[Channel]] = deque(
            [] for _ in turns
        )  # who has chunks of which

    def add(self, channel: Channel, filters: Filters) -> None:
        """filters: those that the channel accepts by."""
        if filters.filters:
            self._filter_index.add(channel, filters)
        else:
            self._unfiltered.add(channel)

    def remove(self, channel: Channel) -> None:
        """Nobody follows it."""
        if channel in self._unfiltered:
            self._unfiltered.remove(channel)
        else:
            self._filter_index.remove(channel)
        channel.evict_before(self.tail.seq + 1)

    def publish(self, turn: TailUpdate) -> list[Channel]:
        """Tell what the tail has just taken over; those that have a new chunk."""
        told = [
            each for each in self._unfiltered if each.followers and each.publish(turn) is not None
        ]
        if self._filter_index:
            told += self._publish_filtered(turn)
        self._chunk_holders[-1] += told
        self._chunk_holders.append([])
        self._trim_updates()
        return told

    def announce_position(self, channel: Channel) -> bool:
        """Tell a channel's idle clients where they are; False if they know."""
        if channel.announce_position() is None:
            return False
        self._chunk_holders[-1].append(channel)
        return True

    def _publish_filtered(self, turn: TailUpdate) -> list[Channel]:
        of_all = [entry for entry, _ in turn.entries if type(entry) not in (Record, Skip)]
        only_ready = all(type(entry) is Ready for entry in of_all)
        gaps = [entry for entry in of_all if type(entry) is Gap]
        told = (
            self._select_conflated_events(turn)
            if self.tail.is_conflated
            else self._select_events(turn)
        )
        for channel, events in told.items():
            chunk = channel.publish_events(turn, events)
            if of_all:
                records = any(event.timestamp is not None for event in events)
                chunk.is_only_ready, chunk.gaps = only_ready and not records, gaps
                chunk.ending_partitions = frozenset(
                    entry.tp for entry in of_all if channel.should_end_at(entry)
                )
        return list(told)

    def _select_events(self, turn: TailUpdate) -> dict[Channel, list[ChannelEvent]]:
        """What each channel sees. Where ids come in batches, an event has the last text before
        the next one of its channel: past what the channel does not see."""
        told: dict[Channel, list[ChannelEvent]] = {}
        batched, last = not self.tail.has_exact_tokens, dict[Channel, int]()
        marked, mark = -1, b""
        for n, (entry, text) in enumerate(turn.entries):
            made: dict[Encoder, ChannelEvent | None] = {}
            for channel in self._find_channels(entry):
                encoder = channel.encoder
                if encoder not in made:
                    made[encoder] = build_event(encoder, entry, text)
                event = made[encoder]
                if event is None or not channel.followers:
                    continue
                events = told.setdefault(channel, [])
                if batched and events and marked >= last[channel]:
                    events[-1] = events[-1]._replace(token_text=mark)
                if batched:
                    last[channel] = n
                events.append(event)
            if batched and text is not None:
                marked, mark = n, text
        return told

    def _select_conflated_events(self, turn: TailUpdate) -> dict[Channel, list[ChannelEvent]]:
        """What each channel sees of a turn that is conflated."""
        seen: dict[Channel, list[Entry]] = {}
        for entry, _ in turn.entries:
            for channel in self._find_channels(entry):
                if channel.followers:
                    seen.setdefault(channel, []).append(entry)
        made = ((channel, _build_events(channel, conflate(some))) for channel, some in seen.items())
        return {channel: events for channel, events in made if events}

    def _find_channels(self, entry: Entry) -> Iterable[Channel]:
        if type(entry) is Record:
            return self._filter_index.find(entry)
        return () if type(entry) is Skip else self._filter_index

    def _trim_updates(self) -> None:
        """Keep a bounded number of turns; who holds older chunks lets go of them first."""
        tail = self.tail
        while tail.seq - tail.oldest_seq > MAX_UPDATES:
            before = tail.oldest_seq + 1
            for channel in self._chunk_holders.popleft():
                channel.evict_before(before)
            tail.forget_updates(before)


def _build_events(channel: Channel, entries: Iterable[Entry]) -> list[ChannelEvent]:
    made = (build_event(channel.encoder, entry, None) for entry in entries)
    return [event for event in made if event is not None]
