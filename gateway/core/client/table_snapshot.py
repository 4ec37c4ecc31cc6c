"""What a partition holds as a table: the latest record of each key, in the order of offsets.

A client that begins with a snapshot is sent an *edition* of it: the table as it was at one
instant. The table goes on, the edition does not, so every client has a fixed end and may take
as long as it likes; those who come while nothing changed share one. A key whose record is a
tombstone is not there. Records without a key are all there, and so is what could not be decoded:
who is told that this is everything must hear of it.

A filter looks first: what a view may not see replaces nothing in it. So a view that looks at more
than keys has a table of its own, of the records that it lets through. It is made from a `History`,
which all such views share: that keeps what was replaced, as far as Kafka still has it. A tombstone
removes its key for all of them, whatever they let through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Protocol, TypeAlias
from weakref import WeakKeyDictionary

from gateway.core.channel.conflation import buffered_size
from gateway.core.log.position import PartitionPosition
from gateway.core.log.record import (
    REWIND_REASONS,
    Entry,
    Gap,
    GapReason,
    Record,
    Skip,
    TopicPartition,
)

TableKey: TypeAlias = bytes | int  # an offset: of a record without a key, or of a gap

_get_offset = attrgetter("offset")


class EncodedSnapshot(Protocol):
    """What a view makes of an edition."""

    bytes: int


class TableSnapshot:
    """A table at one instant. `end`: where it goes on from there. `shown`: what views make of
    it, by their channels; see `snapshot_blocks`."""

    __slots__ = ("__weakref__", "_by_key", "encoded_by_channel", "end_position", "entries", "tp")

    def __init__(
        self, tp: TopicPartition, entries: Sequence[Record | Gap], end: PartitionPosition
    ) -> None:
        self.tp = tp
        self.entries = entries
        self.end_position = end
        self.encoded_by_channel: WeakKeyDictionary[object, EncodedSnapshot] = WeakKeyDictionary()
        self._by_key: dict[bytes, Record] | None = None

    def find_index(self, offset: int) -> int:
        """Of the first entry from an offset on."""
        return bisect_left(self.entries, offset, key=_get_offset)

    def select_keys(self, keys: Iterable[bytes]) -> TableSnapshot:
        """What it has of some keys; that is looked up, not searched."""
        if self._by_key is None:
            records = (entry for entry in self.entries if type(entry) is Record)
            self._by_key = {record.key: record for record in records if record.key is not None}
        found: list[Record | Gap] = [e for e in self.entries if type(e) is Gap]
        found += [self._by_key[key] for key in keys if key in self._by_key]
        return TableSnapshot(self.tp, sorted(found, key=_get_offset), self.end_position)

    def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """What it has from an offset on, about `most` bytes of it; the last entry leads to where
        the next ones are to be read, or to the end."""
        found: list[Entry] = []
        first = self.find_index(offset)
        for entry in islice(self.entries, first, None):
            found.append(entry)
            max_bytes -= buffered_size(entry)
            if max_bytes <= 0:
                break
        assert self.end_position.offset is not None
        at = found[-1].next_offset if found else offset
        if first + len(found) == len(self.entries) and at < self.end_position.offset:
            found.append(Skip(self.tp, at, self.end_position.offset, self.end_position.epoch))
        return found


class KeyTable:
    """The table of one partition, from its first record up to `place`.

    start: where it begins; what lies before was never read.
    """

    __slots__ = ("_entries", "_snapshot", "bytes", "position", "tp")

    def __init__(self, tp: TopicPartition, position: PartitionPosition) -> None:
        self.tp = tp
        self.position = position
        self.bytes = 0
        self._entries: dict[TableKey, Record | Gap] = {}
        self._snapshot: TableSnapshot | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, entries: Iterable[Entry]) -> bool:
        """What follows; False where the log went back: what a record had replaced that is no more
        is not known here, and the table is to be made anew."""
        for entry in entries:
            if type(entry) is Gap and entry.reason in REWIND_REASONS:
                return False
            self.position = PartitionPosition(entry.next_offset, entry.epoch, self.position.lineage)
            self._snapshot = None
            if type(entry) is Record:
                self._put(entry)
            elif type(entry) is Gap and entry.reason is GapReason.CORRUPT:
                self._entries[entry.offset] = entry
                self.bytes += buffered_size(entry)
        return True

    def get(self, key: TableKey) -> Record | None:
        """The latest record of a key; None if there is none, or it is deleted."""
        held = self._entries.get(key)
        return held if type(held) is Record else None

    @property
    def total_bytes(self) -> int:
        """Bytes in memory, with what was encoded of it."""
        shown = self._snapshot.encoded_by_channel.values() if self._snapshot is not None else ()
        return self.bytes + sum(each.bytes for each in shown)

    def take_snapshot(self) -> TableSnapshot:
        """The table as it is now."""
        if self._snapshot is None:
            self._snapshot = TableSnapshot(self.tp, list(self._entries.values()), self.position)
        return self._snapshot

    def prune(self, start_offset: int) -> None:
        """Kafka has nothing before this offset any more."""
        gone: list[TableKey] = []
        for key, entry in self._entries.items():
            if entry.offset >= start_offset:
                break
            gone.append(key)
        for key in gone:
            self._drop(key)
            self._snapshot = None

    def _put(self, record: Record) -> None:
        key: TableKey = record.offset if record.key is None else record.key
        if key in self._entries:
            self._drop(key)  # so that the later one stands last
        if record.key is None or record.value is not None:
            self._entries[key] = record
            self.bytes += buffered_size(record)

    def _drop(self, key: TableKey) -> None:
        self.bytes -= buffered_size(self._entries.pop(key))


class RecordHistory(KeyTable):
    """All records of one partition up to `place` that no tombstone has removed, by their offsets:
    what tables of single views are made of."""

    __slots__ = ("_offsets",)

    def __init__(self, tp: TopicPartition, start: PartitionPosition) -> None:
        super().__init__(tp, start)
        self._offsets: dict[bytes, deque[int]] = {}

    def get_latest(self, key: bytes, accepts: Callable[[Record], bool]) -> Record | None:
        """Return the latest record of a key among those that are accepted."""
        for offset in reversed(self._offsets.get(key, ())):
            held = self._entries[offset]
            if type(held) is Record and accepts(held):
                return held
        return None

    def select_keys(self, keys: Iterable[bytes]) -> list[Record | Gap]:
        """Return what there is of some keys, and what could not be decoded, in the order of
        offsets."""
        found = [entry for entry in self._entries.values() if type(entry) is Gap]
        offsets = [offset for key in keys for offset in self._offsets.get(key, ())]
        return sorted([*found, *(self._entries[offset] for offset in offsets)], key=_get_offset)

    def _put(self, record: Record) -> None:
        if record.key is not None and record.value is None:
            for offset in list(self._offsets.get(record.key, ())):
                self._drop(offset)
            return
        self._entries[record.offset] = record
        self.bytes += buffered_size(record)
        if record.key is not None:
            self._offsets.setdefault(record.key, deque()).append(record.offset)

    def _drop(self, key: TableKey) -> None:
        held = self._entries[key]
        super()._drop(key)
        if type(held) is Record and held.key is not None:
            offsets = self._offsets[held.key]
            offsets.popleft()  # nothing but the oldest goes, or all of a key from there on
            if not offsets:
                del self._offsets[held.key]
