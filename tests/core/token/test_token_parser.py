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
    MAX_LENGTH,
    Token,
    TokenWriter,
    TopicPlaces,
    decode,
    digest,
    digits,
    seal,
    varint,
)
from gateway.errors import TokenCorrupt, TokenForeign

BYTES_A_CHARACTER = 64  # of memory at most; a topic is 17 characters at least, and 700 bytes
FIXED_BYTES = 64 * 1024

VIEW = digest("view")
HEAD = digits(1, 6) + digest("cluster")
TEXT = st.text(ALPHABET.decode(), max_size=400)
HUGE = st.sampled_from([0, 1, 31, 32, 99_999, 2**31 - 1, 2**32, 2**60, 2**64])


def sealed(text: bytes) -> str:
    return seal(text, VIEW).decode()


def topic_of(
    count: int,
    *,
    name: bytes = digest("orders"),
    id: bytes = digest("", 8),
    epoch: int = 3,
    exceptions: tuple[tuple[int, int], ...] = (),
    width: int = 1,
    places: bytes | None = None,
) -> bytes:
    """A topic as it stands in a token, whatever it says of itself; epochs as written, from 0."""
    told = varint(len(exceptions)) + b"".join(varint(p) + varint(e) for p, e in exceptions)
    offsets = ALPHABET[:1] * (count * width) if places is None else places
    width_digit = ALPHABET[width : width + 1]
    return name + id + varint(count) + varint(epoch) + told + width_digit + offsets


def read_all(token: Token) -> int:
    """Everything that is in it; how many places."""
    return sum(len(topic.offsets) + len(topic.epochs) for topic in token.topics)


def memory_of(text: str) -> int:
    """Bytes that reading it takes at most, whether it is refused or not."""
    tracemalloc.start()
    try:
        decode(text)
    except (TokenCorrupt, TokenForeign):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@st.composite
def claims(draw: st.DrawFn) -> str:
    """What has the form of a token and the right checksum, with counts that it has no room for."""
    out = HEAD + varint(draw(HUGE | st.integers(0, 5)))
    for _ in range(draw(st.integers(0, 4))):
        out += digest(draw(st.sampled_from(["orders", "payments"])))
        out += digest(draw(st.sampled_from(["", "a"])), 8)
        for _ in range(3):
            out += varint(draw(HUGE | st.integers(0, 3)))
        out += draw(st.binary(max_size=40)).translate(ALPHABET * 4)
    return sealed(out)


@given(claims() | TEXT | TEXT.map(lambda text: sealed(text.encode())) | st.text())
def test_any_text_is_read_or_refused_in_memory_that_its_length_warrants(text: str):
    assert memory_of(text) <= BYTES_A_CHARACTER * len(text) + FIXED_BYTES
    try:
        token = decode(text)
    except TokenCorrupt:
        return
    assert read_all(token) <= 2 * len(text)


@given(st.data())
def test_a_token_that_was_sent_and_changed_is_read_or_refused(data: st.DataObject):
    """With a checksum that is right again: whoever changes it can write that, too."""
    places = data.draw(st.lists(st.none() | st.integers(0, 2**62), max_size=30))
    writer = TokenWriter("cluster", [TopicPlaces("orders", "id", places, [1] * len(places))])
    text = bytearray(writer.text())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(TEXT).encode()[:3]
    changed = sealed(bytes(text))
    assert memory_of(changed) <= BYTES_A_CHARACTER * len(changed) + FIXED_BYTES
    try:
        read_all(decode(changed))
    except TokenCorrupt:
        return


