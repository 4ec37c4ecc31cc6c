"""A resume token that was read: what somebody claims, in the form of `resume_token`.

Reading one takes time and memory in proportion to its length, whatever it says of itself: a
topic keeps its digits until somebody who knows how many partitions there are asks for its places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from gateway.errors import TokenCorrupt, TokenForeign

from .digits import (
    ALPHABET,
    CRC_WIDTH,
    DIGEST_WIDTH,
    DIGIT_VALUES,
    ISSUED_WIDTH,
    ISSUER_WIDTH,
    MAC_WIDTH,
    TOPIC_ID_WIDTH,
    DigitReader,
    build_damaged_error,
    digest_text,
    encode_digits,
)

VERSION = b"1"
SIGNED_VERSION = b"M"  # the version of those with a MAC
MAX_TOKEN_CHARS = 64 * 1024
MAX_EPOCH = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A token that was read. Names and ids stay digests.

    body:   what a MAC is of, and `mac` is that; both empty where there is none.
    issuer: who signed it; empty where nobody did.
    reach:  seconds that it may go back, once its route has said so; None for any number.
    """

    view: bytes
    issued: int
    cluster: bytes
    topics: Sequence[TokenTopic]
    body: bytes = b""
    mac: bytes = b""
    issuer: bytes = b""
    max_age: float | None = None

    def match_topics(self, names: Iterable[str] | Mapping[str, str]) -> dict[str, TokenTopic]:
        """Those of a stream's topics that the token speaks of, by name.

        Args:
            names: All of the stream's topics, with their ids where somebody knows them.

        Raises:
            TokenForeign: Names have the same digest, and neither ids nor their number tell
                which of them the token speaks of.
        """
        ids = names if isinstance(names, Mapping) else dict.fromkeys(names, "")
        told: dict[bytes, list[TokenTopic]] = {}
        for topic in self.topics:
            told.setdefault(topic.name, []).append(topic)
        alike: dict[bytes, list[str]] = {}
        for name in ids:
            if (key := digest_text(name)) in told:
                alike.setdefault(key, []).append(name)
        found: dict[str, TokenTopic] = {}
        for key, some in alike.items():
            if len(some) == len(told[key]) == 1:
                found[some[0]] = told[key][0]
            else:
                found |= _match_ambiguous({name: ids[name] for name in sorted(some)}, told[key])
        return {name: found[name] for name in ids if name in found}


def _match_ambiguous(ids: Mapping[str, str], topics: Iterable[TokenTopic]) -> dict[str, TokenTopic]:
    """Which topic of a token is which, of those whose names have the same digest."""
    left, found = list(topics), dict[str, TokenTopic]()
    for name, id in ids.items():
        mine = next(
            (topic for topic in left if id and topic.id == digest_text(id, TOPIC_ID_WIDTH)), None
        )
        if mine is not None:
            left.remove(mine)
            found[name] = mine
    rest = [name for name in ids if name not in found]
    if rest and left:
        if len(rest) != len(left):
            raise TokenForeign(
                f"the resume token does not tell which of the topics {', '.join(ids)} it is of; "
                "connect without Last-Event-ID or with ?from="
            )
        found |= zip(rest, left, strict=True)
    return found


