"""What one client is sent at one time: chunks that it rides on, and events of its own.

An event that it reads alone has an id of its own: where it stands with it in each partition.
Where ids come in batches, and where only the whole of what is sent is a position to go on
from, the last event has one.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.channel import ChannelEvent
from gateway.core.log.position import PartitionPosition
from gateway.core.log.record import Entry, Gap, Record, SnapshotEnd, TopicPartition
from gateway.core.token.resume_token import TokenWriter

from .private_positions import PrivatePositions
from .shared_cursor import SharedCursor
from .snapshot_blocks import SnapshotBlock


class WriteBatch:
    """See the module.

    left:   bytes that may still be added.
    pieces: what is on the wire.
    flush:  only the last event is to have an id.
    """

    __slots__ = (
        "_cursor",
        "_events",
        "_positions",
        "_writer",
        "has_single_id",
        "pieces",
        "remaining_bytes",
    )

    def __init__(self, cursor: SharedCursor, positions: PrivatePositions, max_bytes: int) -> None:
        self.remaining_bytes = max_bytes
        self.pieces: list[bytes] = []
        self.has_single_id = False
        self._cursor = cursor
        self._positions = positions
        self._events: list[ChannelEvent] = []  # not on the wire yet
        self._writer: TokenWriter | None = None

    def add_chunk(self, data: bytes) -> None:
        """Of the ride."""
        self.pieces.append(data)
        self.remaining_bytes -= len(data)

    def add_gaps(self, gaps: Iterable[Gap]) -> None:
        """One id for all: it holds nothing that was not told."""
        ride = self._cursor
        for gap in gaps:
            ride.traffic.count_gaps((gap.reason,))
            self._events.append(
                ChannelEvent(gap.tp, ride.channel.encoder.encode_entry(gap) or b"", None)
            )
            if ride.channel.should_end_at(gap):
                ride.end_reason = "offset-out-of-range"
        self._events[-1] = self._events[-1]._replace(
            token_text=ride.create_token_writer(self._positions).to_text()
        )
        self.flush_events()

    def add_notices(self, heads: Iterable[bytes]) -> None:
        """Tell what moves no position."""
        self._events += [ChannelEvent(None, head, None) for head in heads]
        self.flush_events()

    def add_entry(self, entry: Entry, place: PartitionPosition) -> None:
        """What leads to a place, if it is seen."""
        ride, channel = self._cursor, self._cursor.channel
        head = channel.encode_entry(entry)
        if self._writer is None and head is not None:
            self._writer = ride.create_token_writer(self._positions)
        elif self._writer is not None:
            self._writer.move(entry.tp, place.offset, channel.tail.token_epoch(entry.tp, place))
        if head is None or self._writer is None:
            return
        text = (
            self._writer.to_text()
            if channel.tail.has_exact_tokens and not self.has_single_id
            else None
        )
        self._events.append(ChannelEvent(entry.tp, head, text))
        self.remaining_bytes -= len(head) + len(text or b"")
        if channel.should_end_at(entry):
            ride.end_reason = "offset-out-of-range"
        if type(entry) is Record:
            self._count_record()
        elif type(entry) is Gap:
            ride.traffic.count_gaps((entry.reason,))

    def add_block(self, block: SnapshotBlock, place: PartitionPosition) -> None:
        """As `send`, of what was encoded for all."""
        if self._writer is None and block.last_payload is not None:
            self._writer = self._cursor.create_token_writer(self._positions)
        else:
            self.move(block.tp, place)
        if block.last_payload is None:
            return
        self.flush_events()
        if block.data:
            self.pieces.append(block.data)
        self._events.append(ChannelEvent(block.tp, block.last_payload, None))
        self.remaining_bytes -= len(block.data) + len(block.last_payload)
        assert self._cursor.snapshot is not None
        self._cursor.snapshot.records += block.records
        self._cursor.traffic.untimed += block.records

    def close_snapshot(self, end: SnapshotEnd) -> None:
        """What is held back until now comes next."""
        self._writer = self._writer or self._cursor.create_token_writer(self._positions)
        head = self._cursor.channel.encoder.encode_entry(end)
        if head is not None:
            self._events.append(ChannelEvent(None, head, None))
        self.remaining_bytes = min(self.remaining_bytes, 0)

    def move(self, tp: TopicPartition, place: PartitionPosition) -> None:
        """The client stands there, with nothing that it is sent."""
        if self._writer is not None:
            self._writer.move(tp, place.offset, self._cursor.channel.tail.token_epoch(tp, place))

    def add_id(self) -> None:
        """The one id, where not each event has its own."""
        channel = self._cursor.channel
        if self._writer is None or not self._events:
            return
        if self.has_single_id:
            self._events[-1] = self._events[-1]._replace(token_text=self._writer.to_text())
        elif not channel.tail.has_exact_tokens:
            self._events.append(
                ChannelEvent(None, channel.encoder.encode_position(), self._writer.to_text())
            )

    def flush_events(self) -> None:
        """What was read alone, onto the wire, before anything that follows."""
        if self._events:
            self.pieces.append(self._cursor.channel.encode_events(self._events))
            self._events = []

    def _count_record(self) -> None:
        ride = self._cursor
        ride.traffic.untimed += 1
        if ride.snapshot is not None and not ride.snapshot.is_closed:
            ride.snapshot.records += 1
        if ride.credit is not None:
            ride.credit -= 1
        if ride.remaining_records is not None:
            ride.remaining_records -= 1
            ride.end_reason = ride.end_reason or ("until" if ride.remaining_records <= 0 else None)
