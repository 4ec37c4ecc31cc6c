"""Attacks by resume tokens that speak of partitions which do not exist."""

from __future__ import annotations

from urllib.parse import quote

from gateway.core.log.position import NO_EPOCH
from gateway.core.token.resume_token import TokenWriter, TopicPlaces, digest, seal

from .attack import Attack, Counts, Target
from .lines import Line, drain, follow, opened

LONGEST = 65_474  # characters of a token, so that an id of it is beyond 64 KiB in a head


def forge(topic: str, partitions: int) -> str:
    """Return a token with a right checksum, which stands at the start of so many partitions."""
    places = TopicPlaces(topic, "", [0] * partitions, [NO_EPOCH] * partitions)
    return seal(TokenWriter("", [places]).text(), digest("")).decode()


def follow_first(target: Target) -> Counts:
    """Be the first on a topic, and stay. size: partitions."""
    return _follow(target, "/fresh", target.fresh)


def follow_beside(target: Target) -> Counts:
    """Come to a topic that others read, and stay. size: partitions."""
    return _follow(target, "/steady", target.steady)


def _follow(target: Target, path: str, topic: str) -> Counts:
    token = forge(topic, target.size)
    with Line(target.port) as line:
        status = follow(line, path, b"Last-Event-ID: " + token.encode())
        target.begin()
        return {f"status {status}": 1, **drain([line], target.seconds)}


def leave_ghosts(target: Target) -> Counts:
    """Come to a topic that others read, among other topics, and leave at once. size: partitions."""
    token = forge(target.steady, target.size)
    path = f"/any/{quote(target.fresh)},{quote(target.steady)}"
    with Line(target.port) as line:
        status = follow(line, path, b"Last-Event-ID: " + token.encode())
        drain([line], 0.5)
    target.begin()
    target.hold()
    return {f"status {status}": 1}


def follow_by_message(target: Target) -> Counts:
    """Be the first on a topic with a token longer than any head. size: characters of it."""
    token = forge(target.fresh, target.size - len(forge(target.fresh, 1024)) + 1024)
    with opened(target.port, 1) as lines:
        lines[0].say({"type": "subscribe", "id": "a", "path": "/fresh", "lastEventId": token})
        heard = lines[0].hear()
        target.begin()
        return {str(heard["type"]): 1, **drain(lines, target.seconds)}


ATTACKS = {
    "token-first": Attack(
        "first on a topic with a token of 40,000 partitions, then reads", follow_first, 40_000, 50
    ),
    "token-longest": Attack(
        "first on a topic, over /ws, with a token of 65,474 characters",
        follow_by_message,
        LONGEST,
        2048,
    ),
    "token-ghosts": Attack(
        "a token of 60,000 partitions on a topic set, gone at once", leave_ghosts, 60_000, 50
    ),
    "token-beside": Attack(
        "a token of 60,000 partitions on a topic that others read", follow_beside, 60_000, 50
    ),
}
