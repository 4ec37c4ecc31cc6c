"""Many equal values at once are that many single ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.counts import LATENCY_BUCKETS_S, Histogram

VALUES = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 1000)), max_size=20)


@given(VALUES)
def test_each_value_is_counted_where_it_is_not_above_the_bound_and_above_the_one_before(values):
    histogram = Histogram(LATENCY_BUCKETS_S)
    for value, times in values:
        histogram.observe(value, times)
    for index, bound in enumerate(LATENCY_BUCKETS_S):
        below = LATENCY_BUCKETS_S[index - 1] if index else -1.0
        wanted = sum(times for value, times in values if below < value <= bound)
        assert histogram.counts[index] == wanted
    assert histogram.counts[-1] == sum(
        times for value, times in values if value > LATENCY_BUCKETS_S[-1]
    )
    assert histogram.count == sum(times for _, times in values)
    assert abs(histogram.sum - sum(value * times for value, times in values)) < 1e-3
