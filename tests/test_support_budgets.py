"""The measure that parsers are held to: does it tell linear from quadratic, and see memory?"""

from __future__ import annotations

import pytest
from support.budgets import MAX_LINEAR_GROWTH, Budget, measure_growth, measure_peak_memory

pytestmark = pytest.mark.night  # as all that measures


def test_linear_work_grows_less_than_the_bound() -> None:
    assert (
        measure_growth(lambda text: [each for each in text], "x" * 4000, "x" * 16000)
        < MAX_LINEAR_GROWTH
    )


def test_quadratic_work_grows_more_than_the_bound() -> None:
    def scan(text: str) -> list[int]:
        return [text.count(each) for each in text]

    # what disturbs the smaller one makes it look linear, so that one try is not enough
    assert any(measure_growth(scan, "x" * 4000, "x" * 16000) > MAX_LINEAR_GROWTH for _ in range(10))


def test_the_peak_is_seen_though_it_is_freed() -> None:
    assert measure_peak_memory(lambda: len(bytes(10_000_000))) >= 10_000_000


def test_a_budget_refuses_what_takes_too_long() -> None:
    with pytest.raises(AssertionError, match="turns for 10 bytes"):
        Budget(base_turns=100, turns_per_byte=1).check_cost(lambda: sum(range(100_000)), 10)


def test_a_budget_refuses_what_takes_too_much_memory() -> None:
    with pytest.raises(AssertionError, match="bytes of memory for 10"):
        Budget(base_memory=1000, memory_per_byte=1).check_cost(lambda: len(bytes(100_000)), 10)


def test_a_budget_lets_pass_what_is_within_it() -> None:
    Budget().check_cost(lambda: "x".join("abc"), 3)
