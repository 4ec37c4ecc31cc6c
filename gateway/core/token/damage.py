"""Find where a resume token is damaged, for people who debug a client or a proxy.

A checksum alone says that something changed, not where. One changed character is found by trying
all others in its place: of the 63 times n candidates, only the original has the right CRC-32
(another has it with a probability of 1 in 500,000 for 128 characters). A token that is cut short or
changed in several places is read field by field, up to the first field that cannot be read.

Clients get no such description: the search takes time in proportion to the square of the length.
"""

from __future__ import annotations

from zlib import crc32

from gateway.errors import TokenCorrupt

from .digits import (
    ALPHABET,
    CRC_WIDTH,
    DIGEST_WIDTH,
    ISSUED_WIDTH,
    ISSUER_WIDTH,
    MAC_WIDTH,
    DigitReader,
    encode_digits,
)
from .token_parser import MAX_TOKEN_CHARS, SIGNED_VERSION, VERSION, read_token_topic

# Characters of a token in which a changed one is searched for; 0.3 s at this length.
MAX_SEARCHED_CHARS = 4096
MIN_TOKEN_CHARS = 1 + DIGEST_WIDTH + ISSUED_WIDTH + DIGEST_WIDTH + 1 + CRC_WIDTH


def describe_damage(token: str) -> str:
    """Return what is wrong with a token that `parse_token` refuses, and at which character."""
    if len(token) > MAX_TOKEN_CHARS:
        return f"it has {len(token)} characters, and a token has at most {MAX_TOKEN_CHARS}"
    for number, char in enumerate(token, 1):
        if not char.isascii() or char.encode() not in ALPHABET:
            return f"character {number} is {char!a}; a token has only A-Z, a-z, 0-9, - and _"
    raw = token.encode("ascii")
    if len(raw) < MIN_TOKEN_CHARS:
        return f"it has {len(raw)} characters, and a token has at least {MIN_TOKEN_CHARS}"
    has_checksum = _has_checksum(raw)
    if not has_checksum and (change := _find_change(raw)):
        return change
    if raw[:1] not in (VERSION, SIGNED_VERSION):
        return f"character 1 is {token[0]!r}, a version that this gateway does not know"
    return _find_unreadable_field(raw) or (
        "it has the same topic twice" if has_checksum else _describe_checksum(raw)
    )


def _has_checksum(raw: bytes | bytearray) -> bool:
    return encode_digits(crc32(raw[:-CRC_WIDTH]), CRC_WIDTH) == raw[-CRC_WIDTH:]


def _find_change(raw: bytes) -> str | None:
    """Return which character was changed; None if that is not the only damage, or not searched."""
    if len(raw) > MAX_SEARCHED_CHARS:
        return None
    changed = bytearray(raw)
    for index, original in enumerate(raw):
        for char in ALPHABET:
            changed[index] = char
            if _has_checksum(changed):
                return f"character {index + 1} is {chr(original)!r} and was {chr(char)!r}"
        changed[index] = original
    return None


def _find_unreadable_field(raw: bytes) -> str | None:
    is_signed = raw[:1] == SIGNED_VERSION
    body = raw[: -CRC_WIDTH - (MAC_WIDTH if is_signed else 0)]
    reader, field = DigitReader(body), "the fields before the topics"
    try:
        reader.take(1 + (ISSUER_WIDTH if is_signed else 0))
        reader.take(DIGEST_WIDTH + ISSUED_WIDTH + DIGEST_WIDTH)
        for number in range(1, reader.read_varint(MAX_TOKEN_CHARS) + 1):
            field = f"topic {number}, which begins at character {reader.pos + 1},"
            read_token_topic(reader)
    except TokenCorrupt:
        return (
            f"{field} cannot be read from character {reader.pos + 1} on; "
            "the token was cut short or changed"
        )
    if not reader.is_at_end():
        return f"the last topic ends before character {reader.pos + 1}, and more follows"
    return None


def _describe_checksum(raw: bytes) -> str:
    first = len(raw) - CRC_WIDTH + 1
    return (
        f"the checksum in characters {first} to {len(raw)} is not that of the characters before; "
        "several of them were changed"
    )
