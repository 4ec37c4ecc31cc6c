"""Attack by the messages of a WebSocket."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from support.raw_websocket import (
    DEFLATE_HEADER,
    OPCODE_PING,
    OPCODE_TEXT,
    build_frame,
    deflate_payload,
)

from .attack import (
    COMPRESSION_SECTIONS,
    MAX_ALLOWED_COUNT,
    RATE_SECTIONS,
    AttackCounts,
    Target,
    attack,
)
from .connections import (
    CLOSED_ERRORS,
    COMPRESSED_RSV,
    AttackConnection,
    build_message,
    drain_connections,
    open_websockets,
)

MAX_SUBSCRIPTIONS = 100  # subscriptions of a socket
SMALL_VALUE = b'{"pad":"' + b"x" * 1000 + b'"}'
MAX_MESSAGE_BYTES = 1 << 20  # bytes of a message; the most that a gateway takes
GUESSES_PER_ROUND = 50  # messages before their answers are read


def _build_subscriptions(prefix: str, path: str, count: int = MAX_SUBSCRIPTIONS) -> bytes:
    said = ({"type": "subscribe", "id": f"{prefix}{n}", "path": path} for n in range(count))
    return b"".join(map(build_message, said))


@attack("labels-hoarded", "6 sockets, 100 ids each, that read nothing of 0.6 MB", 6, 1, seconds=12)
def hoard_labels(target: Target) -> AttackCounts:
    """Subscribe with ids of one's own, and read nothing of 0.6 MB. size: sockets."""
    with open_websockets(target.port, target.size, has_small_buffer=True) as lines:
        for line in lines:
            line.send_bytes(_build_subscriptions(uuid.uuid4().hex[:16], "/fresh"))
        return _produce_for_hoarders(target, lines)


@attack(
    "filters-hoarded", "6 sockets, 100 filters each, that read nothing of 0.6 MB", 6, 1, seconds=12
)
def hoard_filters(target: Target) -> AttackCounts:
    """Subscribe with filters of one's own, and read nothing of 0.6 MB. size: sockets."""
    with open_websockets(target.port, target.size, has_small_buffer=True) as lines:
        for n, line in enumerate(lines):
            for k in range(MAX_SUBSCRIPTIONS):
                path = f"/filtered?filter=!/{n}-{k}"
                line.send_messages({"type": "subscribe", "id": str(k), "path": path})
        return _produce_for_hoarders(target, lines)


def _produce_for_hoarders(target: Target, connections: Sequence[AttackConnection]) -> AttackCounts:
    """Write what is hoarded once every stream has begun: before, each is read by itself."""
    began = Counter(
        str(line.receive_message()["type"])
        for line in connections
        for _ in range(MAX_SUBSCRIPTIONS)
    )
    target.announce_begin()
    target.produce_values(target.fresh_topic, [SMALL_VALUE] * 600)
    target.wait_until_over()
    return began


@attack("labels-different", "400 sockets with ids of their own that read", 400, 3)
def use_distinct_ids(target: Target) -> AttackCounts:
    """Subscribe with ids of one's own to what others read, and read it. size: sockets."""
    with open_websockets(target.port, target.size) as lines:
        for line in lines:
            line.send_bytes(_build_subscriptions(uuid.uuid4().hex, "/steady", 1))
        target.announce_begin()
        return drain_connections(lines, target.seconds)


