"""Compute what the charts show, and keep it for ten minutes.

Each worker samples its counters in every interval of 5 s, also while nobody watches: whoever opens
the console because of an alert sees how it began. Intervals are numbered since 1970, so the samples
of all workers add up. A worker keeps 120 of them, 45 KB. Sans-I/O: callers pass counters and times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from gateway.telemetry.counts import LATENCY_BUCKETS_S

SAMPLE_S = 5.0
MAX_SAMPLES = 120
QUANTILES = (0.5, 0.99)


class Counters(NamedTuple):
    """The counters of one worker at one moment; histograms by `LATENCY_BUCKETS_S`."""

    clock: float
    delivered: int
    sent_bytes: int
    fetched: int
    latency: Sequence[int]
    loop_lag: Sequence[int]


class Rates(NamedTuple):
    """The changes of `Counters` between two moments: per second, and the histograms in total."""

    delivered: float
    sent_bytes: float
    fetched: float
    latency: Sequence[int]
    loop_lag: Sequence[int]


def compute_rates(before: Counters, after: Counters) -> Rates | None:
    """Return the rates between two moments of one worker; None if no time has passed."""
    seconds = after.clock - before.clock
    if seconds <= 0:
        return None

    def divide(old: int, new: int) -> float:
        # Below 0 where a counter began anew.
        return max(0.0, (new - old) / seconds)

    return Rates(
        divide(before.delivered, after.delivered),
        divide(before.sent_bytes, after.sent_bytes),
        divide(before.fetched, after.fetched),
        _subtract(after.latency, before.latency),
        _subtract(after.loop_lag, before.loop_lag),
    )


def add_rates(rates: Sequence[Rates]) -> Rates:
    return Rates(
        sum(each.delivered for each in rates),
        sum(each.sent_bytes for each in rates),
        sum(each.fetched for each in rates),
        [sum(counts) for counts in zip(*(each.latency for each in rates), strict=True)],
        [sum(counts) for counts in zip(*(each.loop_lag for each in rates), strict=True)],
    )


def find_quantile(counts: Sequence[int], quantile: float) -> float | None:
    """Return a quantile in seconds, interpolated in its bucket, at most the highest bound.

    `counts` has the buckets of `LATENCY_BUCKETS_S`, and last the values above all of them.
    """
    totals = list(accumulate(counts))
    if not totals or not totals[-1]:
        return None
    rank = quantile * totals[-1]
    index = bisect_left(totals, rank)
    if index >= len(LATENCY_BUCKETS_S):
        return LATENCY_BUCKETS_S[-1]
    low = LATENCY_BUCKETS_S[index - 1] if index else 0.0
    below = totals[index - 1] if index else 0
    share = (rank - below) / counts[index] if counts[index] else 1.0
    return low + share * (LATENCY_BUCKETS_S[index] - low)


def _subtract(after: Sequence[int], before: Sequence[int]) -> list[int]:
    if len(after) != len(before):  # nothing was counted before
        return list(after)
    return [max(0, new - old) for new, old in zip(after, before, strict=True)]


class Sample(NamedTuple):
    """What the charts show of an interval; `number` is that of the interval."""

    number: int
    delivered: float
    clients: int
    latency: Sequence[int]
    rss: int

    def add_worker(self, other: Sample | None) -> Sample:
        """Return the sum with the sample of other workers in the same interval."""
        if other is None:
            return self
        return Sample(
            self.number,
            self.delivered + other.delivered,
            self.clients + other.clients,
            [sum(counts) for counts in zip(self.latency, other.latency, strict=True)],
            self.rss + other.rss,
        )

    def to_json(self) -> list[Any]:
        latency = find_quantile(self.latency, QUANTILES[-1])
        return [self.number, round(self.delivered, 1), self.clients, latency, self.rss]


class History:
    """The samples of one worker. Between calls, `_before` has the counters of the last one."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._before: Counters | None = None
        self._number = 0

    def is_due(self, wall_time: float) -> bool:
        """Return whether an interval has no sample yet, given the time since 1970."""
        return wall_time // SAMPLE_S != self._number

    def add(self, wall_time: float, counters: Counters, clients: int, rss: int) -> None:
        rates = None if self._before is None else compute_rates(self._before, counters)
        self._number, self._before = int(wall_time // SAMPLE_S), counters
        if rates is not None:
            latency = array("I", rates.latency)  # a fifth of a list
            self._samples.append(Sample(self._number, rates.delivered, clients, latency, rss))

    def list_since(self, number: int) -> list[Sample]:
        """Return the samples after the interval of this number, as JSON can have them."""
        return [
            each._replace(latency=list(each.latency))
            for each in self._samples
            if each.number > number
        ]
