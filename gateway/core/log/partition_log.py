"""The recent entries of one partition, kept for those who come late.

A bounded ring: reconnecting clients, late joiners and slow ones read from here what the
shared read has already passed, without asking Kafka. Bounded by bytes and by age; the
oldest go first, and the newest stay even when one alone is over the bound.

What is held is plain tuples of bytes and numbers, which Python's garbage collector lets go of
after a look or two: named tuples, as records are, it would walk over again and again (200,000 of
them: 50 ms at a time, now 0).

When the partition's log itself goes back (truncated, recreated) the ring starts anew in
the next lineage, and `rebase` tells a reader of an older lineage where it goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from typing import Any, TypeAlias

from .position import NO_EPOCH, PartitionPosition
from .record import REWIND_REASONS, Entry, Gap, GapReason, Record, TopicPartition

ENTRY_OVERHEAD_BYTES = 160  # bytes that an entry costs beside its key, value and headers

_tuple_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


_StoredEntry: TypeAlias = tuple[Any, ...]
"""A record's fields but for the partition, or another entry in whole; its size; when it came."""

_STORED_RECORD_LENGTH = len(Record._fields) + 1


class PartitionLog:
    """What is held of one partition: entries that follow each other up to `next`.

    max_bytes: bound in bytes. max_age: bound in seconds, by the time of appending.
    """

    def __init__(self, tp: TopicPartition, max_bytes: int, max_age: float) -> None:
        self.tp = tp
        self.max_bytes = max_bytes
        self.max_age = max_age
        self.bytes = 0
        self.start_offset: int | None = None
        self.next_offset: int | None = None
        self.epoch = -1
        self.lineage = 0
        self.initial_position: PartitionPosition | None = None
        self._entries: list[_StoredEntry] = []
        self._next_offsets: list[int] = []
        self._first_index = 0  # entries before it are dead; cut off in bulk
        self._rewind_gaps: list[Gap] = []

    def __len__(self) -> int:
        return len(self._entries) - self._first_index

    def open(self, offset: int, epoch: int) -> None:
        """The shared read starts here; `origin` stays what it was first."""
        self.start_offset = self.next_offset = offset
        self.epoch = epoch
        self.initial_position = self.initial_position or PartitionPosition(
            offset, epoch, self.lineage
        )

    def append(self, entry: Entry, now: float) -> None:
        """Add what comes next. A gap that goes back starts the next lineage."""
        assert self.next_offset is not None, "opened by the shared read's start"
        if type(entry) is Gap and entry.reason in REWIND_REASONS:
            self._start_lineage(entry)
            return
        size = estimate_entry_size(entry)
        held = (*entry[1:], size, now) if type(entry) is Record else (entry, size, now)
        self._entries.append(held)
        self._next_offsets.append(entry.next_offset)
        self.next_offset, self.epoch = entry.next_offset, entry.epoch
        self.bytes += size
        if self.bytes > self.max_bytes:
            self._evict_to_max_bytes()

    @property
    def position(self) -> PartitionPosition:
        """Where the shared read stands; pending before it was opened."""
        return PartitionPosition(self.next_offset, self.epoch, self.lineage)

    def expire(self, now: float) -> None:
        """Drop what is older than `max_age`."""
        oldest = now - self.max_age
        while (
            self._first_index < len(self._entries) and self._entries[self._first_index][-1] < oldest
        ):
            self._drop_oldest()

    def shrink(self, max_bytes: int) -> None:
        """Drop the oldest until no more than `to` bytes are held."""
        while self.bytes > max_bytes and self._first_index < len(self._entries):
            self._drop_oldest()

    def covers(self, place: PartitionPosition) -> bool:
        """Can this place be read from here?"""
        return (
            place.lineage == self.lineage
            and place.offset is not None
            and self.start_offset is not None
            and self.start_offset <= place.offset
        )

    def get_append_time(self, offset: int) -> float | None:
        """When the first entry from an offset on was appended; infinity if there is none yet, None
        if it is not held."""
        if self.start_offset is None or self.next_offset is None or offset < self.start_offset:
            return None
        if offset >= self.next_offset:
            return inf
        came: float = self._entries[bisect_right(self._next_offsets, offset, lo=self._first_index)][
            -1
        ]
        return came

    def iter_entries(self, offset: int) -> Iterator[Entry]:
        """The entries from an offset on that is covered; a gap is cut to what lies after it."""
        first = max(
            self._first_index, bisect_right(self._next_offsets, offset, lo=self._first_index)
        )
        for n in range(first, len(self._entries)):  # islice would walk over all before `first`
            held = self._entries[n]
            if len(held) == _STORED_RECORD_LENGTH:
                yield _tuple_new(Record, (self.tp, *held[:-2]))
            else:
                entry: Entry = held[0]
                behind = type(entry) is Gap and entry.offset < offset
                yield entry._replace(offset=offset) if behind else entry

    def is_retired(self, place: PartitionPosition) -> bool:
        """Is the place one of an earlier topic of this name?"""
        if place.lineage < 0:
            return False
        return any(gap.reason is GapReason.RECREATED for gap in self._rewind_gaps[place.lineage :])

    def matches_lineage(self, entry: Entry) -> bool:
        """Can it be of this lineage? Below `next` nothing is of a later epoch than there."""
        if (
            self.next_offset is None
            or entry.epoch <= self.epoch
            or entry.next_offset > self.next_offset
        ):
            return type(entry) is not Gap or entry.reason not in REWIND_REASONS
        return (
            type(entry) is Gap and entry.next_offset == self.next_offset
        )  # its epoch is but its leader's

    def find_divergence(self, place: PartitionPosition) -> tuple[PartitionPosition | None, bool]:
        """Where the log left the one that a place of this lineage is of, and whether it is
        sure that it was not before; (None, True) if nothing that is held speaks against it.

        What lies before a place is of no later epoch than the place. A client can be ahead
        of the shared read, which then does not notice that the log is cut between the two;
        and a leader does not know any more where an epoch ended before its log's start.
        """
        if place.epoch == NO_EPOCH or place.offset is None or self.start_offset is None:
            return None, True
        held, end = self._entries, len(self._entries)
        n = bisect_right(held, place.epoch, self._first_index, key=_get_epoch)
        while n < end and (type(held[n][0]) is Gap or _get_epoch(held[n]) <= place.epoch):
            n += 1  # the epoch of a gap is that of its leader, not of a record
        if n == end or self._next_offsets[n] > place.offset:
            return None, True
        if n == self._first_index:
            return PartitionPosition(self.start_offset, NO_EPOCH, self.lineage), False
        return PartitionPosition(
            self._next_offsets[n - 1], _get_epoch(held[n - 1]), self.lineage
        ), True

    def rebase(self, place: PartitionPosition) -> tuple[Gap | None, PartitionPosition]:
        """A place of an older lineage in the present one, and the gap to tell, if any."""
        gap: Gap | None = None
        at, epoch = place.offset, place.epoch
        assert at is not None
        for back in self._rewind_gaps[place.lineage :]:
            if back.reason is GapReason.TRUNCATED and at <= back.next_offset:
                continue
            origin = gap.offset if gap else at
            reason = gap.reason if gap and gap.reason is GapReason.RECREATED else back.reason
            gap = Gap(self.tp, origin, back.next_offset, back.epoch, reason)
            at, epoch = back.next_offset, back.epoch
        return gap, PartitionPosition(at, epoch, self.lineage)

    def _start_lineage(self, gap: Gap) -> None:
        self._rewind_gaps.append(gap)
        self.lineage += 1
        self._entries.clear()
        self._next_offsets.clear()
        self._first_index = self.bytes = 0
        self.open(gap.next_offset, gap.epoch)

    def _evict_to_max_bytes(self) -> None:
        while self.bytes > self.max_bytes and self._first_index < len(self._entries) - 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        first = self._first_index
        self.start_offset = self._next_offsets[first]
        self.bytes -= self._entries[first][-2]
        self._entries[first] = ()  # or its value would be held until the list is cut off
        self._first_index += 1
        if self._first_index > 1024 and self._first_index * 2 > len(self._entries):
            # a list cut off at its front now and then: 5x cheaper to index than a deque
            del self._entries[: self._first_index]
            del self._next_offsets[: self._first_index]
            self._first_index = 0


def _get_epoch(entry: _StoredEntry) -> int:
    epoch: int = entry[1] if len(entry) == _STORED_RECORD_LENGTH else entry[0].epoch
    return epoch


def estimate_entry_size(entry: Entry) -> int:
    """Bytes that an entry takes here; about what it takes on the wire."""
    if type(entry) is not Record:
        return ENTRY_OVERHEAD_BYTES
    size = ENTRY_OVERHEAD_BYTES + len(entry.key or b"") + len(entry.value or b"")
    for name, value in entry.headers:
        size += len(name) + len(value or b"") + 64
    return size
