"""Resume tokens that nobody sent: their checksums are right, and what they say is made up."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.token.resume_token import (
    ALPHABET,
    digest_text,
    encode_digits,
    encode_varint,
    parse_token,
    seal_token,
)

MAX_TOKEN_PARTITIONS = 65_430  # partitions of one topic, of which a token has one digit each


def forge_token(
    token: str,
    partition_counts: Mapping[str, int],
    *,
    offset: int = 0,
    width: int = 1,
    issued_at: int = 1,
) -> str:
    """A token of the cluster that one which was sent is of, without topic ids.

    counts: how many partitions it claims, by topic; each at this offset.
    """
    told = parse_token(token)
    text = encode_digits(issued_at, 6) + told.cluster + encode_varint(len(partition_counts))
    for name, count in partition_counts.items():
        text += (
            digest_text(name)
            + digest_text("", 8)
            + encode_varint(count)
            + encode_varint(1)
            + encode_varint(0)
        )
        text += ALPHABET[width : width + 1] + encode_digits(offset, width) * count
    return seal_token(text, told.view_digest).decode()
