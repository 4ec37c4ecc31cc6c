"""Keep only the latest record of each key, for clients that need not see every one between.

Of the records that one key got within one flush, only the latest is sent; a tombstone counts as a
record. Records without a key are all sent, and so is every other entry that clients are informed
of, in the order of arrival. The filter is applied first: a record that is not shown replaces none.

A flush moves the position past records that were left out, so only its last event has an id. Within
one partition there is a stronger rule: a record was left out for a *later* one of its key. So a
window of one partition may be cut anywhere, and the position after the last record that was sent is
a valid one to go on from: whatever is missing before it comes after it, as something newer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import HEADER_OVERHEAD_BYTES, Entry, Record, Skip, TopicPartition

from .chunk_ring import RingBudget
from .filters import get_judging_cost, get_lookup_keys

RECORD_OVERHEAD_BYTES = 128  # bytes that a record of a window counts beside its payload
KEY_OVERHEAD_BYTES = 96  # bytes of a key and its latest offset; the key itself is the log's
MAX_SCAN_ENTRIES = 4096  # entries that are looked at in one call: 1.5 ms
MAX_SCAN_BYTES = 256 * 1024  # of their payloads, where a view judges them

RecordPredicate: TypeAlias = Callable[[Record], bool] | None
# The key of a record, the offset of a record without a key, or an entry that is not a record.
ConflationKey: TypeAlias = bytes | int | Entry


def conflate(entries: Sequence[Entry], accepts: RecordPredicate = None) -> list[Entry]:
    """Return the remaining entries of one flush. A key is one in all partitions of a topic."""
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


@dataclass(eq=False, slots=True)
class KeyWindow:
    """Consecutive entries of one partition, of which the latest record of each key remains.

    A private reader creates one per partition that it conflates. It first gathers (`add`), then is
    closed, then is drained; records without a newer one of their key remain, in offset order. Once
    it is full, added entries are not taken in any more: they only show which of the held records
    are not the latest of their keys. `is_full` stays even if `bytes` falls again.
    """

    tp: TopicPartition
    start_offset: int
    epoch: int
    max_bytes: int
    _accepts: RecordPredicate = None
    end_offset: int = field(init=False)
    bytes: int = 0
    is_full: bool = False
    _entries: dict[ConflationKey, Entry] = field(default_factory=dict)
    _remaining: deque[Entry] | None = None  # what is left, once it is closed

    def __post_init__(self) -> None:
        self.end_offset = self.start_offset

    @property
    def is_closed(self) -> bool:
        return self._remaining is not None

    @property
    def is_drained(self) -> bool:
        return self._remaining is not None and not self._remaining

    def add(self, entry: Entry) -> None:
        if self.is_full:
            self.discard_replaced(entry)
            return
        self.end_offset, self.epoch = entry.next_offset, entry.epoch
        # An entry that is no record is a key of its own: nothing replaces it.
        key: ConflationKey = entry
        if type(entry) is Skip:
            return
        if type(entry) is Record:
            if self._accepts is not None and not self._accepts(entry):
                return
            key = entry.offset if entry.key is None else entry.key
            # Popped and not overwritten, so that the later record takes its place at the end.
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self.bytes -= buffered_size(replaced)
        self._entries[key] = entry
        self.bytes += buffered_size(entry)
        self.is_full = self.bytes >= self.max_bytes

    def discard_replaced(self, entry: Entry) -> None:
        if type(entry) is not Record or entry.key is None or entry.key not in self._entries:
            return
        if self._accepts is None or self._accepts(entry):
            self.bytes -= buffered_size(self._entries.pop(entry.key))

    def close(self) -> Sequence[Entry]:
        """End gathering and return the remaining entries, with a `Skip` up to `end_offset`."""
        self._remaining = deque(self._entries.values())
        self._entries.clear()
        next_offset = self._remaining[-1].next_offset if self._remaining else self.start_offset
        if next_offset != self.end_offset:
            self._remaining.append(Skip(self.tp, next_offset, self.end_offset, self.epoch))
        return self._remaining

    def drain(self) -> Iterator[Entry]:
        while self._remaining:
            entry = self._remaining.popleft()
            if type(entry) is not Skip:
                self.bytes -= buffered_size(entry)
            yield entry


class LatestOffsets:
    """The offset of the latest record of each key in a log, up to its tail, as one view sees it.

    A `KeyWindow` knows only the records that it holds. A client whose keys' latest records are
    larger than that would be sent every record, late, and never become live again. One instance for
    a partition and a view, shared by its conflated clients and freed with the last of them.

    While it lags behind the log, or the budget does not allow it to go on, it only knows of fewer
    records that were replaced: a record may then be sent in vain, but none is left out wrongly.
    """

    __slots__ = (
        "__weakref__", "_accepts", "_keys", "_lineage", "_next_offset", "_offsets", "_ring_budget",
        "bytes",
    )  # fmt: skip

    def __init__(self, ring_budget: RingBudget, accepts: RecordPredicate = None) -> None:
        self.bytes = 0
        self._ring_budget = ring_budget
        self._accepts = accepts
        self._keys = get_lookup_keys(accepts)
        self._offsets: dict[bytes, int] = {}
        self._lineage = -1
        self._next_offset = 0

    def __del__(self) -> None:
        self._ring_budget.bytes -= self.bytes

    def scan(self, log: PartitionLog, offset: int, end: int | None) -> None:
        """Take in the next entries of the log, a bounded number of them.

        Entries before `offset` are of no use. Entries beyond `end`, the tail's position, are not
        sent yet and therefore have replaced nothing.
        """
        if log.start_offset is None or end is None:
            return
        if self._lineage != log.lineage:  # the log went back: what replaced a record may be gone
            self._clear()
            self._lineage, self._next_offset = log.lineage, offset
        # Forget keys whose latest record the log has dropped, when they are the majority.
        if len(self._offsets) > 2 * len(log) + MAX_SCAN_ENTRIES:
            self._offsets = {
                key: latest for key, latest in self._offsets.items() if latest >= log.start_offset
            }
            self._update_size()
        self._next_offset = max(self._next_offset, log.start_offset)
        if self._next_offset >= end or not self._ring_budget.has_capacity(
            MAX_SCAN_ENTRIES * KEY_OVERHEAD_BYTES
        ):
            return
        following = (
            log.iter_entries(self._next_offset)
            if self._keys is None
            else log.iter_key_entries(self._next_offset, self._keys, end)
        )
        bytes_left = MAX_SCAN_BYTES
        for entry in islice(following, MAX_SCAN_ENTRIES // get_judging_cost(self._accepts) + 1):
            if entry.next_offset > end or bytes_left < 0:
                break
            self._next_offset = entry.next_offset
            if type(entry) is not Record or entry.key is None:
                continue
            if self._accepts is not None:
                bytes_left -= entry.payload_size
            if self._accepts is None or self._accepts(entry):
                self._offsets[entry.key] = entry.offset
        self._update_size()

    def has_replaced(self, entry: Entry) -> bool:
        if type(entry) is not Record or entry.key is None:
            return False
        return self._offsets.get(entry.key, -1) > entry.offset

    def skip_replaced(self, entry: Entry) -> Entry:
        if not self.has_replaced(entry):
            return entry
        return Skip(entry.tp, entry.offset, entry.next_offset, entry.epoch)

    def _update_size(self) -> None:
        # Not by `grow`, which may drop rings: `scan` goes on only while the limit allows it.
        old_size, self.bytes = self.bytes, KEY_OVERHEAD_BYTES * len(self._offsets)
        self._ring_budget.bytes += self.bytes - old_size

    def _clear(self) -> None:
        self._offsets = {}
        self._update_size()


def buffered_size(entry: object) -> int:
    """Return about how many bytes an entry takes in memory; shared parts count nothing."""
    if type(entry) is not Record:
        return RECORD_OVERHEAD_BYTES // 2
    overhead = RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(entry.headers)
    return overhead + entry.payload_size
