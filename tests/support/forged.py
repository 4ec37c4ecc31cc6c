"""Resume tokens that nobody sent: their checksums are right, and what they say is made up."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.token.resume_token import ALPHABET, decode, digest, digits, seal, varint

LONGEST = 65_430  # partitions of one topic, of which a token has one digit each


def forged(
    sent: str, counts: Mapping[str, int], *, offset: int = 0, width: int = 1, issued: int = 1
) -> str:
    """A token of the cluster that one which was sent is of, without topic ids.

    counts: how many partitions it claims, by topic; each at this offset.
    """
    told = decode(sent)
    text = digits(issued, 6) + told.cluster + varint(len(counts))
    for name, count in counts.items():
        text += digest(name) + digest("", 8) + varint(count) + varint(1) + varint(0)
        text += ALPHABET[width : width + 1] + digits(offset, width) * count
    return seal(text, told.view).decode()
