"""Encode a table snapshot as one view shows it, once for all clients that begin with it.

A block is sent to a client as it is, except for the id of its last event, which is the client's
own. All clients that get the snapshot get the same blocks. Measured for 100,000 records of 200
bytes: 0.15 us a record and client, 6 us without.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk import ChannelEvent
from gateway.core.log.record import Record, TopicPartition

from .table_snapshot import TableSnapshot


class SnapshotBlock(NamedTuple):
    """A part of a table snapshot on the wire, with the leader epoch at its end.

    `data` has all events but the last one, whose payload is None if the view shows nothing.
    """

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    data: bytes
    last_payload: bytes | None
    records: int


class SnapshotBlocks:
    """The blocks of one channel and one table snapshot, which keeps them, encoded on demand."""

    MAX_BLOCK_BYTES = 64 * 1024
    MAX_BLOCK_ENTRIES = 4096  # entries that are looked at for a block

    def __init__(self, channel: Channel) -> None:
        # Not the channel itself: the snapshot refers to it weakly, as the key of these blocks.
        self.bytes = 0
        self._encoder, self._view_digest = channel.encoder, channel.view_digest
        self._accepts = channel.accepts
        self._blocks: dict[int, SnapshotBlock] = {}  # by the index of the first entry

    @classmethod
    def for_channel(cls, snapshot: TableSnapshot, channel: Channel) -> SnapshotBlocks:
        blocks = snapshot.encoded_by_channel.get(channel)
        if not isinstance(blocks, SnapshotBlocks):
            blocks = snapshot.encoded_by_channel[channel] = cls(channel)
        return blocks

    def get_block(self, snapshot: TableSnapshot, offset: int) -> SnapshotBlock | None:
        assert snapshot.end_position.offset is not None
        if offset >= snapshot.end_position.offset:
            return None
        first = snapshot.find_index(offset)
        block = self._blocks.get(first)
        if block is None:
            block = self._blocks[first] = self._encode_block(snapshot, first, offset)
            self.bytes += len(block.data)
        return block

    def _encode_block(self, snapshot: TableSnapshot, first: int, offset: int) -> SnapshotBlock:
        bytes_left = self.MAX_BLOCK_BYTES
        events: list[ChannelEvent] = []
        records, index = 0, first
        next_offset, epoch = offset, snapshot.end_position.epoch
        for entry in islice(snapshot.entries, first, first + self.MAX_BLOCK_ENTRIES):
            index += 1
            next_offset, epoch = entry.next_offset, entry.epoch
            if type(entry) is not Record or self._accepts is None or self._accepts(entry):
                payload = self._encoder.encode_entry(entry)
                if payload is not None:
                    events.append(ChannelEvent(snapshot.tp, payload, None))
                    records += type(entry) is Record
                    bytes_left -= len(payload)
            if bytes_left <= 0:
                break
        if index == len(snapshot.entries):  # the last block leads to the end, past what was deleted
            assert snapshot.end_position.offset is not None
            next_offset, epoch = snapshot.end_position.offset, snapshot.end_position.epoch
        data = (
            self._encoder.encode_events(events[:-1], self._view_digest) if len(events) > 1 else b""
        )
        last_payload = events[-1].payload if events else None
        return SnapshotBlock(snapshot.tp, offset, next_offset, epoch, data, last_payload, records)
