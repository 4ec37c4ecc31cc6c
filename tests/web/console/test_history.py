"""What the charts show: rates and quantiles of counters, and those of the last ten minutes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.counts import LATENCY_BUCKETS_S, Histogram
from gateway.web.console.worker_report import (
    MAX_SAMPLES,
    SAMPLE_S,
    Counters,
    History,
    add_rates,
    compute_rates,
    find_quantile,
)

NONE = [0] * (len(LATENCY_BUCKETS_S) + 1)


def build_counters(clock: float, delivered: int = 0) -> Counters:
    return Counters(clock, delivered, 10 * delivered, 2 * delivered, NONE, NONE)


def test_rates_are_per_second_and_add_up():
    one = compute_rates(build_counters(1.0, 100), build_counters(3.0, 300))
    other = compute_rates(build_counters(7.0, 0), build_counters(8.0, 5))
    assert one is not None and other is not None
    assert (one.delivered, one.sent_bytes, one.fetched) == (100.0, 1000.0, 200.0)
    assert add_rates([one, other]).delivered == 105.0


def test_a_counter_that_began_anew_is_no_negative_rate():
    rates = compute_rates(build_counters(1.0, 100), build_counters(2.0, 3))
    assert rates is not None and rates.delivered == 0.0


def test_without_time_there_is_no_rate():
    assert compute_rates(build_counters(1.0), build_counters(1.0, 5)) is None


def test_without_values_there_is_no_quantile():
    assert find_quantile(NONE, 0.5) is None
    assert find_quantile([], 0.5) is None


def test_what_is_above_all_bounds_has_the_highest_of_them():
    assert find_quantile([*NONE[:-1], 3], 0.99) == LATENCY_BUCKETS_S[-1]


def test_a_worker_keeps_a_sample_of_each_interval_of_ten_minutes():
    history, end = History(), 2 * MAX_SAMPLES
    for number in range(1, end):
        at = number * SAMPLE_S
        assert history.is_due(at)
        history.add(at, build_counters(at, 10 * number), number, 1)
        assert not history.is_due(at + 0.9 * SAMPLE_S)
    samples = history.list_since(0)
    assert [each.number for each in samples] == list(range(end - MAX_SAMPLES, end))
    assert {each.delivered for each in samples} == {10 / SAMPLE_S}
    assert [each.clients for each in history.list_since(end - 3)] == [end - 2, end - 1]


@given(st.lists(st.floats(0.0, 59.0), min_size=1, max_size=50), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_its_value(values: list[float], quantile: float):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    found = find_quantile(histogram.counts, quantile)
    assert found is not None
    rank = max(1, -(-quantile * len(values) // 1))
    exact = sorted(values)[int(rank) - 1]
    bounds = [0.0, *LATENCY_BUCKETS_S]
    (bucket,) = [
        (low, high)
        for low, high in pairwise(bounds)
        if low < exact <= high or (exact == 0.0 == low)
    ]
    assert bucket[0] <= found <= bucket[1] or found == pytest.approx(bucket[1])
