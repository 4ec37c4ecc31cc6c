"""Any text as a token: refused or read, in time and memory that its length warrants."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.token.resume_token import (
    ALPHABET,
    MAX_TOKEN_CHARS,
    ResumeToken,
    TokenWriter,
    TopicPositions,
    digest_text,
    encode_digits,
    encode_varint,
    parse_token,
    seal_token,
)
from gateway.errors import TokenCorrupt, TokenForeign

BYTES_A_CHARACTER = 64  # of memory at most; a topic is 17 characters at least, and 700 bytes
FIXED_BYTES = 64 * 1024

VIEW = digest_text("view")
HEAD = encode_digits(1, 6) + digest_text("cluster")
TEXT = st.text(ALPHABET.decode(), max_size=400)
HUGE = st.sampled_from([0, 1, 31, 32, 99_999, 2**31 - 1, 2**32, 2**60, 2**64])


def seal_text(text: bytes) -> str:
    return seal_token(text, VIEW).decode()


def encode_topic(
    count: int,
    *,
    name: bytes = digest_text("orders"),
    id: bytes = digest_text("", 8),
    epoch: int = 3,
    exceptions: tuple[tuple[int, int], ...] = (),
    width: int = 1,
    places: bytes | None = None,
) -> bytes:
    """A topic as it stands in a token, whatever it says of itself; epochs as written, from 0."""
    told = encode_varint(len(exceptions)) + b"".join(
        encode_varint(p) + encode_varint(e) for p, e in exceptions
    )
    offsets = ALPHABET[:1] * (count * width) if places is None else places
    width_digit = ALPHABET[width : width + 1]
    return name + id + encode_varint(count) + encode_varint(epoch) + told + width_digit + offsets


def count_places(token: ResumeToken) -> int:
    """Everything that is in it; how many places."""
    return sum(len(topic.offsets) + len(topic.epochs) for topic in token.topics)


def measure_memory(text: str) -> int:
    """Bytes that reading it takes at most, whether it is refused or not."""
    tracemalloc.start()
    try:
        parse_token(text)
    except (TokenCorrupt, TokenForeign):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@st.composite
def token_claims(draw: st.DrawFn) -> str:
    """What has the form of a token and the right checksum, with counts that it has no room for."""
    out = HEAD + encode_varint(draw(HUGE | st.integers(0, 5)))
    for _ in range(draw(st.integers(0, 4))):
        out += digest_text(draw(st.sampled_from(["orders", "payments"])))
        out += digest_text(draw(st.sampled_from(["", "a"])), 8)
        for _ in range(3):
            out += encode_varint(draw(HUGE | st.integers(0, 3)))
        out += draw(st.binary(max_size=40)).translate(ALPHABET * 4)
    return seal_text(out)


@given(token_claims() | TEXT | TEXT.map(lambda text: seal_text(text.encode())) | st.text())
def test_any_text_is_read_or_refused_in_memory_that_its_length_warrants(text: str):
    assert measure_memory(text) <= BYTES_A_CHARACTER * len(text) + FIXED_BYTES
    try:
        token = parse_token(text)
    except TokenCorrupt:
        return
    assert count_places(token) <= 2 * len(text)


@given(st.data())
def test_a_token_that_was_sent_and_changed_is_read_or_refused(data: st.DataObject):
    """With a checksum that is right again: whoever changes it can write that, too."""
    places = data.draw(st.lists(st.none() | st.integers(0, 2**62), max_size=30))
    writer = TokenWriter("cluster", [TopicPositions("orders", "id", places, [1] * len(places))])
    text = bytearray(writer.to_text())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(TEXT).encode()[:3]
    changed = seal_text(bytes(text))
    assert measure_memory(changed) <= BYTES_A_CHARACTER * len(changed) + FIXED_BYTES
    try:
        count_places(parse_token(changed))
    except TokenCorrupt:
        return


LONGEST: dict[str, Callable[[int], bytes]] = {
    "partitions": lambda n: encode_varint(1) + encode_topic(n),
    "exceptions": lambda n: (
        encode_varint(1) + encode_topic(n // 5, exceptions=tuple((p, p % 9) for p in range(n // 5)))
    ),
    "topics": lambda n: (
        encode_varint(n // 18)
        + b"".join(encode_topic(0, name=digest_text(str(k))) for k in range(n // 18))
    ),
    "digits of a number": lambda n: (
        encode_varint(1) + digest_text("orders") + digest_text("", 8) + b"_" * n
    ),
    "largest offsets": lambda n: (
        encode_varint(1) + encode_topic(n // 11, width=11, places=b"_" * (n // 11 * 11))
    ),
}


@pytest.mark.night
@pytest.mark.parametrize("kind", LONGEST)
def test_four_times_the_length_takes_four_times_as_long(kind: str):
    made = [seal_text(HEAD + LONGEST[kind](n)) for n in (15_000, 60_000)]
    assert len(made[1]) <= MAX_TOKEN_CHARS
    best = [min(map(measure_cpu, [text] * 7)) for text in made]
    assert best[1] < 12 * max(best[0], 20e-6), best  # quadratic it would be 16


def measure_cpu(text: str) -> float:
    """CPU seconds."""
    began = time.process_time()
    with contextlib.suppress(TokenCorrupt):
        parse_token(text)
    return time.process_time() - began


def test_topics_that_nobody_asks_for_stay_as_they_came():
    """Every partition became a number, an epoch and a place of a list: 1.2 MB of 64 KB."""
    assert measure_memory(seal_text(HEAD + encode_varint(1) + encode_topic(65_000))) < 6 * 65_000


@pytest.mark.parametrize(
    "text",
    {
        "more partitions than offsets": encode_varint(1) + encode_topic(5, places=b"AAAA"),
        "more topics than there are": encode_varint(2) + encode_topic(1),
        "a partition that is not there": encode_varint(1) + encode_topic(2, exceptions=((2, 5),)),
        "a partition twice": encode_varint(1) + encode_topic(3, exceptions=((1, 5), (1, 6))),
        "partitions out of order": encode_varint(1) + encode_topic(3, exceptions=((2, 5), (1, 6))),
        "an epoch beyond 32 bits": encode_varint(1) + encode_topic(1, epoch=2**31 + 2),
        "one of them beyond 32 bits": encode_varint(1)
        + encode_topic(2, exceptions=((0, 2**31 + 2),)),
        "an offset beyond 63 bits": encode_varint(1)
        + encode_topic(1, width=11, places=encode_digits(2**63, 11)),
        "nearly a pending one": encode_varint(1)
        + encode_topic(1, width=11, places=b"_" * 10 + b"9"),
        "a topic twice": encode_varint(2) + 2 * encode_topic(1, id=digest_text("id", 8)),
        "something behind it": encode_varint(1) + encode_topic(1) + b"A",
        "a width of 12": encode_varint(1) + encode_topic(1, width=12),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_no_gateway_writes_is_refused(text: tuple[str, bytes]):
    with pytest.raises(TokenCorrupt):
        parse_token(seal_text(HEAD + text[1]))


@pytest.mark.parametrize("offset", [0, 2**60, 2**63 - 1, None])
def test_every_offset_that_kafka_has_is_read(offset: int | None):
    places = b"_" * 11 if offset is None else encode_digits(offset, 11)
    (topic,) = parse_token(
        seal_text(HEAD + encode_varint(1) + encode_topic(1, width=11, places=places))
    ).topics
    assert topic.offsets == [offset]


# names with the same digest

ONE, TWO = "orders-62883", "orders-75461"


def build_colliding_token(ids: tuple[str, str], names: tuple[str, str] = (ONE, TWO)) -> ResumeToken:
    """A token at 5 of the first and at 9 of the second."""
    topics = [
        TopicPositions(name, id, [offset], [0])
        for name, id, offset in zip(names, ids, (5, 9), strict=True)
    ]
    return parse_token(seal_text(TokenWriter("cluster", topics).to_text()))


def get_offsets(token: ResumeToken, ids: dict[str, str]) -> dict[str, list[int | None]]:
    return {name: topic.offsets for name, topic in token.match_topics(ids).items()}


def test_two_names_have_the_same_digest():
    assert digest_text(ONE) == digest_text(TWO)


@pytest.mark.parametrize("names", [(ONE, TWO), (TWO, ONE)])
def test_topics_of_such_names_are_told_apart_by_their_ids(names: tuple[str, str]):
    """Both had the places of the one that stood last."""
    token = build_colliding_token(("a", "b"), names)
    first, second = names
    assert get_offsets(token, {first: "a", second: "b"}) == {first: [5], second: [9]}
    assert get_offsets(token, {second: "b", first: "a"}) == {first: [5], second: [9]}
    assert get_offsets(token, {second: "b"}) == {second: [9]}


@pytest.mark.parametrize("names", [(ONE, TWO), (TWO, ONE)])
def test_without_ids_they_are_told_apart_by_their_order(names: tuple[str, str]):
    first, second = names
    token = build_colliding_token(("", ""), names)
    assert get_offsets(token, {ONE: "", TWO: ""}) == {first: [5], second: [9]}
    assert get_offsets(token, {TWO: "", ONE: ""}) == {first: [5], second: [9]}


def test_a_token_that_does_not_tell_which_of_them_it_is_of_is_refused():
    topic = TopicPositions(ONE, "", [5], [0])
    token = parse_token(seal_text(TokenWriter("cluster", [topic]).to_text()))
    assert get_offsets(token, {ONE: ""}) == {ONE: [5]}
    with pytest.raises(TokenForeign, match="does not tell which"):
        token.match_topics({ONE: "", TWO: ""})


def test_one_that_speaks_of_one_of_them_says_nothing_of_the_other():
    topic = TopicPositions(ONE, "a", [5], [0])
    token = parse_token(seal_text(TokenWriter("cluster", [topic]).to_text()))
    with pytest.raises(TokenForeign):  # or was the other created anew?
        token.match_topics({TWO: "b", ONE: "c"})
    assert get_offsets(token, {ONE: "a", TWO: ""}) == {ONE: [5]}
