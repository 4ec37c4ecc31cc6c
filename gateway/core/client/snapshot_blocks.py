"""An edition as one view shows it, encoded once for all clients that begin with it.

A block is what goes to a client as it is, but for the id of its last event: that one is the
client's own. Every client that is brought the edition is brought the same blocks.
Measured for 100,000 records of 200 bytes: 0.15 us a record and client, 6 us without.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from gateway.core.channel.channel import Channel, ChannelEvent
from gateway.core.log.record import Record, TopicPartition

from .table_snapshot import TableSnapshot

MAX_BLOCK_BYTES = 64 * 1024  # bytes of a block
MAX_BLOCK_ENTRIES = 4096  # entries that are looked at for a block


class SnapshotBlock(NamedTuple):
    """offset, next: what it covers. data: all but the last event. last: that one without its id;
    None if nothing of it is seen. records: how many."""

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    data: bytes
    last_payload: bytes | None
    records: int


class SnapshotBlocks:
    """Of one channel and one edition, which keeps them; made as they are asked for."""

    def __init__(self, channel: Channel) -> None:
        self.bytes = 0
        self._encoder, self._view = channel.encoder, channel.view
        self._accepts = channel.accepts
        self._blocks: dict[int, SnapshotBlock] = {}  # by the index of the first entry

    @classmethod
    def for_channel(cls, edition: TableSnapshot, channel: Channel) -> SnapshotBlocks:
        """Those that all clients of the channel share."""
        made = edition.encoded_by_channel.get(channel)
        if not isinstance(made, SnapshotBlocks):
            made = edition.encoded_by_channel[channel] = cls(channel)
        return made

    def get_block(self, edition: TableSnapshot, offset: int) -> SnapshotBlock | None:
        """What comes next from an offset on; None at the end."""
        assert edition.end_position.offset is not None
        if offset >= edition.end_position.offset:
            return None
        first = edition.find_index(offset)
        block = self._blocks.get(first)
        if block is None:
            block = self._blocks[first] = self._encode_block(edition, first, offset)
            self.bytes += len(block.data)
        return block

    def _encode_block(self, edition: TableSnapshot, first: int, offset: int) -> SnapshotBlock:
        left = MAX_BLOCK_BYTES
        events: list[ChannelEvent] = []
        records, seen = 0, first
        at, epoch = offset, edition.end_position.epoch
        for entry in islice(edition.entries, first, first + MAX_BLOCK_ENTRIES):
            seen += 1
            at, epoch = entry.next_offset, entry.epoch
            if type(entry) is not Record or self._accepts is None or self._accepts(entry):
                head = self._encoder.encode_entry(entry)
                if head is not None:
                    events.append(ChannelEvent(edition.tp, head, None))
                    records += type(entry) is Record
                    left -= len(head)
            if left <= 0:
                break
        if seen == len(edition.entries):
            assert edition.end_position.offset is not None
            at, epoch = edition.end_position.offset, edition.end_position.epoch
        data = self._encoder.encode_events(events[:-1], self._view) if len(events) > 1 else b""
        last = events[-1].payload if events else None
        return SnapshotBlock(edition.tp, offset, at, epoch, data, last, records)
