"""What a task remembers of a table that is looked up: the values used last, none too old.

A value's age counts from when it was *asked for*: it was true at some moment after that. One
older than `staleness` is asked for anew, never used; that a key has none is remembered for
`negative`. Nothing is evicted while a batch is being answered (`trim` does it at the end): of a
batch with more keys than `size` some would otherwise come out without their row.

Sans-I/O: time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, fields
from itertools import islice, repeat
from typing import TypeAlias

_TimedValue: TypeAlias = tuple[bytes | None, float]  # the value, and when it was asked for


@dataclass(slots=True)
class LookupStats:
    """What lookups cost. Keys are the different ones of a batch, summed over batches."""

    rows: int = 0  # with a key
    keys: int = 0
    hits: int = 0  # keys answered by what was remembered, be it that there is none
    stale_keys: int = 0  # keys remembered, but for too long
    answered_keys: int = 0  # keys that the table answered
    missing_keys: int = 0  # keys that the table has not
    fallback_keys: int = 0  # keys that the fallback had
    failures: int = 0  # requests that the table did not answer

    def __add__(self, other: LookupStats) -> LookupStats:
        names = (each.name for each in fields(self))
        return LookupStats(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def hit_rate(self) -> float:
        """The share of rows that needed no request of their own, 0 to 1: their key was
        remembered, or is another row's of the same batch."""
        return 1.0 - (self.keys - self.hits) / self.rows if self.rows else 0.0


@dataclass(slots=True)
class LookupCache:
    """Values by key.

    size:      keys kept between batches; 0: none.
    staleness: seconds that a value may be used after it was asked for.
    negative:  the same for that a key has none; `staleness` bounds it, too.
    """

    size: int
    staleness: float
    negative: float
    stats: LookupStats = field(default_factory=LookupStats)
    _entries: dict[str, _TimedValue] = field(default_factory=dict)  # the least lately used first

    def find_keys_to_fetch(
        self, keys: Sequence[str], now: float, requested_since: float
    ) -> list[str]:
        """Those of different keys that must be asked for before a batch can be answered.

        since: when the latest request for this batch began: what was asked for from then on is
            as new as can be, and is used even if the answer took longer than the bound.
        """
        oldest = min(requested_since, now - self.staleness)
        oldest_none = min(requested_since, now - min(self.negative, self.staleness))
        get = self._entries.get
        lacking, stale = [], 0
        for key in keys:
            entry = get(key)
            if entry is None:
                lacking.append(key)
            elif entry[1] < (oldest if entry[0] is not None else oldest_none):
                lacking.append(key)
                stale += 1
        self.stats.stale_keys += stale
        return lacking

    def store_values(
        self, keys: Sequence[str], values: Sequence[bytes | None], requested_at: float
    ) -> None:
        """What the table said to a request that began at `asked`."""
        self._entries.update(zip(keys, zip(values, repeat(requested_at)), strict=True))

    def get_values(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of different keys of which none is lacking; they are now those used last."""
        entries = self._entries
        pop = entries.pop
        values = []
        for key in keys:
            entry = entries[key] = pop(key)
            values.append(entry[0])
        return values

    def evict_excess(self) -> None:
        """Forget those used least lately, beyond `size`: the batch is answered."""
        for key in list(islice(self._entries, max(0, len(self._entries) - self.size))):
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(slots=True)
class BatchRequest:
    """One batch's way to the values of its keys, which are different ones.

    `ask` is what to ask for next; empty: `Cache.answer` may be called. Each round either is over
    (everything in `ask` was `put`) or failed on the way. What became too old meanwhile is asked
    for, and if something did even then, all keys in one round: with a bound shorter than a round
    they would never all be fresh otherwise.
    """

    cache: LookupCache
    keys: Sequence[str]
    now: InitVar[float]
    keys_to_fetch: list[str] = field(init=False)
    _round_started_at: float = field(init=False)
    _round_count: int = 0

    def __post_init__(self, now: float) -> None:
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, requested_since=now)
        self.cache.stats.keys += len(self.keys)
        self.cache.stats.hits += len(self.keys) - len(self.keys_to_fetch)

    def start_round(self, now: float) -> None:
        """A round begins."""
        self._round_started_at = now

    def finish_round(self, now: float) -> None:
        """It is over. Where nothing fails in between, the third one is the last."""
        self._round_count += 1
        if len(self.keys_to_fetch) == len(
            self.keys
        ):  # all are as new as can be: a sixth of the cache's time
            self.keys_to_fetch = []
            return
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, self._round_started_at)
        if self.keys_to_fetch and self._round_count > 1:
            self.keys_to_fetch = list(self.keys)

    def fail_round(self, now: float) -> None:
        """It is not: what it brought is used for as long as anything else."""
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, requested_since=now)
        self._round_count = 0
        self.cache.stats.failures += 1