@dataclass(frozen=True, slots=True)
class TokenTopic:
    """A topic of a token; `offsets` and `epochs` are made when they are asked for.

    count: of its partitions. epoch: of those that are in no `exceptions`, which are digits still,
    as `places` are, of this `width`.
    """

    name: bytes
    id: bytes
    partition_count: int
    default_epoch: int
    epoch_digits: bytes
    width: int
    offset_digits: bytes

    @property
    def offsets(self) -> list[int | None]:
        """Next offsets by partition; None for pending."""
        width, pending = self.width, (1 << 6 * self.width) - 1
        values, made = self.offset_digits.translate(DIGIT_VALUES), list[int | None]()
        for at in range(0, len(values), width):
            number = 0
            for value in values[at : at + width]:
                number = number << 6 | value
            made.append(None if number == pending else number)
        return made

    @property
    def epochs(self) -> list[int]:
        """Leader epochs by partition."""
        made, reader = [self.default_epoch] * self.partition_count, DigitReader(self.epoch_digits)
        while not reader.is_at_end():
            p = reader.read_varint(self.partition_count - 1)
            made[p] = reader.read_varint(MAX_EPOCH + 2) - 2
        return made

    def matches_id(self, id: str) -> bool:
        """Is it this topic, not an earlier one of its name? Unknown ids pass."""
        unknown = digest_text("", TOPIC_ID_WIDTH)
        return (
            self.id in (unknown, digest_text(id, TOPIC_ID_WIDTH))
            or digest_text(id, TOPIC_ID_WIDTH) == unknown
        )


def parse_token(token: str) -> ResumeToken:
    """Read a token.

    Raises TokenCorrupt for anything that `seal` did not make.
    """
    if len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise build_damaged_error()
    raw = token.encode("ascii")
    if raw.translate(None, ALPHABET):
        raise build_damaged_error()
    if raw[:1] not in (VERSION, SIGNED_VERSION):
        raise TokenCorrupt(
            "the resume token is of a version this gateway does not know; "
            "connect without Last-Event-ID or with ?from="
        )
    if encode_digits(crc32(raw[:-CRC_WIDTH]), CRC_WIDTH) != raw[-CRC_WIDTH:]:
        raise build_damaged_error()
    body, mac, issuer, head = raw[:-CRC_WIDTH], b"", b"", 1
    if raw[:1] == SIGNED_VERSION:
        body, mac, head = body[:-MAC_WIDTH], body[-MAC_WIDTH:], 1 + ISSUER_WIDTH
        issuer = body[1:head]
    reader = DigitReader(body)
    reader.take(head)
    view, issued, cluster = (
        reader.take(DIGEST_WIDTH),
        reader.read_number(ISSUED_WIDTH),
        reader.take(DIGEST_WIDTH),
    )
    topics = [read_token_topic(reader) for _ in range(reader.read_varint(MAX_TOKEN_CHARS))]
    known = [
        (topic.name, topic.id) for topic in topics if topic.id != digest_text("", TOPIC_ID_WIDTH)
    ]
    if not reader.is_at_end() or len(set(known)) < len(known):
        raise build_damaged_error()
    return ResumeToken(view, issued, cluster, topics, body if mac else b"", mac, issuer)


def read_token_topic(reader: DigitReader) -> TokenTopic:
    """What is wrong with it is found here, what it says by who asks for it."""
    name, id = reader.take(DIGEST_WIDTH), reader.take(TOPIC_ID_WIDTH)
    count, epoch = reader.read_varint(MAX_TOKEN_CHARS), reader.read_varint(MAX_EPOCH + 2) - 2
    least = 0
    exceptions = range(reader.read_varint(count))
    start = reader.pos
    for _ in exceptions:
        p = reader.read_varint(count - 1)
        if p < least:
            raise build_damaged_error()
        least = p + 1
        reader.read_varint(MAX_EPOCH + 2)
    told = reader.text[start : reader.pos]
    width = reader.read_number(1)
    if not 1 <= width <= 11:
        raise build_damaged_error()
    places = reader.take(count * width)
    if width == 11 and not _are_valid_offsets(places):
        raise build_damaged_error()
    return TokenTopic(name, id, count, epoch, told, width, places)


def _are_valid_offsets(places: bytes) -> bool:
    """Is none of those of the largest width over what Kafka has? 66 bits are three too many."""
    first = places[::11]
    if first.translate(None, ALPHABET[:8] + ALPHABET[63:]):
        return False
    pending = ALPHABET[63:] * 11
    return first.count(ALPHABET[63:]) == sum(
        places[at : at + 11] == pending for at in range(0, len(places), 11)
    )