LONGEST: dict[str, Callable[[int], bytes]] = {
    "partitions": lambda n: varint(1) + topic_of(n),
    "exceptions": lambda n: (
        varint(1) + topic_of(n // 5, exceptions=tuple((p, p % 9) for p in range(n // 5)))
    ),
    "topics": lambda n: (
        varint(n // 18) + b"".join(topic_of(0, name=digest(str(k))) for k in range(n // 18))
    ),
    "digits of a number": lambda n: varint(1) + digest("orders") + digest("", 8) + b"_" * n,
    "largest offsets": lambda n: (
        varint(1) + topic_of(n // 11, width=11, places=b"_" * (n // 11 * 11))
    ),
}


@pytest.mark.parametrize("kind", LONGEST)
def test_four_times_the_length_takes_four_times_as_long(kind: str):
    made = [sealed(HEAD + LONGEST[kind](n)) for n in (15_000, 60_000)]
    assert len(made[1]) <= MAX_LENGTH
    best = [min(map(timed, [text] * 7)) for text in made]
    assert best[1] < 12 * max(best[0], 20e-6), best  # quadratic it would be 16


def timed(text: str) -> float:
    """CPU seconds."""
    began = time.process_time()
    with contextlib.suppress(TokenCorrupt):
        decode(text)
    return time.process_time() - began


def test_topics_that_nobody_asks_for_stay_as_they_came():
    """Every partition became a number, an epoch and a place of a list: 1.2 MB of 64 KB."""
    assert memory_of(sealed(HEAD + varint(1) + topic_of(65_000))) < 6 * 65_000


@pytest.mark.parametrize(
    "text",
    {
        "more partitions than offsets": varint(1) + topic_of(5, places=b"AAAA"),
        "more topics than there are": varint(2) + topic_of(1),
        "a partition that is not there": varint(1) + topic_of(2, exceptions=((2, 5),)),
        "a partition twice": varint(1) + topic_of(3, exceptions=((1, 5), (1, 6))),
        "partitions out of order": varint(1) + topic_of(3, exceptions=((2, 5), (1, 6))),
        "an epoch beyond 32 bits": varint(1) + topic_of(1, epoch=2**31 + 2),
        "one of them beyond 32 bits": varint(1) + topic_of(2, exceptions=((0, 2**31 + 2),)),
        "an offset beyond 63 bits": varint(1) + topic_of(1, width=11, places=digits(2**63, 11)),
        "nearly a pending one": varint(1) + topic_of(1, width=11, places=b"_" * 10 + b"9"),
        "a topic twice": varint(2) + 2 * topic_of(1, id=digest("id", 8)),
        "something behind it": varint(1) + topic_of(1) + b"A",
        "a width of 12": varint(1) + topic_of(1, width=12),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_no_gateway_writes_is_refused(text: tuple[str, bytes]):
    with pytest.raises(TokenCorrupt):
        decode(sealed(HEAD + text[1]))


@pytest.mark.parametrize("offset", [0, 2**60, 2**63 - 1, None])
def test_every_offset_that_kafka_has_is_read(offset: int | None):
    places = b"_" * 11 if offset is None else digits(offset, 11)
    (topic,) = decode(sealed(HEAD + varint(1) + topic_of(1, width=11, places=places))).topics
    assert topic.offsets == [offset]


# names with the same digest

ONE, TWO = "orders-62883", "orders-75461"


def alike(ids: tuple[str, str], names: tuple[str, str] = (ONE, TWO)) -> Token:
    """A token at 5 of the first and at 9 of the second."""
    topics = [
        TopicPlaces(name, id, [offset], [0])
        for name, id, offset in zip(names, ids, (5, 9), strict=True)
    ]
    return decode(sealed(TokenWriter("cluster", topics).text()))


def stands(token: Token, ids: dict[str, str]) -> dict[str, list[int | None]]:
    return {name: topic.offsets for name, topic in token.among(ids).items()}


def test_two_names_have_the_same_digest():
    assert digest(ONE) == digest(TWO)


@pytest.mark.parametrize("names", [(ONE, TWO), (TWO, ONE)])
def test_topics_of_such_names_are_told_apart_by_their_ids(names: tuple[str, str]):
    """Both had the places of the one that stood last."""
    token = alike(("a", "b"), names)
    first, second = names
    assert stands(token, {first: "a", second: "b"}) == {first: [5], second: [9]}
    assert stands(token, {second: "b", first: "a"}) == {first: [5], second: [9]}
    assert stands(token, {second: "b"}) == {second: [9]}


@pytest.mark.parametrize("names", [(ONE, TWO), (TWO, ONE)])
def test_without_ids_they_are_told_apart_by_their_order(names: tuple[str, str]):
    first, second = names
    token = alike(("", ""), names)
    assert stands(token, {ONE: "", TWO: ""}) == {first: [5], second: [9]}
    assert stands(token, {TWO: "", ONE: ""}) == {first: [5], second: [9]}


def test_a_token_that_does_not_tell_which_of_them_it_is_of_is_refused():
    topic = TopicPlaces(ONE, "", [5], [0])
    token = decode(sealed(TokenWriter("cluster", [topic]).text()))
    assert stands(token, {ONE: ""}) == {ONE: [5]}
    with pytest.raises(TokenForeign, match="does not tell which"):
        token.among({ONE: "", TWO: ""})


def test_one_that_speaks_of_one_of_them_says_nothing_of_the_other():
    topic = TopicPlaces(ONE, "a", [5], [0])
    token = decode(sealed(TokenWriter("cluster", [topic]).text()))
    with pytest.raises(TokenForeign):  # or was the other created anew?
        token.among({TWO: "b", ONE: "c"})
    assert stands(token, {ONE: "a", TWO: ""}) == {ONE: [5]}