@attack(
    "types-unknown", "types of 1 MB, compressed, 8 at once", 8, 1, sections=COMPRESSION_SECTIONS
)
def send_unknown_types(target: Target) -> AttackCounts:
    """Send types of a megabyte, compressed. size: at once."""
    text = (
        json.dumps({"type": "subscribe" * (MAX_MESSAGE_BYTES // 9)})[: MAX_MESSAGE_BYTES - 2] + '"}'
    )
    unknown = build_frame(OPCODE_TEXT, deflate_payload(text.encode()), rsv=COMPRESSED_RSV)
    counts: Counter[str] = Counter()
    with open_websockets(target.port, 1, DEFLATE_HEADER) as (line,):
        target.announce_begin()
        for _ in target.iter_turns():
            if not line.send_bytes((unknown + build_message({"type": "ping"})) * target.size):
                break
            try:
                counts.update(str(line.receive_message()["type"]) for _ in range(2 * target.size))
            except CLOSED_ERRORS:
                counts["closed"] += 1
                break
    return counts


@attack(
    "guesses-message",
    "tokens guessed over /ws, rate 5/s",
    3_000,
    60,
    sections=RATE_SECTIONS,
    max_counts={"guesses answered": MAX_ALLOWED_COUNT},
)
def guess_tokens(target: Target) -> AttackCounts:
    """Guess what lets in, on sockets that stay. size: guesses at most."""
    counts: Counter[str] = Counter()
    target.announce_begin()
    for _ in target.iter_turns():
        if counts["guesses answered"] >= target.size:
            break
        try:
            with open_websockets(target.port, 1) as (line,):
                _send_guesses(line, target, counts)
        except CLOSED_ERRORS:
            counts["refused"] += 1
    return counts


def _send_guesses(connection: AttackConnection, target: Target, counts: Counter[str]) -> None:
    while counts["guesses answered"] < target.size:
        connection.send_messages(*_build_guesses(counts["guesses answered"]))
        for _ in range(2 * GUESSES_PER_ROUND):
            heard = connection.receive_message()
            counts["guesses answered"] += heard.get("code") == "unauthorized"


def _build_guesses(first_number: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for n in range(first_number, first_number + GUESSES_PER_ROUND):
        said.append({"type": "token", "jwt": f"guess-{n}"})
        said.append({"type": "subscribe", "id": "g", "path": "/known"})
    return said


@attack(
    "messages-waiting",
    "2 sockets, 80 messages of 1 MiB behind a slow guard",
    2,
    1,
    sections=COMPRESSION_SECTIONS,
)
def queue_large_messages(target: Target) -> AttackCounts:
    """Have messages of a megabyte wait behind an application that is slow. size: sockets."""
    text = '"\U0001f600' + "x" * (MAX_MESSAGE_BYTES - 100) + '"'
    large = build_frame(OPCODE_TEXT, deflate_payload(text.encode()), rsv=COMPRESSED_RSV)
    with open_websockets(target.port, target.size, DEFLATE_HEADER) as lines:
        for line in lines:
            token = uuid.uuid4().hex
            line.send_messages({"type": "token", "jwt": token})
            line.send_messages({"type": "subscribe", "id": "a", "path": "/asked"})
        target.announce_begin()
        for line in lines:
            line.send_bytes(large * 80)
        target.wait_until_over()
    return {"messages": 80 * target.size}


@attack("pings-flooded", "WebSocket pings without end, 4 sockets", 4, 1)
def flood_pings(target: Target) -> AttackCounts:
    """Send pings of WebSocket as fast as they are taken. size: sockets."""
    return _send_repeatedly(target, build_frame(OPCODE_PING, b"x" * 125) * 200)


@attack("messages-flooded", "messages `ping` without end, 4 sockets", 4, 1)
def flood_messages(target: Target) -> AttackCounts:
    """Send messages `ping` as fast as they are answered. size: sockets."""
    return _send_repeatedly(target, build_message({"type": "ping", "id": "x"}) * 200)


@attack("fragments-fine", "fragments of one byte, 4 sockets", 4, 1)
def send_small_fragments(target: Target) -> AttackCounts:
    """Send messages in fragments of one byte. size: sockets."""
    text = b'{"type":"ping"}'
    first, *middle, last = [text[n : n + 1] for n in range(len(text))]
    parts = [
        build_frame(OPCODE_TEXT, first, fin=False),
        *(build_frame(0, each, fin=False) for each in middle),
    ]
    return _send_repeatedly(target, b"".join([*parts, build_frame(0, last)]) * 100)


@attack("fragments-endless", "empty fragments without end, 4 sockets", 4, 1)
def send_endless_fragments(target: Target) -> AttackCounts:
    """Send empty fragments of messages that never end. size: sockets."""
    return _send_repeatedly(
        target, build_frame(OPCODE_TEXT, b"", fin=False), build_frame(0, b"", fin=False) * 1000
    )


def _send_repeatedly(target: Target, data: bytes, next_data: bytes | None = None) -> AttackCounts:
    """Send it again and again; `then` from the second time on. Who is closed comes again."""
    counts: Counter[str] = Counter()
    target.announce_begin()
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        with suppress(*CLOSED_ERRORS), open_websockets(target.port, target.size) as lines:
            counts["connections"] += len(lines)
            n, ended = 0, 0
            while not ended and time.monotonic() < ends:
                for line in lines:
                    counts["bursts"] += line.send_bytes(
                        data if n == 0 or next_data is None else next_data
                    )
                read = drain_connections(lines, 0.005)
                counts["bytes"] += read["bytes"]
                ended = read["ended"]
                n += 1
    return counts


@attack("changes-flooded", "20 streams changed without end, 2 sockets", 2, 1)
def flood_changes(target: Target) -> AttackCounts:
    """Change filters of streams in place, as fast as it is answered. size: sockets."""
    counts: Counter[str] = Counter()
    with open_websockets(target.port, target.size) as lines:
        for line in lines:
            line.send_bytes(_build_subscriptions("s", "/filtered", 20))
        target.announce_begin()
        for n in target.iter_turns():
            for line in lines:
                line.send_messages(*({"type": "change", "id": f"s{k}", "filter": {"key": f"{n}"}}
                           for k in range(20)))  # fmt: skip
                counts["changes"] += 20
            counts.update(drain_connections(lines, 0.005))
    return counts
