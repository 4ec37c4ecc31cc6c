"""Sums of parts are those of the whole, as zlib counts it."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.gzip import Crc32Sum, shift_crc

parts = st.lists(st.binary(max_size=60) | st.integers(0, 20_000).map(lambda n: b"ab" * n))
zeros = st.integers(0, 1 << 17)


@given(parts)
def test_the_sum_of_parts_is_that_of_the_whole(parts: list[bytes]):
    total = Crc32Sum()
    for part in parts:
        total += Crc32Sum.from_bytes(part)
    assert total == Crc32Sum.from_bytes(b"".join(parts))


@given(st.binary(), st.binary(), st.integers(0, 10_000))
def test_two_totals_say_what_lies_between(before: bytes, between: bytes, repeated: int):
    between *= 1 + repeated % 200
    assert Crc32Sum.from_bytes(before + between).subtract(
        Crc32Sum.from_bytes(before)
    ) == Crc32Sum.from_bytes(between)


@given(parts, parts, parts)
def test_it_does_not_matter_which_are_put_together_first(a, b, c):
    one, two, three = (Crc32Sum.from_bytes(b"".join(each)) for each in (a, b, c))
    assert (one + two) + three == one + (two + three)


@given(st.binary(max_size=40), zeros)
def test_a_crc_is_worth_that_of_its_bytes_with_zeros_behind(data: bytes, size: int):
    assert shift_crc(crc32(data), size) == crc32(bytes(size), crc32(data)) ^ crc32(bytes(size))


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 1 << 70), st.integers(0, 1 << 70))
def test_sizes_have_no_limit(crc: int, one: int, other: int):
    """A stream of years is longer than zlib could count here; steps of it are as good."""
    assert shift_crc(shift_crc(crc, one), other) == shift_crc(crc, one + other)


def test_nothing_is_neutral():
    some = Crc32Sum.from_bytes(b"some")
    assert Crc32Sum() + some == some + Crc32Sum() == some.subtract(Crc32Sum()) == some
    assert some.subtract(some) == Crc32Sum() == Crc32Sum.from_bytes(b"")


def test_what_is_shorter_does_not_begin_with_it():
    with pytest.raises(ValueError, match="5 bytes are not the beginning of 4"):
        Crc32Sum.from_bytes(b"some").subtract(Crc32Sum.from_bytes(b"other"))
