"""Collect the bytes that one client is sent at one time: shared chunks, and its own events.

An event that was read privately has an id of its own: the client's position after it in each
partition. Where ids come in batches, or where only the whole batch leads to a valid position
(conflation, snapshots), only the last event has one.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.log.record import (
    Entry,
    Gap,
    PartitionPosition,
    Record,
    SnapshotEnd,
    TopicPartition,
)
from gateway.core.token.resume_token import TokenWriter

from .shared_cursor import PrivatePositions, SharedCursor
from .snapshot import SnapshotBlock
from .terms import EndReason

# Bytes of a parsed value that count as one that is sent: 64 KiB are 256 KiB of values, 1 to 10 ms.
PARSED_BYTES_PER_BYTE = 4


class WriteBatch:
    """The bytes that one `take` returns, built by a `PrivateReader`.

    Events are collected first and encoded by `flush_events`, so that the id of the last one can
    still be set. `_writer` is created with the first event that needs an id; from then on it
    follows every move, including those of entries that the view does not show. `remaining_bytes`
    may become negative; each entry takes of it what `count_entry` says. With `has_single_id` only
    the last event gets an id.
    """

    __slots__ = (
        "_cursor",
        "_events",
        "_positions",
        "_writer",
        "entry_cost",
        "has_single_id",
        "pieces",
        "remaining_bytes",
    )

    def __init__(self, cursor: SharedCursor, positions: PrivatePositions, max_bytes: int) -> None:
        self.remaining_bytes = max_bytes
        self.entry_cost = 0
        self.pieces: list[bytes] = []
        self.has_single_id = False
        self._cursor = cursor
        self._positions = positions
        self._events: list[ChannelEvent] = []  # not on the wire yet
        self._writer: TokenWriter | None = None

    def count_entry(self, entry: Entry | SnapshotBlock) -> None:
        """Count what an entry costs, also if it is not sent: to parse a value takes longest."""
        self.remaining_bytes -= self.entry_cost
        if self._cursor.channel.parses_values and type(entry) is Record:
            self.remaining_bytes -= len(entry.value or b"") // PARSED_BYTES_PER_BYTE

    def add_chunk(self, data: bytes) -> None:
        self.pieces.append(data)
        self.remaining_bytes -= len(data)

    def add_gaps(self, gaps: Iterable[Gap]) -> None:
        """Add gaps, with one id after all of them: the positions must be behind them already."""
        cursor = self._cursor
        for gap in gaps:
            cursor.traffic.count_gaps((gap.reason,))
            self._events.append(
                ChannelEvent(gap.tp, cursor.channel.encoder.encode_entry(gap) or b"", None)
            )
            if cursor.channel.should_end_at(gap):
                cursor.end(EndReason.OFFSET_OUT_OF_RANGE)
        self._events[-1] = self._events[-1]._replace(
            token_text=cursor.create_token_writer(self._positions).to_text()
        )
        self.flush_events()

    def add_notices(self, payloads: Iterable[bytes]) -> None:
        self._events += [ChannelEvent(None, payload, None) for payload in payloads]
        self.flush_events()

    def add_entry(self, entry: Entry, position: PartitionPosition) -> None:
        cursor, channel = self._cursor, self._cursor.channel
        payload = channel.encode_entry(entry)
        # A new writer starts where the client stands, which is after this entry already.
        if self._writer is None and payload is not None:
            self._writer = cursor.create_token_writer(self._positions)
        elif self._writer is not None:
            self._writer.move(
                entry.tp, position.offset, channel.tail.token_epoch(entry.tp, position)
            )
        if payload is None or self._writer is None:
            return
        text = (
            self._writer.to_text()
            if channel.tail.has_exact_tokens and not self.has_single_id
            else None
        )
        self._events.append(ChannelEvent(entry.tp, payload, text))
        self.remaining_bytes -= len(payload) + len(text or b"")
        if channel.should_end_at(entry):
            cursor.end(EndReason.OFFSET_OUT_OF_RANGE)
        if type(entry) is Record:
            cursor.count_private_record()
        elif type(entry) is Gap:
            cursor.traffic.count_gaps((entry.reason,))

    def add_block(self, block: SnapshotBlock, position: PartitionPosition) -> None:
        # As in `add_entry`: a new writer starts behind the block already.
        if self._writer is None and block.last_payload is not None:
            self._writer = self._cursor.create_token_writer(self._positions)
        else:
            self.move(block.tp, position)
        if block.last_payload is None:
            return
        self.flush_events()
        if block.data:
            self.pieces.append(block.data)
        self._events.append(ChannelEvent(block.tp, block.last_payload, None))
        self.remaining_bytes -= len(block.data) + len(block.last_payload)
        assert self._cursor.snapshot is not None
        self._cursor.snapshot.count_records(block.records)
        self._cursor.traffic.untimed += block.records

    def close_snapshot(self, end: SnapshotEnd) -> None:
        """Add the end of the snapshot, and end the batch: live events begin with the next one."""
        self._writer = self._writer or self._cursor.create_token_writer(self._positions)
        payload = self._cursor.channel.encoder.encode_entry(end)
        if payload is not None:
            self._events.append(ChannelEvent(None, payload, None))
        self.remaining_bytes = min(self.remaining_bytes, 0)  # nothing more is added

    def move(self, tp: TopicPartition, position: PartitionPosition) -> None:
        if self._writer is not None:
            self._writer.move(
                tp, position.offset, self._cursor.channel.tail.token_epoch(tp, position)
            )

    def add_id(self) -> None:
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
        if self._events:
            self.pieces.append(self._cursor.channel.encode_events(self._events))
            self._events = []
