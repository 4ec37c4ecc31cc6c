"""How often a value fell between which bounds, counted by whoever has many of one value at once.

prometheus-client's own takes one observation at a time, with a lock: 1.1 us each, where a round has
1,000 clients that get a record after the same time. This takes all of them for 0.2 us.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

LATENCY_BUCKETS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Seconds, from what one core does at its best to where nobody waits any more."""

SIZE_BUCKETS_BYTES = (64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192, 16384, 65536)
"""Bytes, with the bounds of headers: 8 KB of most proxies, 64 KB of this gateway."""


class Histogram:
    """counts: of each bound those that are above the one before it and not above it, and at last
    those above all. sum: of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def merge_counts(self, counts: Iterable[int], sum: float) -> None:
        """Those of another with the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, counts, strict=True)]
        self.sum += sum

    @property
    def count(self) -> int:
        return sum(self.counts)
