"""Compute what the charts show from the counters of two moments.

Sans-I/O: counters come with the time at which they were read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from gateway.telemetry.histogram import LATENCY_BUCKETS_S


class Counters(NamedTuple):
    """The counters of one worker at one moment; histograms by `LATENCY_BUCKETS_S`."""

    clock: float
    delivered: int
    sent_bytes: int
    fetched: int
    fetched_bytes: int
    latency: Sequence[int]
    loop_lag: Sequence[int]


class Rates(NamedTuple):
    """The changes of `Counters` between two moments: per second, and the histograms in total."""

    delivered: float
    sent_bytes: float
    fetched: float
    fetched_bytes: float
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
        divide(before.fetched_bytes, after.fetched_bytes),
        _subtract(after.latency, before.latency),
        _subtract(after.loop_lag, before.loop_lag),
    )


def add_rates(rates: Sequence[Rates]) -> Rates:
    return Rates(
        sum(each.delivered for each in rates),
        sum(each.sent_bytes for each in rates),
        sum(each.fetched for each in rates),
        sum(each.fetched_bytes for each in rates),
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
