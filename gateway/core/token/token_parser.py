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
    CRC,
    DIGEST,
    ID,
    ISSUED,
    ISSUER,
    MAC,
    VALUES,
    Reader,
    damaged,
    digest,
    digits,
)

VERSION = b"1"
SIGNED = b"M"  # the version of those with a MAC
MAX_LENGTH = 64 * 1024
MAX_EPOCH = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Token:
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
    reach: float | None = None

    def among(self, names: Iterable[str] | Mapping[str, str]) -> dict[str, TokenTopic]:
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
            if (key := digest(name)) in told:
                alike.setdefault(key, []).append(name)
        found: dict[str, TokenTopic] = {}
        for key, some in alike.items():
            if len(some) == len(told[key]) == 1:
                found[some[0]] = told[key][0]
            else:
                found |= _told_apart({name: ids[name] for name in sorted(some)}, told[key])
        return {name: found[name] for name in ids if name in found}


def _told_apart(ids: Mapping[str, str], topics: Iterable[TokenTopic]) -> dict[str, TokenTopic]:
    """Which topic of a token is which, of those whose names have the same digest."""
    left, found = list(topics), dict[str, TokenTopic]()
    for name, id in ids.items():
        mine = next((topic for topic in left if id and topic.id == digest(id, ID)), None)
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
    count: int
    epoch: int
    exceptions: bytes
    width: int
    places: bytes

    @property
    def offsets(self) -> list[int | None]:
        """Next offsets by partition; None for pending."""
        width, pending = self.width, (1 << 6 * self.width) - 1
        values, made = self.places.translate(VALUES), list[int | None]()
        for at in range(0, len(values), width):
            number = 0
            for value in values[at : at + width]:
                number = number << 6 | value
            made.append(None if number == pending else number)
        return made

    @property
    def epochs(self) -> list[int]:
        """Leader epochs by partition."""
        made, reader = [self.epoch] * self.count, Reader(self.exceptions)
        while not reader.done():
            p = reader.varint(self.count - 1)
            made[p] = reader.varint(MAX_EPOCH + 2) - 2
        return made

    def is_topic(self, id: str) -> bool:
        """Is it this topic, not an earlier one of its name? Unknown ids pass."""
        unknown = digest("", ID)
        return self.id in (unknown, digest(id, ID)) or digest(id, ID) == unknown


def decode(token: str) -> Token:
    """Read a token.

    Raises TokenCorrupt for anything that `seal` did not make.
    """
    if len(token) > MAX_LENGTH or not token.isascii():
        raise damaged()
    raw = token.encode("ascii")
    if raw.translate(None, ALPHABET):
        raise damaged()
    if raw[:1] not in (VERSION, SIGNED):
        raise TokenCorrupt(
            "the resume token is of a version this gateway does not know; "
            "connect without Last-Event-ID or with ?from="
        )
    if digits(crc32(raw[:-CRC]), CRC) != raw[-CRC:]:
        raise damaged()
    body, mac, issuer, head = raw[:-CRC], b"", b"", 1
    if raw[:1] == SIGNED:
        body, mac, head = body[:-MAC], body[-MAC:], 1 + ISSUER
        issuer = body[1:head]
    reader = Reader(body)
    reader.take(head)
    view, issued, cluster = reader.take(DIGEST), reader.number(ISSUED), reader.take(DIGEST)
    topics = [read_topic(reader) for _ in range(reader.varint(MAX_LENGTH))]
    known = [(topic.name, topic.id) for topic in topics if topic.id != digest("", ID)]
    if not reader.done() or len(set(known)) < len(known):
        raise damaged()
    return Token(view, issued, cluster, topics, body if mac else b"", mac, issuer)


def read_topic(reader: Reader) -> TokenTopic:
    """What is wrong with it is found here, what it says by who asks for it."""
    name, id = reader.take(DIGEST), reader.take(ID)
    count, epoch = reader.varint(MAX_LENGTH), reader.varint(MAX_EPOCH + 2) - 2
    least = 0
    exceptions = range(reader.varint(count))
    start = reader.at
    for _ in exceptions:
        p = reader.varint(count - 1)
        if p < least:
            raise damaged()
        least = p + 1
        reader.varint(MAX_EPOCH + 2)
    told = reader.text[start : reader.at]
    width = reader.number(1)
    if not 1 <= width <= 11:
        raise damaged()
    places = reader.take(count * width)
    if width == 11 and not _are_offsets(places):
        raise damaged()
    return TokenTopic(name, id, count, epoch, told, width, places)


def _are_offsets(places: bytes) -> bool:
    """Is none of those of the largest width over what Kafka has? 66 bits are three too many."""
    first = places[::11]
    if first.translate(None, ALPHABET[:8] + ALPHABET[63:]):
        return False
    pending = ALPHABET[63:] * 11
    return first.count(ALPHABET[63:]) == sum(
        places[at : at + 11] == pending for at in range(0, len(places), 11)
    )
