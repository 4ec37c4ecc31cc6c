"""Cache the values that a task has looked up in a table, and retry while its server is away.

The cache has the most recently used values, none too old. The age of a value counts from when it
was *requested*: it was correct at some moment after that. A value older than `staleness` is never
used, but fetched again. Nothing is evicted while a batch is answered (`evict_excess` does it at the
end). Otherwise, if a batch has more keys than `size`, some rows would be lost.

`LookupCache` and `BatchRequest` do no I/O: callers pass the time, in seconds of any monotonic
clock.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, fields
from itertools import islice, repeat
from typing import TypeAlias

from gateway.core.log.recovery import Backoff, Cause

log = logging.getLogger(__name__)

# A value (None if the key has none), and when it was requested.
_TimedValue: TypeAlias = tuple[bytes | None, float]


@dataclass(slots=True)
class LookupStats:
    """Counters of lookups, summed over batches. Keys are the distinct keys of each batch.

    Attributes:
        hits: Keys that the cache answered, including keys that are known to have no value.
    """

    rows: int = 0
    keys: int = 0
    hits: int = 0
    stale_keys: int = 0
    answered_keys: int = 0
    missing_keys: int = 0
    fallback_keys: int = 0
    failures: int = 0

    def __add__(self, other: LookupStats) -> LookupStats:
        names = (counter.name for counter in fields(self))
        return LookupStats(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def hit_rate(self) -> float:
        """Return the share of rows that needed no request of their own, from 0 to 1.

        Their key was in the cache, or another row of the same batch has it, too.
        """
        return 1.0 - (self.keys - self.hits) / self.rows if self.rows else 0.0


@dataclass(slots=True)
class LookupCache:
    """A cache of values by key, with the least recently used first.

    Each `LookupTable` owns one. Between batches it has at most `size` keys.

    Attributes:
        staleness: How long a value may be used after it was requested, in seconds.
        negative: How long a key without a value is cached, in seconds; at most `staleness` counts.
    """

    size: int
    staleness: float
    negative: float
    stats: LookupStats = field(default_factory=LookupStats)
    # A dictionary keeps the order of insertion, and `get_values` inserts every key again.
    _entries: dict[str, _TimedValue] = field(default_factory=dict)

    def find_keys_to_fetch(
        self, keys: Sequence[str], now: float, requested_since: float
    ) -> list[str]:
        """Return those of some distinct keys that must be fetched before a batch can be answered.

        Args:
            requested_since: When the latest round of requests for this batch began. A value that
                was requested since then is as new as possible, and is used even if the answer took
                longer than `staleness`.
        """
        oldest = min(requested_since, now - self.staleness)
        oldest_none = min(requested_since, now - min(self.negative, self.staleness))
        get = self._entries.get  # a local name, because this loop runs for every key
        to_fetch, stale = [], 0
        for key in keys:
            entry = get(key)
            if entry is None:
                to_fetch.append(key)
            elif entry[1] < (oldest if entry[0] is not None else oldest_none):
                to_fetch.append(key)
                stale += 1
        self.stats.stale_keys += stale
        return to_fetch

    def store_values(
        self, keys: Sequence[str], values: Sequence[bytes | None], requested_at: float
    ) -> None:
        """Store the table's answer to a request, in which None is a key without a row."""
        self._entries.update(zip(keys, zip(values, repeat(requested_at)), strict=True))

    def get_values(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of distinct cached keys, which become the most recently used."""
        entries = self._entries
        pop = entries.pop
        values = []
        for key in keys:
            entry = entries[key] = pop(key)
            values.append(entry[0])
        return values

    def evict_excess(self) -> None:
        for key in list(islice(self._entries, max(0, len(self._entries) - self.size))):
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(slots=True)
class BatchRequest:
    """The rounds of requests that fetch the values of one batch's keys.

    `LookupTable` creates one for each batch. It calls `start_round`, fetches all of
    `keys_to_fetch`, and calls `finish_round` or `fail_round`, until `keys_to_fetch` is empty. Then
    `LookupCache.get_values` may be called.

    The second round fetches values that became too old during the first. If some became too old
    even during the second, the third round fetches all keys at once. Otherwise, if `staleness` is
    shorter than a round takes, the values would never all be fresh.
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
        self._round_started_at = now

    def finish_round(self, now: float) -> None:
        """Record that all keys of a round were stored.

        If no round fails in between, the third one is the last.
        """
        self._round_count += 1
        # If the round fetched all keys, all values are as new as possible. Not to look them up
        # saves a sixth of the cache's time.
        if len(self.keys_to_fetch) == len(self.keys):
            self.keys_to_fetch = []
            return
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, self._round_started_at)
        if self.keys_to_fetch and self._round_count > 1:
            self.keys_to_fetch = list(self.keys)

    def fail_round(self, now: float) -> None:
        """Record that a round failed. The values that it did fetch have the usual age limit."""
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, requested_since=now)
        self._round_count = 0
        self.cache.stats.failures += 1


MAX_RETRY_DELAY_S = 2.0  # seconds, to which the delays grow


class OutageBackoff:
    """The delays between requests to a server that does not answer, and the log lines about it.

    Each `LookupTable` and each loader of a table has one. An outage is logged when the second
    request in a row has failed, and when the server answers again.
    """

    def __init__(
        self,
        display_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._display_name, self._clock, self._sleep = display_name, clock, sleep
        self._backoff = Backoff(max_delay=MAX_RETRY_DELAY_S, random=random.random)
        self._started_at = 0.0

    @property
    def is_outage(self) -> bool:
        """Return whether the server has failed more than once.

        A single failure may just be an idle connection that the server has closed.
        """
        return self._backoff.attempts >= 2

    def wait_for_retry(self, error: Exception, consequence: str) -> None:
        """Wait before a request is repeated. The log gets the consequence of an outage."""
        if self._backoff.attempts == 0:
            self._started_at = self._clock()
        delay = self._backoff.next_delay(Cause.CONNECTION)
        if self._backoff.attempts == 2:
            log.warning("%s is away (%s); %s", self._display_name, error, consequence)
        self._sleep(delay)

    def reset(self) -> None:
        if self.is_outage:
            log.warning(
                "%s answers again, after %.1f s",
                self._display_name,
                self._clock() - self._started_at,
            )
        self._backoff.reset()
