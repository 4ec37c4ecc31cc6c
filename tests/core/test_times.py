from __future__ import annotations

import pytest

from gateway.core.times import format_time, parse_time

NOW = 1_800_000_000_000  # 2027-01-15T08:00:00Z, in ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15t08:00:00z", NOW),
        ("2027-01-15 08:00", NOW),
        ("2027-01-15T09:00:00+01:00", NOW),
        ("2027-01-15T09:00:00 01:00", NOW),  # a "+" that was not percent-encoded
        ("2027-01-15T08:00:00.1234567Z", NOW + 123),
        ("2027-01-15", NOW - 8 * 3_600_000),
        ("1970-01-01", 0),
        ("1800000000000", NOW),
        ("1795122400000", 1_795_122_400_000),  # was a day of 1795
    ],
)
def test_a_time_is_text_or_milliseconds(text: str, expected: int):
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no time"),
        ("yesterday", "is no time"),
        ("2027-02-30", "is no time"),
        ("20270115", "is no time"),
        ("20270115T080000", "is no time"),
        ("2027-W03-5", "is no time"),
        ("1800000000", "is no time"),  # seconds
        ("180000000000\u0660", "is no time"),
        ("2027-01-15T08:00:00+25:00", "is no time"),
        ("1969-12-31", "lies before 1970"),
        ("0001-01-01T00:00:00+14:00", "lies before 1970"),
    ],
)
def test_a_text_that_has_several_meanings_is_no_time(text: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        parse_time(text)


@pytest.mark.parametrize("milliseconds", [253_402_300_800_000, 1e18, -1e18, float("inf")])
def test_a_time_that_no_calendar_has_is_shown_as_its_number(milliseconds: float):
    """`gateway topics`, `dlq show` and `token check` ended with a ValueError of such a stamp."""
    assert format_time(milliseconds) == f"{milliseconds:.0f} ms"


def test_a_time_is_shown_in_utc():
    assert format_time(1_800_000_000_123) == "2027-01-15T08:00:00.123Z"
    assert format_time(1_800_000_000_123, "seconds") == "2027-01-15T08:00:00Z"
