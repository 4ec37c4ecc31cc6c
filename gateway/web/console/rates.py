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
    """The counters of one worker at one moment.

    Attributes:
        clock: The moment, in seconds of the worker's monotonic clock.
        delivered: Records that clients were sent.
        sent_bytes: Bytes that clients were sent.
        fetched: Records that came from Kafka.
        fetched_bytes: Bytes of them.
        latency: Records sent by their latency, in the buckets of `LATENCY_BUCKETS_S`.
        loop_lag: Measurements of the event loop's lag, in the same buckets.
    """

    clock: float
    delivered: int
    sent_bytes: int
    fetched: int
    fetched_bytes: int
    latency: Sequence[int]
    loop_lag: Sequence[int]


class Rates(NamedTuple):
    """What happened per second between two moments.

    Attributes:
        delivered: Records that clients were sent, per second.
        sent_bytes: Bytes that clients were sent, per second.
        fetched: Records from Kafka, per second.
        fetched_bytes: Bytes from Kafka, per second.
        latency: Records sent by their latency.
        loop_lag: Measurements of the event loop's lag.
    """

    delivered: float
    sent_bytes: float
    fetched: float
    fetched_bytes: float
    latency: Sequence[int]
    loop_lag: Sequence[int]


def compute_rates(before: Counters, after: Counters) -> Rates | None:
    """Return what happened between two moments of one worker; None if no time has passed."""
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
    """Return the sum of the rates of several workers."""
    return Rates(
        sum(each.delivered for each in rates),
        sum(each.sent_bytes for each in rates),
        sum(each.fetched for each in rates),
        sum(each.fetched_bytes for each in rates),
        [sum(counts) for counts in zip(*(each.latency for each in rates), strict=True)],
        [sum(counts) for counts in zip(*(each.loop_lag for each in rates), strict=True)],
    )


def find_quantile(counts: Sequence[int], quantile: float) -> float | None:
    """Return a quantile of a histogram in seconds, interpolated within its bucket.

    Args:
        counts: The values in each bucket of `LATENCY_BUCKETS_S`, and last those above all of them.
        quantile: Between 0 and 1.

    Returns:
        The quantile, at most the highest bound; None if there are no values.
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
