"""Find the entries of a key in a partition's log without looking at those of other keys.

A client that follows one key and comes back from far behind looks at every record that it missed.
One such client costs little. When 2,500 of them came to a worker at once, at 5,000 records a
second, all fell further behind than they caught up.

`KeyIndex` maps each key to the numbers of its entries, which readers search by bisection.
`KeyScans` decides when an index pays: once readers have looked at a multiple of the entries that it
would take in. So building costs a fraction of the earlier scans. The alternative, one reader that
scans the log for all, would need a queue for each client, since they stand at different places with
different credit, and another scan for each later one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from typing import Final, TypeAlias

CONTROL_KEY: Final = "control"
"""The key of entries that concern readers of all keys, such as gaps. No record's key is a text."""

SCANS_PER_ENTRY: Final = 2  # entries that are looked at per entry of the index before it pays
MIN_SCANNED_ENTRIES: Final = 16_384  # entries; less than that is read in 20 ms
# A dict of 500,000 keys takes up to 24 ms to grow, and 12 ms to be freed. One of 64 parts takes a
# 64th of that, and they neither grow nor are freed together.
SHARD_COUNT: Final = 64

# Estimated sizes in bytes; the bytes of the key itself belong to its record.
_SHARD_BYTES = 64
_KEY_BYTES = 80  # a place in a dict, and a number
_ARRAY_BYTES = 40  # an array, without the number that it replaces
_NUMBER_BYTES = 9  # in an array, with what it allocates in advance

IndexKey: TypeAlias = bytes | str
_Numbers: TypeAlias = "int | array[int]"  # most keys of a topic may have one entry each


class KeyIndex:
    """The numbers of a log's entries by key.

    A `PartitionLog` creates and owns it, and numbers its entries consecutively. Invariants between
    calls:

    - It has all entries from `start` on and before `end` whose key is not None and that the log
      still holds.
    - The numbers of a key ascend. At most half of them are of entries that the log has dropped.

    `is_complete` says that it reaches the end of the log, and takes in appended entries.
    """

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.bytes = SHARD_COUNT * _SHARD_BYTES
        self.is_complete = False
        self.is_used = True
        self._shards: list[dict[IndexKey, _Numbers]] = [{} for _ in range(SHARD_COUNT)]

    def extend(self, keys: Iterable[IndexKey | None]) -> None:
        for key in keys:
            if key is not None:
                self._add(key, self.end)
            self.end += 1

    def skip_to(self, number: int) -> None:
        self.end = max(self.end, number)

    def discard(self, key: IndexKey | None, number: int) -> None:
        if key is None or not self.start <= number < self.end:
            return
        shard = self._shards[hash(key) % SHARD_COUNT]
        numbers = shard[key]
        if isinstance(numbers, int) or numbers[-1] <= number:
            del shard[key]
            self.bytes -= _estimate_size(numbers)
        elif numbers[len(numbers) // 2] <= number:  # so that each number is moved about once
            count = bisect_right(numbers, number)
            del numbers[:count]
            self.bytes -= count * _NUMBER_BYTES

    def iter_numbers(self, keys: Collection[bytes], first: int, end: int) -> Iterator[int]:
        """Return the numbers of the entries of keys and of control entries, in order."""
        found: list[Iterator[int]] = []
        looked_for: tuple[IndexKey, ...] = (*keys, CONTROL_KEY)
        for key in looked_for:
            numbers = self._shards[hash(key) % SHARD_COUNT].get(key)
            if isinstance(numbers, int):
                numbers = array("q", (numbers,))
            if numbers is not None and first <= numbers[-1]:
                found.append(_iter_range(numbers, first, end))
        return found[0] if len(found) == 1 else merge(*found)

    def free_shard(self) -> bool:
        self._shards.pop()
        return bool(self._shards)

    def _add(self, key: IndexKey, number: int) -> None:
        shard = self._shards[hash(key) % SHARD_COUNT]
        numbers = shard.get(key)
        if numbers is None:
            shard[key] = number
            self.bytes += _KEY_BYTES
        elif isinstance(numbers, int):
            shard[key] = array("q", (numbers, number))
            self.bytes += _ARRAY_BYTES + 2 * _NUMBER_BYTES
        else:
            numbers.append(number)
            self.bytes += _NUMBER_BYTES


class KeyScans:
    """The number of entries that readers of single keys looked at lately, for want of an index."""

    def __init__(self) -> None:
        self._count = 0
        self._first = 0  # the lowest number of an entry that was looked at
        self._began_at: float | None = None

    def add(self, first: int, count: int) -> None:
        self._first = min(self._first, first) if self._count else first
        self._count += count

    def find_start(self, oldest: int, end: int) -> int | None:
        start = max(self._first, oldest)
        is_worth_it = self._count >= max(MIN_SCANNED_ENTRIES, SCANS_PER_ENTRY * (end - start))
        return start if is_worth_it else None

    def clear(self) -> None:
        self._count, self._began_at = 0, None

    def expire(self, now: float, max_age: float) -> None:
        if self._began_at is None:
            self._began_at = now
        elif now - self._began_at >= max_age:
            self.clear()


def _iter_range(numbers: array[int], first: int, end: int) -> Iterator[int]:
    for n in range(bisect_left(numbers, first), len(numbers)):
        if numbers[n] >= end:
            return
        yield numbers[n]


def _estimate_size(numbers: _Numbers) -> int:
    if isinstance(numbers, int):
        return _KEY_BYTES
    return _KEY_BYTES + _ARRAY_BYTES + _NUMBER_BYTES * len(numbers)
