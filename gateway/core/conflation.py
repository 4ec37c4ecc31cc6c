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
from typing import TypeAlias

from .record import Entry, Record, Skip, TopicPartition

COST = 128  # bytes that a record of a stretch counts beside its key and value

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


def weight(entry: object) -> int:
    """Bytes that an entry is taken to hold in memory; what is shared is as good as nothing."""
    if type(entry) is not Record:
        return COST // 2
    return COST + len(entry.key or b"") + len(entry.value or b"")
