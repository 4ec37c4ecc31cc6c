"""What is said of a token that cannot be read: at which character it is damaged."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.token.resume_token import (
    ALPHABET,
    MAX_TOKEN_CHARS,
    TokenWriter,
    TopicPositions,
    digest_text,
    encode_digits,
    parse_token,
    seal_token,
)
from gateway.core.token.signing import TokenSigner
from gateway.core.token.token_parser import CRC_WIDTH, MAX_SEARCHED_CHARS, describe_damage
from gateway.errors import TokenCorrupt

VIEW = digest_text("view")
TOPICS = [
    TopicPositions("orders", "id", [5, None, 70], [1, 1, 2]),
    TopicPositions("stock", "", [10**10], [0]),
]
TEXT = TokenWriter("cluster", TOPICS, 1_700_000_000).to_text()
TOKEN = seal_token(TEXT, VIEW).decode()
SIGNED = seal_token(TEXT, TokenSigner(["a" * 32]).create_seal(VIEW, "route")).decode()
SECOND_TOPIC = TOKEN.index(digest_text("stock").decode()) + 1


def seal(text: bytes) -> str:
    """Return a text with the checksum that it should have."""
    return (text + encode_digits(crc32(text), CRC_WIDTH)).decode()


@given(st.sampled_from([TOKEN, SIGNED]), st.data())
def test_a_changed_character_is_found_wherever_it_is(token: str, data: st.DataObject):
    index = data.draw(st.integers(0, len(token) - 1))
    char = data.draw(st.sampled_from(ALPHABET.decode()).filter(lambda char: char != token[index]))
    damaged = token[:index] + char + token[index + 1 :]
    assert describe_damage(damaged) == (
        f"character {index + 1} is '{char}' and was '{token[index]}'"
    )


@given(st.sampled_from([TOKEN, SIGNED]), st.data())
def test_a_token_that_is_cut_short_is_said_to_end_within_a_field(token: str, data: st.DataObject):
    length = data.draw(st.integers(24, len(token) - 1))
    described = describe_damage(token[:length])
    assert "the token was cut short or changed" in described
    position = int(described.partition(" cannot be read from character ")[2].split()[0])
    assert 1 <= position <= length + 1


def test_the_topic_that_cannot_be_read_is_named():
    described = describe_damage(TOKEN[:-CRC_WIDTH])
    assert described.startswith(f"topic 2, which begins at character {SECOND_TOPIC}, cannot be ")


@pytest.mark.parametrize(
    ("token", "described"),
    [
        ("", "it has 0 characters, and a token has at least 24"),
        (TOKEN[:9], "it has 9 characters, and a token has at least 24"),
        ("A" * (MAX_TOKEN_CHARS + 1), "it has 65537 characters, and a token has at most 65536"),
        (f"{TOKEN[:9]} {TOKEN[9:]}", "character 10 is ' '; a token has only"),
        (f"{TOKEN[:9]}é{TOKEN[9:]}", r"character 10 is '\xe9'; a token has only"),
        (f"{TOKEN}%3D", f"character {len(TOKEN) + 1} is '%'; a token has only"),
        (seal(b"2" + TOKEN[1:-CRC_WIDTH].encode()), "character 1 is '2', a version that"),
        (f"x{TOKEN}", "character 1 is 'x', a version that"),
        (seal(TOKEN[:-CRC_WIDTH].encode() + b"AB"), "the last topic ends before character "),
        (TOKEN[:-2] + TOKEN[:2], f"the checksum in characters {len(TOKEN) - 5} to {len(TOKEN)} is"),
        (
            seal_token(TokenWriter("c", [TOPICS[0], TOPICS[0]]).to_text(), VIEW).decode(),
            "it has the same topic twice",
        ),
    ],
)
def test_other_damage_is_described(token: str, described: str):
    with pytest.raises(TokenCorrupt):
        parse_token(token)
    assert describe_damage(token).startswith(described)


def test_a_token_too_long_for_the_search_is_described_by_its_checksum():
    many = TopicPositions("orders", "id", [10**10] * 1000, [1] * 1000)
    token = seal_token(TokenWriter("cluster", [many]).to_text(), VIEW).decode()
    assert len(token) > MAX_SEARCHED_CHARS
    damaged = token[:100] + ("A" if token[100] != "A" else "B") + token[101:]
    assert describe_damage(damaged).startswith("the checksum in characters ")


@given(st.text(max_size=60) | st.text(ALPHABET.decode(), max_size=60))
def test_any_text_is_described(text: str):
    assert describe_damage(text)
