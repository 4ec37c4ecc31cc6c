"""The latest of each key, for those who need not see every record between.

Of what came of a key within one flush only the latest record goes out; a tombstone is one.
Records without a key all go, and so does everything else that is told. What is left keeps the
order of its arrival, and the filter looks first: a record that is not seen replaces none.

A flush moves the position past records that were left out, so an id goes with its last event
only. Within one partition there is more: a record was left out for a *later* one of its key. So
what is left of a stretch may be cut anywhere, and the place after the last record that was sent
is one to go on from: whatever is missing before it comes again after it, as something newer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Entry, Record, Skip, TopicPartition

from .ring_budget import RingBudget

RECORD_OVERHEAD_BYTES = 128  # bytes that a record of a stretch counts beside its key and value
KEY_OVERHEAD_BYTES = 96  # bytes of a key and its latest offset; the key itself is the log's
MAX_SCAN_ENTRIES = 4096  # that are looked at in one turn: 1.5 ms

RecordPredicate: TypeAlias = Callable[[Record], bool] | None
ConflationKey: TypeAlias = (
    bytes | int | Entry
)  # an offset: a record without a key; itself: what is none


def conflate(entries: Sequence[Entry], accepts: RecordPredicate = None) -> list[Entry]:
    """What is left of one flush, of any partitions: a key is one of its topic, wherever it is."""
    seen: set[tuple[str, bytes]] = set()
    kept: list[Entry] = []
    for entry in reversed(entries):
        if type(entry) is Record:
            if accepts is not None and not accepts(entry):
                continue
            if entry.key is not None:
                key = (entry.tp.topic, entry.key)
                if key in seen:
                    continue
                seen.add(key)
        kept.append(entry)
    kept.reverse()
    return kept


class KeyWindow:
    """Entries of one partition that follow each other, and what is left of them.

    most: bytes of records to be held; it is `full` from then on. What is added to a full one is
          not taken in any more, it only shows which records were not the latest of their keys.
    """

    __slots__ = (
        "_accepts", "_entries", "_remaining", "bytes", "end_offset", "epoch", "is_full", "max_bytes", "start_offset", "tp"
    )  # fmt: skip

    def __init__(
        self,
        tp: TopicPartition,
        start: int,
        epoch: int,
        max_bytes: int,
        accepts: RecordPredicate = None,
    ) -> None:
        self.tp = tp
        self.start_offset = self.end_offset = start
        self.epoch = epoch
        self.max_bytes = max_bytes
        self.bytes = 0
        self.is_full = False
        self._accepts = accepts
        self._entries: dict[ConflationKey, Entry] = {}
        self._remaining: deque[Entry] | None = None

    @property
    def is_closed(self) -> bool:
        """Nothing is added any more."""
        return self._remaining is not None

    @property
    def is_drained(self) -> bool:
        """It is closed, and nothing is left."""
        return self._remaining is not None and not self._remaining

    def add(self, entry: Entry) -> None:
        """What comes next."""
        if self.is_full:
            self.discard_replaced(entry)
            return
        self.end_offset, self.epoch = entry.next_offset, entry.epoch
        key: ConflationKey = entry
        if type(entry) is Skip:
            return
        if type(entry) is Record:
            if self._accepts is not None and not self._accepts(entry):
                return
            key = entry.offset if entry.key is None else entry.key
            before = self._entries.pop(key, None)  # popped, so that the later one stands last
            if before is not None:
                self.bytes -= buffered_size(before)
        self._entries[key] = entry
        self.bytes += buffered_size(entry)
        self.is_full = self.bytes >= self.max_bytes

    def discard_replaced(self, entry: Entry) -> None:
        """What comes later: it is not held, but what it replaces is not the latest."""
        if type(entry) is not Record or entry.key is None or entry.key not in self._entries:
            return
        if self._accepts is None or self._accepts(entry):
            self.bytes -= buffered_size(self._entries.pop(entry.key))

    def close(self) -> Sequence[Entry]:
        """What is left, in the order of offsets; the last one leads to `end`."""
        self._remaining = deque(self._entries.values())
        self._entries.clear()
        at = self._remaining[-1].next_offset if self._remaining else self.start_offset
        if at != self.end_offset:
            self._remaining.append(Skip(self.tp, at, self.end_offset, self.epoch))
        return self._remaining

    def drain(self) -> Iterator[Entry]:
        """What is left, which then is no longer."""
        while self._remaining:
            entry = self._remaining.popleft()
            if type(entry) is not Skip:
                self.bytes -= buffered_size(entry)
            yield entry


class LatestOffsets:
    """The offset of the latest record of each key in a log, up to its tail, as one view sees it.

    A stretch alone knows only of what it holds: a client whose keys' latest records are more than
    that would be sent every record, late, and never be live again. One instance for a partition
    and a view, shared by the clients that are conflated, and gone with the last of them.

    It covers what the log holds from the first place on that was asked for. While it is behind, or
    has no room to go on, it only knows of fewer records that were replaced.

    Attributes:
        bytes: What it takes up, counted in `rings`.
    """

    __slots__ = (
        "__weakref__",
        "_accepts",
        "_lineage",
        "_next_offset",
        "_offsets",
        "_ring_budget",
        "bytes",
    )

    def __init__(self, ring_budget: RingBudget, accepts: RecordPredicate = None) -> None:
        self.bytes = 0
        self._ring_budget = ring_budget
        self._accepts = accepts
        self._offsets: dict[bytes, int] = {}
        self._lineage = -1
        self._next_offset = 0

    def scan(self, log: PartitionLog, offset: int, end: int | None) -> None:
        """Take in what the log has got since the last look.

        Args:
            log: That of the partition.
            offset: From where on it is of use; what comes before is not looked at.
            end: Where the tail stands. What the log has beyond is not sent yet, so that it has
                replaced nothing.
        """
        if log.start_offset is None or end is None:
            return
        if self._lineage != log.lineage:  # the log went back: what replaced a record may be gone
            self._clear()
            self._lineage, self._next_offset = log.lineage, offset
        if len(self._offsets) > 2 * len(log) + MAX_SCAN_ENTRIES:
            self._offsets = {key: at for key, at in self._offsets.items() if at >= log.start_offset}
            self._update_size()
        self._next_offset = max(self._next_offset, log.start_offset)
        if self._next_offset >= end or not self._ring_budget.has_capacity(
            MAX_SCAN_ENTRIES * KEY_OVERHEAD_BYTES
        ):
            return
        for entry in islice(log.iter_entries(self._next_offset), MAX_SCAN_ENTRIES):
            if entry.next_offset > end:
                break
            self._next_offset = entry.next_offset
            if type(entry) is not Record or entry.key is None:
                continue
            if self._accepts is None or self._accepts(entry):
                self._offsets[entry.key] = entry.offset
        self._update_size()

    def has_replaced(self, entry: Entry) -> bool:
        """Return whether the log holds a later record of the entry's key."""
        if type(entry) is not Record or entry.key is None:
            return False
        return self._offsets.get(entry.key, -1) > entry.offset

    def skip_replaced(self, entry: Entry) -> Entry:
        """Return the entry, or what passes over it where the log has replaced it."""
        if not self.has_replaced(entry):
            return entry
        return Skip(entry.tp, entry.offset, entry.next_offset, entry.epoch)

    def _update_size(self) -> None:
        before, self.bytes = self.bytes, KEY_OVERHEAD_BYTES * len(self._offsets)
        self._ring_budget.bytes += self.bytes - before

    def _clear(self) -> None:
        self._offsets = {}
        self._update_size()


def buffered_size(entry: object) -> int:
    """Bytes that an entry is taken to hold in memory; what is shared is as good as nothing."""
    if type(entry) is not Record:
        return RECORD_OVERHEAD_BYTES // 2
    return RECORD_OVERHEAD_BYTES + len(entry.key or b"") + len(entry.value or b"")
