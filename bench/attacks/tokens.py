"""Attack by resume tokens with partitions that do not exist."""

from __future__ import annotations

from urllib.parse import quote

from gateway.core.log.record import NO_EPOCH
from gateway.core.token.resume_token import TokenWriter, TopicPositions, digest_text, seal_token

from .attack import AttackCounts, Target, attack
from .connections import AttackConnection, drain_connections, follow_stream, open_websockets

MAX_TOKEN_CHARS = 65_474  # characters of a token, so that an id of it is beyond 64 KiB in a head


def forge_token(topic: str, partitions: int) -> str:
    """Return a token with a right checksum, which stands at the start of so many partitions."""
    places = TopicPositions(topic, "", [0] * partitions, [NO_EPOCH] * partitions)
    return seal_token(TokenWriter("", [places]).to_text(), digest_text("")).decode()


@attack("token-first", "first on a topic with a token of 40,000 partitions, then reads", 40_000, 50)
def follow_first(target: Target) -> AttackCounts:
    """Be the first on a topic, and stay. size: partitions."""
    return _follow_with_token(target, "/fresh", target.fresh_topic)


@attack("token-beside", "a token of 60,000 partitions on a topic that others read", 60_000, 50)
def follow_beside(target: Target) -> AttackCounts:
    """Come to a topic that others read, and stay. size: partitions."""
    return _follow_with_token(target, "/steady", target.steady_topic)


def _follow_with_token(target: Target, path: str, topic: str) -> AttackCounts:
    token = forge_token(topic, target.size)
    with AttackConnection(target.port) as line:
        status = follow_stream(line, path, b"Last-Event-ID: " + token.encode())
        target.announce_begin()
        return {f"status {status}": 1, **drain_connections([line], target.seconds)}


@attack("token-ghosts", "a token of 60,000 partitions on a topic set, gone at once", 60_000, 50)
def leave_ghosts(target: Target) -> AttackCounts:
    """Come to a topic that others read, among other topics, and leave at once. size: partitions."""
    token = forge_token(target.steady_topic, target.size)
    path = f"/any/{quote(target.fresh_topic)},{quote(target.steady_topic)}"
    with AttackConnection(target.port) as line:
        status = follow_stream(line, path, b"Last-Event-ID: " + token.encode())
        drain_connections([line], 0.5)
    target.announce_begin()
    target.wait_until_over()
    return {f"status {status}": 1}


@attack(
    "token-longest",
    "first on a topic, over /ws, with a token of 65,474 characters",
    MAX_TOKEN_CHARS,
    2048,
)
def follow_by_message(target: Target) -> AttackCounts:
    """Be the first on a topic with a token longer than any head. size: characters of it."""
    token = forge_token(
        target.fresh_topic, target.size - len(forge_token(target.fresh_topic, 1024)) + 1024
    )
    with open_websockets(target.port, 1) as lines:
        lines[0].send_messages(
            {"type": "subscribe", "id": "a", "path": "/fresh", "lastEventId": token}
        )
        heard = lines[0].receive_message()
        target.announce_begin()
        return {str(heard["type"]): 1, **drain_connections(lines, target.seconds)}
