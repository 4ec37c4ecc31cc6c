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

from .position import NO_EPOCH, Place
from .record import BACK, Entry, Gap, Reason, Record, TopicPartition

OVERHEAD = 160  # bytes that an entry costs beside its key, value and headers

_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


_Held: TypeAlias = tuple[Any, ...]
"""A record's fields but for the partition, or another entry in whole; its size; when it came."""

_OF_A_RECORD = len(Record._fields) + 1


class Log:
    """What is held of one partition: entries that follow each other up to `next`.

    max_bytes: bound in bytes. max_age: bound in seconds, by the time of appending.
    """

    def __init__(self, tp: TopicPartition, max_bytes: int, max_age: float) -> None:
        self.tp = tp
        self.max_bytes = max_bytes
        self.max_age = max_age
        self.bytes = 0
        self.start: int | None = None
        self.next: int | None = None
        self.epoch = -1
        self.lineage = 0
        self.origin: Place | None = None
        self._held: list[_Held] = []
        self._nexts: list[int] = []
        self._first = 0  # entries before it are dead; cut off in bulk
        self._rebases: list[Gap] = []

    def __len__(self) -> int:
        return len(self._held) - self._first

    def open(self, offset: int, epoch: int) -> None:
        """The shared read starts here; `origin` stays what it was first."""
        self.start = self.next = offset
        self.epoch = epoch
        self.origin = self.origin or Place(offset, epoch, self.lineage)

    def append(self, entry: Entry, now: float) -> None:
        """Add what comes next. A gap that goes back starts the next lineage."""
        assert self.next is not None, "opened by the shared read's start"
        if type(entry) is Gap and entry.reason in BACK:
            self._restart(entry)
            return
        size = size_of(entry)
        held = (*entry[1:], size, now) if type(entry) is Record else (entry, size, now)
        self._held.append(held)
        self._nexts.append(entry.next)
        self.next, self.epoch = entry.next, entry.epoch
        self.bytes += size
        if self.bytes > self.max_bytes:
            self._evict_bytes()

    @property
    def place(self) -> Place:
        """Where the shared read stands; pending before it was opened."""
        return Place(self.next, self.epoch, self.lineage)

    def expire(self, now: float) -> None:
        """Drop what is older than `max_age`."""
        oldest = now - self.max_age
        while self._first < len(self._held) and self._held[self._first][-1] < oldest:
            self._drop()

    def shrink(self, to: int) -> None:
        """Drop the oldest until no more than `to` bytes are held."""
        while self.bytes > to and self._first < len(self._held):
            self._drop()

    def covers(self, place: Place) -> bool:
        """Can this place be read from here?"""
        return (
            place.lineage == self.lineage
            and place.offset is not None
            and self.start is not None
            and self.start <= place.offset
        )

    def came_at(self, offset: int) -> float | None:
        """When the first entry from an offset on was appended; infinity if there is none yet, None
        if it is not held."""
        if self.start is None or self.next is None or offset < self.start:
            return None
        if offset >= self.next:
            return inf
        came: float = self._held[bisect_right(self._nexts, offset, lo=self._first)][-1]
        return came

    def read(self, offset: int) -> Iterator[Entry]:
        """The entries from an offset on that is covered; a gap is cut to what lies after it."""
        first = max(self._first, bisect_right(self._nexts, offset, lo=self._first))
        for n in range(first, len(self._held)):  # islice would walk over all before `first`
            held = self._held[n]
            if len(held) == _OF_A_RECORD:
                yield _new(Record, (self.tp, *held[:-2]))
            else:
                entry: Entry = held[0]
                behind = type(entry) is Gap and entry.offset < offset
                yield entry._replace(offset=offset) if behind else entry

    def retired(self, place: Place) -> bool:
        """Is the place one of an earlier topic of this name?"""
        if place.lineage < 0:
            return False
        return any(gap.reason is Reason.RECREATED for gap in self._rebases[place.lineage :])

    def admits(self, entry: Entry) -> bool:
        """Can it be of this lineage? Below `next` nothing is of a later epoch than there."""
        if self.next is None or entry.epoch <= self.epoch or entry.next > self.next:
            return type(entry) is not Gap or entry.reason not in BACK
        return type(entry) is Gap and entry.next == self.next  # its epoch is but its leader's

    def parted(self, place: Place) -> tuple[Place | None, bool]:
        """Where the log left the one that a place of this lineage is of, and whether it is
        sure that it was not before; (None, True) if nothing that is held speaks against it.

        What lies before a place is of no later epoch than the place. A client can be ahead
        of the shared read, which then does not notice that the log is cut between the two;
        and a leader does not know any more where an epoch ended before its log's start.
        """
        if place.epoch == NO_EPOCH or place.offset is None or self.start is None:
            return None, True
        held, end = self._held, len(self._held)
        n = bisect_right(held, place.epoch, self._first, key=_epoch)
        while n < end and (type(held[n][0]) is Gap or _epoch(held[n]) <= place.epoch):
            n += 1  # the epoch of a gap is that of its leader, not of a record
        if n == end or self._nexts[n] > place.offset:
            return None, True
        if n == self._first:
            return Place(self.start, NO_EPOCH, self.lineage), False
        return Place(self._nexts[n - 1], _epoch(held[n - 1]), self.lineage), True

    def rebase(self, place: Place) -> tuple[Gap | None, Place]:
        """A place of an older lineage in the present one, and the gap to tell, if any."""
        gap: Gap | None = None
        at, epoch = place.offset, place.epoch
        assert at is not None
        for back in self._rebases[place.lineage :]:
            if back.reason is Reason.TRUNCATED and at <= back.next:
                continue
            origin = gap.offset if gap else at
            reason = gap.reason if gap and gap.reason is Reason.RECREATED else back.reason
            gap = Gap(self.tp, origin, back.next, back.epoch, reason)
            at, epoch = back.next, back.epoch
        return gap, Place(at, epoch, self.lineage)

    def _restart(self, gap: Gap) -> None:
        self._rebases.append(gap)
        self.lineage += 1
        self._held.clear()
        self._nexts.clear()
        self._first = self.bytes = 0
        self.open(gap.next, gap.epoch)

    def _evict_bytes(self) -> None:
        while self.bytes > self.max_bytes and self._first < len(self._held) - 1:
            self._drop()

    def _drop(self) -> None:
        first = self._first
        self.start = self._nexts[first]
        self.bytes -= self._held[first][-2]
        self._held[first] = ()  # or its value would be held until the list is cut off
        self._first += 1
        if self._first > 1024 and self._first * 2 > len(self._held):
            # a list cut off at its front now and then: 5x cheaper to index than a deque
            del self._held[: self._first]
            del self._nexts[: self._first]
            self._first = 0


def _epoch(held: _Held) -> int:
    epoch: int = held[1] if len(held) == _OF_A_RECORD else held[0].epoch
    return epoch


def size_of(entry: Entry) -> int:
    """Bytes that an entry takes here; about what it takes on the wire."""
    if type(entry) is not Record:
        return OVERHEAD
    size = OVERHEAD + len(entry.key or b"") + len(entry.value or b"")
    for name, value in entry.headers:
        size += len(name) + len(value or b"") + 64
    return size
