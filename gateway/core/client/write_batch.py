"""What one client is sent at one time: chunks that it rides on, and events of its own.

An event that it reads alone has an id of its own: where it stands with it in each partition.
Where ids come in batches, and where only the whole of what is sent is a position to go on
from, the last event has one.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.channel import Event
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, Gap, Record, SnapshotEnd, TopicPartition
from gateway.core.token.resume_token import TokenWriter

from .private_positions import Own
from .shared_cursor import Ride
from .snapshot_blocks import Block


class Portion:
    """See the module.

    left:   bytes that may still be added.
    pieces: what is on the wire.
    flush:  only the last event is to have an id.
    """

    __slots__ = ("_events", "_own", "_ride", "_writer", "flush", "left", "pieces")

    def __init__(self, ride: Ride, own: Own, budget: int) -> None:
        self.left = budget
        self.pieces: list[bytes] = []
        self.flush = False
        self._ride = ride
        self._own = own
        self._events: list[Event] = []  # not on the wire yet
        self._writer: TokenWriter | None = None

    def add(self, data: bytes) -> None:
        """Of the ride."""
        self.pieces.append(data)
        self.left -= len(data)

    def tell(self, gaps: Iterable[Gap]) -> None:
        """One id for all: it holds nothing that was not told."""
        ride = self._ride
        for gap in gaps:
            ride.traffic.told((gap.reason,))
            self._events.append(Event(gap.tp, ride.channel.encoder.head(gap) or b"", None))
            if ride.channel.ends_at(gap):
                ride.ended = "offset-out-of-range"
        self._events[-1] = self._events[-1]._replace(text=ride.writer(self._own).text())
        self.render()

    def notify(self, heads: Iterable[bytes]) -> None:
        """Tell what moves no position."""
        self._events += [Event(None, head, None) for head in heads]
        self.render()

    def send(self, entry: Entry, place: Place) -> None:
        """What leads to a place, if it is seen."""
        ride, channel = self._ride, self._ride.channel
        head = channel.event_head(entry)
        if self._writer is None and head is not None:
            self._writer = ride.writer(self._own)
        elif self._writer is not None:
            self._writer.move(entry.tp, place.offset, channel.tail.epoch(entry.tp, place))
        if head is None or self._writer is None:
            return
        text = self._writer.text() if channel.tail.exact and not self.flush else None
        self._events.append(Event(entry.tp, head, text))
        self.left -= len(head) + len(text or b"")
        if channel.ends_at(entry):
            ride.ended = "offset-out-of-range"
        if type(entry) is Record:
            self._count()
        elif type(entry) is Gap:
            ride.traffic.told((entry.reason,))

    def send_block(self, block: Block, place: Place) -> None:
        """As `send`, of what was encoded for all."""
        if self._writer is None and block.last is not None:
            self._writer = self._ride.writer(self._own)
        else:
            self.move(block.tp, place)
        if block.last is None:
            return
        self.render()
        if block.data:
            self.pieces.append(block.data)
        self._events.append(Event(block.tp, block.last, None))
        self.left -= len(block.data) + len(block.last)
        assert self._ride.snapshot is not None
        self._ride.snapshot.records += block.records
        self._ride.traffic.untimed += block.records

    def close_snapshot(self, end: SnapshotEnd) -> None:
        """What is held back until now comes next."""
        self._writer = self._writer or self._ride.writer(self._own)
        head = self._ride.channel.encoder.head(end)
        if head is not None:
            self._events.append(Event(None, head, None))
        self.left = min(self.left, 0)

    def move(self, tp: TopicPartition, place: Place) -> None:
        """The client stands there, with nothing that it is sent."""
        if self._writer is not None:
            self._writer.move(tp, place.offset, self._ride.channel.tail.epoch(tp, place))

    def sign(self) -> None:
        """The one id, where not each event has its own."""
        channel = self._ride.channel
        if self._writer is None or not self._events:
            return
        if self.flush:
            self._events[-1] = self._events[-1]._replace(text=self._writer.text())
        elif not channel.tail.exact:
            self._events.append(Event(None, channel.encoder.position(), self._writer.text()))

    def render(self) -> None:
        """What was read alone, onto the wire, before anything that follows."""
        if self._events:
            self.pieces.append(self._ride.channel.render(self._events))
            self._events = []

    def _count(self) -> None:
        ride = self._ride
        ride.traffic.untimed += 1
        if ride.snapshot is not None and not ride.snapshot.told:
            ride.snapshot.records += 1
        if ride.credit is not None:
            ride.credit -= 1
        if ride.count is not None:
            ride.count -= 1
            ride.ended = ride.ended or ("until" if ride.count <= 0 else None)
