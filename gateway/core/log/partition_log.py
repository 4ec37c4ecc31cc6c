"""Keep the recent entries of one partition in memory, for clients that read them late.

Reconnecting clients, late joiners and slow ones read earlier entries from here, without asking
Kafka. A log is bounded by bytes and by age; the newest entry stays even if it alone exceeds the
bound.

Entries are held as plain tuples of bytes and numbers, which Python's garbage collector stops
tracking after a pass or two. It would traverse named tuples, as records are, in every full
collection (200,000 of them: 50 ms each time, now 0).

Readers of single keys look at every entry, until an index of keys pays (see `key_index`), which the
owner of the log has built in slices. When the partition's log itself goes back (truncated,
recreated), the held entries are dropped and the next lineage begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from math import inf
from typing import Any, TypeAlias

from .key_index import CONTROL_KEY, IndexKey, KeyIndex, KeyScans
from .record import (
    HEADER_OVERHEAD_BYTES,
    NO_EPOCH,
    REWIND_REASONS,
    Entry,
    Gap,
    GapReason,
    PartitionPosition,
    Record,
    Skip,
    TopicPartition,
)

ENTRY_OVERHEAD_BYTES = 160  # bytes that an entry costs beside its key, value and headers
KEY_INDEX_LINGER_S = 30.0  # seconds without a use after which an index of keys is dropped
KEY_SCANS_WINDOW_S = 10.0  # seconds within which readers have to make an index of keys pay

_tuple_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


_StoredEntry: TypeAlias = tuple[Any, ...]
"""Either (a record's fields without `tp`, size, time) or (another entry as it is, size, time)."""

# All fields of a record but `tp`, plus size and time; other entries are stored with length 3.
_STORED_RECORD_LENGTH = len(Record._fields) + 1
_STORED_KEY = Record._fields.index("key") - 1


class PartitionLog:
    """The held entries of one partition, which follow each other up to `next_offset`.

    The hub creates one per partition and appends the entries of its shared read; tails and clients
    only read it. Invariants between calls:

    - The held entries cover the offsets from `start_offset` to `next_offset` without a hole. Both
      are None until `open` is called.
    - All held entries are of the present lineage, and their epochs never decrease, except that the
      epoch of a `Gap` is that of the leader that reported it.
    - `bytes` is the sum of the sizes of the held entries and of the index of keys. It exceeds
      `max_bytes` only if a single entry does.

    Attributes:
        max_age: The bound in seconds, by the time of appending.
        next_offset: The offset that the shared read fetches next.
        epoch: The leader epoch of the newest entry.
        lineage: How often the log went back since this process began to read it.
        initial_position: The first position of the shared read. It never changes, so that clients
            that were waiting for the partition start exactly there.
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
        self._next_offsets: list[int] = []  # of `_entries`, index by index, for bisection
        self._first_index = 0  # entries before it are dropped; their slots are deleted in bulk
        # Entries are numbered from the start of the lineage on; so many have no slot any more.
        self._deleted_count = 0
        self._key_index: KeyIndex | None = None
        self._key_index_used_at: float | None = None
        self._key_scans = KeyScans()
        self._retired_key_indexes: list[KeyIndex] = []  # to be freed; `bytes` has them no more
        self._rewind_gaps: list[Gap] = []  # the gap at index n led from lineage n to n + 1

    def __len__(self) -> int:
        return len(self._entries) - self._first_index

    def open(self, offset: int, epoch: int) -> None:
        self.start_offset = self.next_offset = offset
        self.epoch = epoch
        self.initial_position = self.initial_position or PartitionPosition(
            offset, epoch, self.lineage
        )

    def append(self, entry: Entry, now: float) -> None:
        """Add the entry at `next_offset`. A gap that goes back starts the next lineage."""
        assert self.next_offset is not None, "the shared read calls `open` before it appends"
        if type(entry) is Gap and entry.reason in REWIND_REASONS:
            self._start_lineage(entry)
            return
        size = estimate_entry_size(entry)
        stored = (*entry[1:], size, now) if type(entry) is Record else (entry, size, now)
        self._entries.append(stored)
        self._next_offsets.append(entry.next_offset)
        self.next_offset, self.epoch = entry.next_offset, entry.epoch
        self.bytes += size
        index = self._key_index
        if index is not None and index.is_complete:
            self._extend_key_index(index, [_get_index_key(stored)])
        if self.bytes > self.max_bytes:  # tested here, as a call per record would cost more
            self._evict_to_max_bytes()

    @property
    def position(self) -> PartitionPosition:
        return PartitionPosition(self.next_offset, self.epoch, self.lineage)

    def expire(self, now: float) -> None:
        self._expire_key_index(now)
        min_time = now - self.max_age
        while (
            self._first_index < len(self._entries)
            and self._entries[self._first_index][-1] < min_time
        ):
            self._drop_oldest()

    def shrink(self, max_bytes: int) -> None:
        """Drop the oldest entries, even the newest, until at most `max_bytes` bytes are held."""
        while self.bytes > max_bytes and self._first_index < len(self._entries):
            self._drop_oldest()
        if self.bytes > max_bytes:
            self._retire_key_index()

    def covers(self, position: PartitionPosition) -> bool:
        return (
            position.lineage == self.lineage
            and position.offset is not None
            and self.start_offset is not None
            and self.start_offset <= position.offset
        )

    def get_append_time(self, offset: int) -> float | None:
        """Return when the first entry from an offset on was appended.

        Infinity stands for an entry that is still to come, and None for one that was dropped.
        """
        if self.start_offset is None or self.next_offset is None or offset < self.start_offset:
            return None
        if offset >= self.next_offset:
            return inf
        # The first entry that ends behind the offset is the one that covers it.
        index = bisect_right(self._next_offsets, offset, lo=self._first_index)
        append_time: float = self._entries[index][-1]
        return append_time

    def iter_entries(self, offset: int) -> Iterator[Entry]:
        """Yield the entries from a covered offset on; of a gap across it the part after it."""
        for n in range(self._find_slot(offset), len(self._entries)):
            yield self._load_entry(n, offset)  # islice would walk over all before the first

    def iter_key_entries(
        self, offset: int, keys: Collection[bytes], end: float = inf
    ) -> Iterator[Entry]:
        """Yield the entries from a covered offset on that concern a reader of some keys.

        While there is an index of keys, a run of other entries before `end` is yielded as one
        `Skip`. Otherwise they are yielded as they are, and counted. Gaps are always yielded.
        """
        first, index = self._find_slot(offset), self._key_index
        if index is not None and index.is_complete and first + self._deleted_count >= index.start:
            index.is_used = True
            last = bisect_right(self._next_offsets, end, lo=first)
            yield from self._iter_indexed(index, offset, keys, first, last)
            for n in range(last, len(self._entries)):
                yield self._load_entry(n, offset)
            return
        n = first - 1
        try:
            for n in range(first, len(self._entries)):
                yield self._load_entry(n, offset)
        finally:
            self._key_scans.add(first + self._deleted_count, n + 1 - first)

    def build_key_index(self, max_entries: int) -> bool:
        if self._retired_key_indexes:
            if not self._retired_key_indexes[-1].free_shard():
                self._retired_key_indexes.pop()
            return True
        index = self._key_index
        if index is None or index.is_complete:
            index = self._begin_key_index()
            if index is None:
                return False
        index.skip_to(self._first_index + self._deleted_count)
        first = index.end - self._deleted_count
        stored = self._entries[first : first + max_entries]
        self._extend_key_index(index, map(_get_index_key, stored))
        if first + len(stored) == len(self._entries):
            index.is_complete = True
            self._key_scans.clear()  # what was looked at while it was built
        self._evict_to_max_bytes()
        return not index.is_complete or bool(self._retired_key_indexes)

    def _begin_key_index(self) -> KeyIndex | None:
        oldest = self._first_index + self._deleted_count
        start = self._key_scans.find_start(oldest, oldest + len(self))
        if start is None:
            return None
        self._key_scans.clear()
        self._retire_key_index()  # it does not reach back to where readers are
        self._key_index = KeyIndex(start)
        self.bytes += self._key_index.bytes
        return self._key_index

    def _find_slot(self, offset: int) -> int:
        return bisect_right(self._next_offsets, offset, lo=self._first_index)

    def _load_entry(self, n: int, offset: int) -> Entry:
        stored = self._entries[n]
        if len(stored) == _STORED_RECORD_LENGTH:
            return _tuple_new(Record, (self.tp, *stored[:-2]))
        entry: Entry = stored[0]
        is_partial = type(entry) is Gap and entry.offset < offset
        return entry._replace(offset=offset) if is_partial else entry

    def _iter_indexed(
        self, index: KeyIndex, offset: int, keys: Collection[bytes], first: int, last: int
    ) -> Iterator[Entry]:
        deleted = self._deleted_count
        following = first
        for number in index.iter_numbers(keys, first + deleted, last + deleted):
            n = number - deleted
            if n > following:
                yield self._build_skip(offset, following, n)
            yield self._load_entry(n, offset)
            following = n + 1
        if last > following:
            yield self._build_skip(offset, following, last)

    def _build_skip(self, offset: int, first: int, last: int) -> Skip:
        start = self._next_offsets[first - 1] if first > self._first_index else offset
        epoch = _get_epoch(self._entries[last - 1])
        return Skip(self.tp, max(offset, start), self._next_offsets[last - 1], epoch)

    def is_retired(self, position: PartitionPosition) -> bool:
        if position.lineage < 0:  # not checked yet: it may be of either topic
            return False
        return any(
            gap.reason is GapReason.RECREATED for gap in self._rewind_gaps[position.lineage :]
        )

    def matches_lineage(self, entry: Entry) -> bool:
        """Return whether an entry that was read elsewhere can be of this lineage.

        Below `next_offset` no entry has a later epoch than the newest one here. An entry that has
        one comes from a log that was truncated or recreated since, which the shared read has yet to
        notice.
        """
        if (
            self.next_offset is None
            or entry.epoch <= self.epoch
            or entry.next_offset > self.next_offset
        ):
            return type(entry) is not Gap or entry.reason not in REWIND_REASONS
        # The epoch of a gap is that of its leader, so one that ends where this log does may well
        # have a later epoch without the log having gone back.
        return type(entry) is Gap and entry.next_offset == self.next_offset

    def find_divergence(self, position: PartitionPosition) -> tuple[PartitionPosition | None, bool]:
        """Find where this log parted from the one in which a position was valid.

        The entries before a position have no later epoch than the position itself. If held entries
        before its offset have one, the log was truncated below it. The shared read does not notice
        that if the client was ahead of it, and the leader cannot tell where an epoch ended that
        ended before the log's start.

        Returns:
            The position from which the logs differ, and whether it is certain that they do not
            differ earlier. It is (None, True) if no held entry contradicts the position, and the
            start of the held entries with False if all of them do.
        """
        if position.epoch == NO_EPOCH or position.offset is None or self.start_offset is None:
            return None, True
        stored, end = self._entries, len(self._entries)
        # The first entry of a later epoch than the position's. Gaps have the epoch of the leader
        # that reported them, so bisection may stop at one; the loop passes over those.
        n = bisect_right(stored, position.epoch, self._first_index, key=_get_epoch)
        while n < end and (type(stored[n][0]) is Gap or _get_epoch(stored[n]) <= position.epoch):
            n += 1
        if n == end or self._next_offsets[n] > position.offset:
            return None, True
        if n == self._first_index:
            return PartitionPosition(self.start_offset, NO_EPOCH, self.lineage), False
        return PartitionPosition(
            self._next_offsets[n - 1], _get_epoch(stored[n - 1]), self.lineage
        ), True

    def rebase(self, position: PartitionPosition) -> tuple[Gap | None, PartitionPosition]:
        """Translate a verified position of an older lineage into the present one.

        The gap is the loss that the reader has to report; None if it lost nothing.
        """
        gap: Gap | None = None
        offset, epoch = position.offset, position.epoch
        assert offset is not None
        for rewind in self._rewind_gaps[position.lineage :]:
            if rewind.reason is GapReason.TRUNCATED and offset <= rewind.next_offset:
                continue  # the log was cut off behind the position, which stays valid
            # Several rewinds are one gap for the reader, from where it stood to where it goes
            # on; that the topic was created again outweighs later truncations of it.
            origin = gap.offset if gap else offset
            reason = gap.reason if gap and gap.reason is GapReason.RECREATED else rewind.reason
            gap = Gap(self.tp, origin, rewind.next_offset, rewind.epoch, reason)
            offset, epoch = rewind.next_offset, rewind.epoch
        return gap, PartitionPosition(offset, epoch, self.lineage)

    def _start_lineage(self, gap: Gap) -> None:
        self._rewind_gaps.append(gap)
        self.lineage += 1
        self._entries.clear()
        self._next_offsets.clear()
        self._retire_key_index()
        self._key_scans.clear()
        self._first_index = self._deleted_count = self.bytes = 0
        self.open(gap.next_offset, gap.epoch)

    def _evict_to_max_bytes(self) -> None:
        while self.bytes > self.max_bytes and self._first_index < len(self._entries) - 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        first, index = self._first_index, self._key_index
        if index is not None:
            self._discard_from_key_index(index, first)
        self.start_offset = self._next_offsets[first]
        self.bytes -= self._entries[first][-2]
        self._entries[first] = ()  # or its value would be held until the slots are deleted
        self._first_index += 1
        if self._first_index > 1024 and self._first_index * 2 > len(self._entries):
            # A list whose front is deleted now and then is 5 times cheaper to index than a deque.
            del self._entries[: self._first_index]
            del self._next_offsets[: self._first_index]
            self._deleted_count += self._first_index
            self._first_index = 0

    def _extend_key_index(self, index: KeyIndex, keys: Iterable[IndexKey | None]) -> None:
        self.bytes -= index.bytes
        index.extend(keys)
        self.bytes += index.bytes

    def _discard_from_key_index(self, index: KeyIndex, n: int) -> None:
        self.bytes -= index.bytes
        index.discard(_get_index_key(self._entries[n]), n + self._deleted_count)
        self.bytes += index.bytes

    def _expire_key_index(self, now: float) -> None:
        self._key_scans.expire(now, KEY_SCANS_WINDOW_S)
        index = self._key_index
        if index is None:
            return
        if index.is_used or self._key_index_used_at is None:
            self._key_index_used_at, index.is_used = now, False
        if now - self._key_index_used_at >= KEY_INDEX_LINGER_S:
            self._retire_key_index()

    def _retire_key_index(self) -> None:
        if self._key_index is not None:
            self.bytes -= self._key_index.bytes
            self._retired_key_indexes.append(self._key_index)
            self._key_index, self._key_index_used_at = None, None


def _get_index_key(stored: _StoredEntry) -> IndexKey | None:
    if len(stored) == _STORED_RECORD_LENGTH:
        key: bytes | None = stored[_STORED_KEY]
        return key
    return None if type(stored[0]) is Skip else CONTROL_KEY


def _get_epoch(entry: _StoredEntry) -> int:
    epoch: int = entry[1] if len(entry) == _STORED_RECORD_LENGTH else entry[0].epoch
    return epoch


def estimate_entry_size(entry: Entry) -> int:
    """Return about how many bytes an entry takes here, and on the wire."""
    if type(entry) is not Record:
        return ENTRY_OVERHEAD_BYTES
    size = ENTRY_OVERHEAD_BYTES + len(entry.key or b"") + len(entry.value or b"")
    for name, value in entry.headers:
        size += len(name) + len(value or b"") + HEADER_OVERHEAD_BYTES
    return size
