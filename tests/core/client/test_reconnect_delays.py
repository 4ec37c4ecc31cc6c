"""Delays that clients are told, which are to fill a range evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.client.terms import ReconnectDelays


@given(start=st.floats(0, 1), skipped=st.integers(0, 10_000))
@pytest.mark.parametrize("count", [60, 330, 5000])
def test_no_second_has_much_more_than_its_share(count: int, start: float, skipped: int):
    """Delays drawn at random had up to 1.7 times the even share of a second."""
    delays = ReconnectDelays(1.0, 15.0, start)
    for _ in range(skipped):
        delays.draw_ms()
    drawn = [delays.draw_ms() for _ in range(count)]
    assert min(drawn) >= 1000 and max(drawn) <= 15_000
    by_second = Counter(each // 1000 for each in drawn)
    assert max(by_second.values()) <= count / 14 + 2
