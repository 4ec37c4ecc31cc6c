"""An edition as one view shows it, encoded once for all clients that begin with it.

A block is what goes to a client as it is, but for the id of its last event: that one is the
client's own. Every client that is brought the edition is brought the same blocks.
Measured for 100,000 records of 200 bytes: 0.15 us a record and client, 6 us without.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from gateway.core.channel.channel import Channel, Event
from gateway.core.log.record import Record, TopicPartition

from .table_snapshot import Edition

MOST = 64 * 1024  # bytes of a block
AT_ONCE = 4096  # entries that are looked at for a block


class Block(NamedTuple):
    """offset, next: what it covers. data: all but the last event. last: that one without its id;
    None if nothing of it is seen. records: how many."""

    tp: TopicPartition
    offset: int
    next: int
    epoch: int
    data: bytes
    last: bytes | None
    records: int


class Blocks:
    """Of one channel and one edition, which keeps them; made as they are asked for."""

    def __init__(self, channel: Channel) -> None:
        self.bytes = 0
        self._encoder, self._view = channel.encoder, channel.view
        self._accepts = channel.accepts
        self._made: dict[int, Block] = {}  # by the index of the first entry

    @classmethod
    def of(cls, edition: Edition, channel: Channel) -> Blocks:
        """Those that all clients of the channel share."""
        made = edition.shown.get(channel)
        if not isinstance(made, Blocks):
            made = edition.shown[channel] = cls(channel)
        return made

    def at(self, edition: Edition, offset: int) -> Block | None:
        """What comes next from an offset on; None at the end."""
        assert edition.end.offset is not None
        if offset >= edition.end.offset:
            return None
        first = edition.index(offset)
        block = self._made.get(first)
        if block is None:
            block = self._made[first] = self._encode(edition, first, offset)
            self.bytes += len(block.data)
        return block

    def _encode(self, edition: Edition, first: int, offset: int) -> Block:
        left = MOST
        events: list[Event] = []
        records, seen = 0, first
        at, epoch = offset, edition.end.epoch
        for entry in islice(edition.entries, first, first + AT_ONCE):
            seen += 1
            at, epoch = entry.next, entry.epoch
            if type(entry) is not Record or self._accepts is None or self._accepts(entry):
                head = self._encoder.head(entry)
                if head is not None:
                    events.append(Event(edition.tp, head, None))
                    records += type(entry) is Record
                    left -= len(head)
            if left <= 0:
                break
        if seen == len(edition.entries):
            assert edition.end.offset is not None
            at, epoch = edition.end.offset, edition.end.epoch
        data = self._encoder.render(events[:-1], self._view) if len(events) > 1 else b""
        last = events[-1].head if events else None
        return Block(edition.tp, offset, at, epoch, data, last, records)
