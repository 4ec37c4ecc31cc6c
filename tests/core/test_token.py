"""The text of a position, kept while it moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.record import TopicPartition
from gateway.core.token import ALPHABET, TokenWriter, TopicPlaces, digits

OFFSETS = st.none() | st.integers(0, 70) | st.integers(0, 10**6) | st.integers(0, 2**62)


@given(st.integers(0, 2**63 - 1), st.integers(1, 11))
def test_digits_are_the_number_in_base_64_cut_to_their_width(number: int, width: int):
    told = [ALPHABET.index(char) for char in digits(number, width)]
    assert len(told) == width
    assert sum(digit << 6 * n for n, digit in enumerate(reversed(told))) == number % 64**width


@given(st.lists(st.tuples(st.integers(0, 2), OFFSETS | st.just("next"))))
def test_a_position_that_was_moved_to_reads_as_one_written_at_once(moves):
    """Moves rewrite as few characters as they can, so nothing of an earlier place may stay."""
    places: list[int | None] = [4095, None, 0]
    moved = TokenWriter("cluster", [TopicPlaces("orders", "id", list(places), [0, 0, 0])])
    for partition, to in moves:
        offset = (places[partition] or 0) + 1 if to == "next" else to
        places[partition] = offset
        moved.move(TopicPartition("orders", partition), offset, 0)
        # widths never shrink by a move, so the widest so far is part of what is compared
        text = moved.text()
        start, width = moved._starts[0], moved._widths[0]
        written = [text[start + width * p : start + width * (p + 1)] for p in range(3)]
        pending = (1 << 6 * width) - 1
        assert written == [digits(pending if o is None else o, width) for o in places]
