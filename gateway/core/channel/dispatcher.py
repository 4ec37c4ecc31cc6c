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
from gateway.core.log.tail import Tail, Turn

from .channel import Channel, Encoder, Event, event_of
from .conflation import latest
from .filter_index import Index
from .filters import Filters

MOST_TURNS = 4096


class Spread:
    """The channels of one tail."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._whole: set[Channel] = set()
        self._some: Index[Channel] = Index()
        turns = range(tail.oldest, tail.seq + 1)
        self._held: deque[list[Channel]] = deque([] for _ in turns)  # who has chunks of which

    def add(self, channel: Channel, filters: Filters) -> None:
        """filters: those that the channel accepts by."""
        if filters.filters:
            self._some.add(channel, filters)
        else:
            self._whole.add(channel)

    def remove(self, channel: Channel) -> None:
        """Nobody follows it."""
        if channel in self._whole:
            self._whole.remove(channel)
        else:
            self._some.remove(channel)
        channel.evict(self.tail.seq + 1)

    def publish(self, turn: Turn) -> list[Channel]:
        """Tell what the tail has just taken over; those that have a new chunk."""
        told = [each for each in self._whole if each.followers and each.publish(turn) is not None]
        if self._some:
            told += self._publish_some(turn)
        self._held[-1] += told
        self._held.append([])
        self._trim()
        return told

    def announce(self, channel: Channel) -> bool:
        """Tell a channel's idle clients where they are; False if they know."""
        if channel.announce() is None:
            return False
        self._held[-1].append(channel)
        return True

    def _publish_some(self, turn: Turn) -> list[Channel]:
        of_all = [entry for entry, _ in turn.items if type(entry) not in (Record, Skip)]
        only_ready = all(type(entry) is Ready for entry in of_all)
        gaps = [entry for entry in of_all if type(entry) is Gap]
        told = self._latest(turn) if self.tail.conflates else self._events(turn)
        for channel, events in told.items():
            chunk = channel.tell(turn, events)
            if of_all:
                records = any(event.stamp is not None for event in events)
                chunk.only_ready, chunk.gaps = only_ready and not records, gaps
                chunk.ends = frozenset(entry.tp for entry in of_all if channel.ends_at(entry))
        return list(told)

    def _events(self, turn: Turn) -> dict[Channel, list[Event]]:
        """What each channel sees. Where ids come in batches, an event has the last text before
        the next one of its channel: past what the channel does not see."""
        told: dict[Channel, list[Event]] = {}
        batched, last = not self.tail.exact, dict[Channel, int]()
        marked, mark = -1, b""
        for n, (entry, text) in enumerate(turn.items):
            made: dict[Encoder, Event | None] = {}
            for channel in self._concerned(entry):
                encoder = channel.encoder
                if encoder not in made:
                    made[encoder] = event_of(encoder, entry, text)
                event = made[encoder]
                if event is None or not channel.followers:
                    continue
                events = told.setdefault(channel, [])
                if batched and events and marked >= last[channel]:
                    events[-1] = events[-1]._replace(text=mark)
                if batched:
                    last[channel] = n
                events.append(event)
            if batched and text is not None:
                marked, mark = n, text
        return told

    def _latest(self, turn: Turn) -> dict[Channel, list[Event]]:
        """What each channel sees of a turn that is conflated."""
        seen: dict[Channel, list[Entry]] = {}
        for entry, _ in turn.items:
            for channel in self._concerned(entry):
                if channel.followers:
                    seen.setdefault(channel, []).append(entry)
        made = ((channel, _events_of(channel, latest(some))) for channel, some in seen.items())
        return {channel: events for channel, events in made if events}

    def _concerned(self, entry: Entry) -> Iterable[Channel]:
        if type(entry) is Record:
            return self._some.find(entry)
        return () if type(entry) is Skip else self._some

    def _trim(self) -> None:
        """Keep a bounded number of turns; who holds older chunks lets go of them first."""
        tail = self.tail
        while tail.seq - tail.oldest > MOST_TURNS:
            before = tail.oldest + 1
            for channel in self._held.popleft():
                channel.evict(before)
            tail.forget(before)


def _events_of(channel: Channel, entries: Iterable[Entry]) -> list[Event]:
    made = (event_of(channel.encoder, entry, None) for entry in entries)
    return [event for event in made if event is not None]
