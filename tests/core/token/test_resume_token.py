"""The text of a position, kept while it moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    TopicPartition,
)
from gateway.core.token.resume_token import (
    ALPHABET,
    TokenWriter,
    TopicPositions,
    digest_text,
    encode_digits,
    overlay_positions,
    parse_token,
    seal_token,
)
from gateway.errors import TokenCorrupt

OFFSETS = st.none() | st.integers(0, 70) | st.integers(0, 10**6) | st.integers(0, 2**62)

VIEW = digest_text("view")


@given(st.integers(0, 2**63 - 1), st.integers(1, 11))
def test_digits_are_the_number_in_base_64_cut_to_their_width(number: int, width: int):
    told = [ALPHABET.index(char) for char in encode_digits(number, width)]
    assert len(told) == width
    assert sum(digit << 6 * n for n, digit in enumerate(reversed(told))) == number % 64**width


@given(st.lists(st.tuples(st.integers(0, 2), OFFSETS | st.just("next"))))
def test_a_position_that_was_moved_to_reads_as_one_written_at_once(moves):
    """Moves rewrite as few characters as they can, so nothing of an earlier place may stay."""
    places: list[int | None] = [4095, None, 0]
    moved = TokenWriter("cluster", [TopicPositions("orders", "id", list(places), [0, 0, 0])])
    for partition, to in moves:
        offset = (places[partition] or 0) + 1 if to == "next" else to
        places[partition] = offset
        moved.move(TopicPartition("orders", partition), offset, 0)
        (topic,) = parse_token(seal_token(moved.to_text(), VIEW).decode()).topics
        assert topic.offsets == places


PLACES = st.lists(st.tuples(OFFSETS, st.integers(RETIRED_EPOCH, 2**31 - 1)), max_size=40)


def build_token(places: list[tuple[int | None, int]], issued: int = 1) -> bytes:
    offsets, epochs = [o for o, _ in places], [e for _, e in places]
    writer = TokenWriter("cluster", [TopicPositions("orders", "id", offsets, epochs)], issued)
    return seal_token(writer.to_text(), VIEW)


@given(PLACES, st.integers(0, 2**36 - 1))
def test_a_token_says_what_was_written(places: list[tuple[int | None, int]], issued: int):
    token = parse_token(build_token(places, issued).decode())
    assert (token.view_digest, token.issued, token.cluster) == (
        VIEW,
        issued,
        digest_text("cluster"),
    )
    topic = token.match_topics(["orders", "payments"])["orders"]
    assert list(zip(topic.offsets, topic.epochs, strict=True)) == places


@given(PLACES, st.data())
def test_a_damaged_token_is_refused_wherever_it_is_hurt(places, data):
    token = bytearray(build_token(places))
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from([c for c in ALPHABET if c != token[at]]))
    cut = bytes(token[:at])
    token[at] = other
    for damaged in (token.decode(), cut.decode(), token.decode() + "A"):
        with pytest.raises(TokenCorrupt):
            parse_token(damaged)


@given(st.text())
def test_any_text_is_a_token_or_refused(text: str):
    with pytest.raises(TokenCorrupt):
        parse_token(text)


def test_what_looks_like_a_token_but_names_too_much_is_refused():
    for text in (b"", encode_digits(0, 6) + digest_text("c") + b"_" * 12, b"_" * 200):
        with pytest.raises(TokenCorrupt):
            parse_token(seal_token(text, VIEW).decode())
    with pytest.raises(TokenCorrupt, match="version"):
        parse_token("2" + "A" * 40)


@given(PLACES.filter(bool), st.data())
def test_an_overlay_is_the_token_with_some_partitions_elsewhere(places, data):
    own = data.draw(st.dictionaries(st.integers(0, 45), st.tuples(OFFSETS, st.just(7))))
    text = TokenWriter(
        "cluster",
        [TopicPositions("orders", "id", [o for o, _ in places], [e for _, e in places])],
        5,
    ).to_text()
    elsewhere = {TopicPartition("orders", p): PartitionPosition(o, e) for p, (o, e) in own.items()}
    laid = overlay_positions(text, ["orders"], elsewhere)
    topic = parse_token(seal_token(laid, VIEW).decode()).match_topics(["orders"])["orders"]
    wanted = list(places) + [(None, NO_EPOCH)] * (max(own, default=0) + 1 - len(places))
    for p, place in own.items():
        wanted[p] = place
    assert list(zip(topic.offsets, topic.epochs, strict=True)) == wanted


def test_a_topic_of_another_id_is_not_that_topic_but_an_unknown_id_may_be():
    topic = parse_token(build_token([(1, 0)]).decode()).topics[0]
    assert topic.matches_id("id")
    assert topic.matches_id("")
    assert not topic.matches_id("another")


def test_twelve_partitions_at_a_million_stay_under_the_preflight_limit():
    assert len(build_token([(10**6 + p, 3) for p in range(12)])) <= 128
    assert len(build_token([(10**10, 3)] * 75)) <= 512


def test_an_unverified_place_is_no_place_of_a_lineage():
    assert UNVERIFIED_LINEAGE < 0 <= PartitionPosition(0).lineage
