from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.types.units import (
    MAX_DURATION_S,
    MAX_RATE_COUNT,
    MAX_SIZE_BYTES,
    Rate,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0), ("250ms", 0.25), ("10m", 600.0), ("1h", 3600.0), ("24h", 86400.0),
        ("7d", 604800.0), ("0s", 0.0), ("1.5h", 5400.0), ("0.1s", 0.1), ("50ms", 0.05),
    ],
)  # fmt: skip
def test_a_duration_is_seconds(text: str, seconds: float):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64MiB", 64 * 2**20), ("1GiB", 2**30), ("500kB", 500_000), ("1MB", 10**6),
        ("7B", 7), ("1.5KiB", 1536), ("0B", 0), ("2TiB", 2**41),
    ],
)  # fmt: skip
def test_a_size_is_bytes(text: str, count: int):
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5", "no unit"), ("5 s", "'5s'"), ("5S", "'5s'"), ("5secs", "'5s'"), ("10M", "'10m'"),
        ("s", "a number and a unit"), ("", "a number and a unit"), ("-1s", "a number and a unit"),
        ("1h30m", "a number and a unit"), ("\u0665s", "a number and a unit"), ("1e3s", "unit"),
        ("99999d", "too long"), (f"{'9' * 18}d", "too long"), ("5\n", "no unit"),
        ("250", "did you mean '250ms'"),
    ],
)  # fmt: skip
def test_what_is_no_duration_says_what_to_write(text: str, hint: str):
    with pytest.raises(ValueError, match=hint):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("64", "no unit"), ("64m", "'64MiB'"), ("64mib", "'64MiB'"), ("64KB", "'64kB'"),
     ("1 GiB", "'1GiB'"), ("0.3B", "whole"), ("9999TiB", "too large"), ("64s", "size")],
)  # fmt: skip
def test_what_is_no_size_says_what_to_write(text: str, hint: str):
    with pytest.raises(ValueError, match=hint):
        parse_size(text)


@given(st.integers(0, MAX_DURATION_S * 1_000_000))
def test_a_shown_duration_reads_as_the_same(micros: int):
    seconds = micros / 1_000_000
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, MAX_SIZE_BYTES))
def test_a_shown_size_reads_as_the_same(count: int):
    assert parse_size(format_size(count)) == count


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_value_error(text: str):
    for read in (parse_duration, parse_size):
        try:
            assert read(text) >= 0
        except ValueError as error:
            assert ";" in str(error)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("20/s", Rate(20, 1.0)), ("100/m", Rate(100, 60.0)), ("1/h", Rate(1, 3600.0))],
)
def test_a_rate_is_so_many_in_a_time(text: str, meant: Rate):
    assert parse_rate(text) == meant and format_rate(meant) == text
    assert meant.count * meant.interval == pytest.approx(meant.seconds)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("20", "such as 20/s"), ("20/", "such as 20/s"), ("-1/s", "such as 20/s"), ("", "20/s"),
        ("1.5/s", "such as 20/s"), ("20/2s", "such as 20/s"), ("20 / s", "'20/s'"),
        ("20/S", "'20/s'"), ("20/minute", "'20/m'"), ("20/d", "one of s, m, h"),
        ("0/s", "1/s to"), (f"{MAX_RATE_COUNT + 1}/h", "1/h to"), ("20/s\n", "such as 20/s"),
        ("\u0665/s", "such as 20/s"),
    ],
)  # fmt: skip
def test_what_is_no_rate_says_what_to_write(text: str, hint: str):
    with pytest.raises(ValueError, match=hint):
        parse_rate(text)
