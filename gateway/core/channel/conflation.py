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

from gateway.core.log.partition_log import Log
from gateway.core.log.record import Entry, Record, Skip, TopicPartition

from .rings import Rings

COST = 128  # bytes that a record of a stretch counts beside its key and value
KEY_COST = 96  # bytes of a key and its latest offset; the key itself is the log's
LOOK_ENTRIES = 4096  # that are looked at in one turn: 1.5 ms

Accepts: TypeAlias = Callable[[Record], bool] | None
Key: TypeAlias = bytes | int | Entry  # an offset: a record without a key; itself: what is none


def latest(entries: Sequence[Entry], accepts: Accepts = None) -> list[Entry]:
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


class Stretch:
    """Entries of one partition that follow each other, and what is left of them.

    most: bytes of records to be held; it is `full` from then on. What is added to a full one is
          not taken in any more, it only shows which records were not the latest of their keys.
    """

    __slots__ = (
        "_accepts", "_held", "_left", "bytes", "end", "epoch", "full", "most", "start", "tp"
    )  # fmt: skip

    def __init__(
        self, tp: TopicPartition, start: int, epoch: int, most: int, accepts: Accepts = None
    ) -> None:
        self.tp = tp
        self.start = self.end = start
        self.epoch = epoch
        self.most = most
        self.bytes = 0
        self.full = False
        self._accepts = accepts
        self._held: dict[Key, Entry] = {}
        self._left: deque[Entry] | None = None

    @property
    def closed(self) -> bool:
        """Nothing is added any more."""
        return self._left is not None

    @property
    def done(self) -> bool:
        """It is closed, and nothing is left."""
        return self._left is not None and not self._left

    def add(self, entry: Entry) -> None:
        """What comes next."""
        if self.full:
            self.replace(entry)
            return
        self.end, self.epoch = entry.next, entry.epoch
        key: Key = entry
        if type(entry) is Skip:
            return
        if type(entry) is Record:
            if self._accepts is not None and not self._accepts(entry):
                return
            key = entry.offset if entry.key is None else entry.key
            before = self._held.pop(key, None)  # popped, so that the later one stands last
            if before is not None:
                self.bytes -= weight(before)
        self._held[key] = entry
        self.bytes += weight(entry)
        self.full = self.bytes >= self.most

    def replace(self, entry: Entry) -> None:
        """What comes later: it is not held, but what it replaces is not the latest."""
        if type(entry) is not Record or entry.key is None or entry.key not in self._held:
            return
        if self._accepts is None or self._accepts(entry):
            self.bytes -= weight(self._held.pop(entry.key))

    def close(self) -> Sequence[Entry]:
        """What is left, in the order of offsets; the last one leads to `end`."""
        self._left = deque(self._held.values())
        self._held.clear()
        at = self._left[-1].next if self._left else self.start
        if at != self.end:
            self._left.append(Skip(self.tp, at, self.end, self.epoch))
        return self._left

    def take(self) -> Iterator[Entry]:
        """What is left, which then is no longer."""
        while self._left:
            entry = self._left.popleft()
            if type(entry) is not Skip:
                self.bytes -= weight(entry)
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

    __slots__ = ("__weakref__", "_accepts", "_lineage", "_next", "_offsets", "_rings", "bytes")

    def __init__(self, rings: Rings, accepts: Accepts = None) -> None:
        self.bytes = 0
        self._rings = rings
        self._accepts = accepts
        self._offsets: dict[bytes, int] = {}
        self._lineage = -1
        self._next = 0

    def look(self, log: Log, offset: int, end: int | None) -> None:
        """Take in what the log has got since the last look.

        Args:
            log: That of the partition.
            offset: From where on it is of use; what comes before is not looked at.
            end: Where the tail stands. What the log has beyond is not sent yet, so that it has
                replaced nothing.
        """
        if log.start is None or end is None:
            return
        if self._lineage != log.lineage:  # the log went back: what replaced a record may be gone
            self._forget()
            self._lineage, self._next = log.lineage, offset
        if len(self._offsets) > 2 * len(log) + LOOK_ENTRIES:
            self._offsets = {key: at for key, at in self._offsets.items() if at >= log.start}
            self._count()
        self._next = max(self._next, log.start)
        if self._next >= end or not self._rings.has_room(LOOK_ENTRIES * KEY_COST):
            return
        for entry in islice(log.read(self._next), LOOK_ENTRIES):
            if entry.next > end:
                break
            self._next = entry.next
            if type(entry) is not Record or entry.key is None:
                continue
            if self._accepts is None or self._accepts(entry):
                self._offsets[entry.key] = entry.offset
        self._count()

    def has_replaced(self, entry: Entry) -> bool:
        """Return whether the log holds a later record of the entry's key."""
        if type(entry) is not Record or entry.key is None:
            return False
        return self._offsets.get(entry.key, -1) > entry.offset

    def skip_replaced(self, entry: Entry) -> Entry:
        """Return the entry, or what passes over it where the log has replaced it."""
        if not self.has_replaced(entry):
            return entry
        return Skip(entry.tp, entry.offset, entry.next, entry.epoch)

    def _count(self) -> None:
        before, self.bytes = self.bytes, KEY_COST * len(self._offsets)
        self._rings.bytes += self.bytes - before

    def _forget(self) -> None:
        self._offsets = {}
        self._count()


def weight(entry: object) -> int:
    """Bytes that an entry is taken to hold in memory; what is shared is as good as nothing."""
    if type(entry) is not Record:
        return COST // 2
    return COST + len(entry.key or b"") + len(entry.value or b"")
