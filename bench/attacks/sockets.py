"""Attacks by the messages of a WebSocket."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from support.raw_websocket import PING, TEXT, frame, squeezed

from .attack import Attack, Counts, Target, tally
from .heads import MAX_GIVEN, RATE
from .lines import DEFLATE, ENDED, SQUEEZED, Line, drain, message, opened

COMPRESSED = {"listen": {"websocket": {"compression": True}}}
STREAMS = 100  # subscriptions of a socket
RECORD = b'{"pad":"' + b"x" * 1000 + b'"}'
MEGABYTE = 1 << 20  # bytes of a message; the most that a gateway takes
AT_ONCE = 50  # messages before their answers are read


def _subscriptions(prefix: str, path: str, count: int = STREAMS) -> bytes:
    said = ({"type": "subscribe", "id": f"{prefix}{n}", "path": path} for n in range(count))
    return b"".join(map(message, said))


def hoard_labels(target: Target) -> Counts:
    """Subscribe with ids of one's own, and read nothing of 0.6 MB. size: sockets."""
    with opened(target.port, target.size, small=True) as lines:
        for line in lines:
            line.send(_subscriptions(uuid.uuid4().hex[:16], "/fresh"))
        return _hoard(target, lines)


def hoard_filters(target: Target) -> Counts:
    """Subscribe with filters of one's own, and read nothing of 0.6 MB. size: sockets."""
    with opened(target.port, target.size, small=True) as lines:
        for n, line in enumerate(lines):
            for k in range(STREAMS):
                path = f"/filtered?filter=!/{n}-{k}"
                line.say({"type": "subscribe", "id": str(k), "path": path})
        return _hoard(target, lines)


def _hoard(target: Target, lines: Sequence[Line]) -> Counts:
    """Write what is hoarded once every stream has begun: before, each is read by itself."""
    began = Counter(str(line.hear()["type"]) for line in lines for _ in range(STREAMS))
    target.begin()
    target.produce(target.fresh, [RECORD] * 600)
    target.hold()
    return tally(began)


def name_differently(target: Target) -> Counts:
    """Subscribe with ids of one's own to what others read, and read it. size: sockets."""
    with opened(target.port, target.size) as lines:
        for line in lines:
            line.send(_subscriptions(uuid.uuid4().hex, "/steady", 1))
        target.begin()
        return tally(drain(lines, target.seconds))


def name_unknown_types(target: Target) -> Counts:
    """Send types of a megabyte, compressed. size: at once."""
    text = json.dumps({"type": "subscribe" * (MEGABYTE // 9)})[: MEGABYTE - 2] + '"}'
    unknown = frame(TEXT, squeezed(text.encode()), rsv=SQUEEZED)
    counts: Counter[str] = Counter()
    with opened(target.port, 1, DEFLATE) as (line,):
        target.begin()
        for _ in target.turns():
            if not line.send((unknown + message({"type": "ping"})) * target.size):
                break
            try:
                counts.update(str(line.hear()["type"]) for _ in range(2 * target.size))
            except ENDED:
                counts["closed"] += 1
                break
    return tally(counts)


def guess_tokens(target: Target) -> Counts:
    """Guess what lets in, on sockets that stay. size: guesses at most."""
    counts: Counter[str] = Counter()
    target.begin()
    for _ in target.turns():
        if counts["guesses answered"] >= target.size:
            break
        try:
            with opened(target.port, 1) as (line,):
                _guess(line, target, counts)
        except ENDED:
            counts["refused"] += 1
    return tally(counts)


def _guess(line: Line, target: Target, counts: Counter[str]) -> None:
    while counts["guesses answered"] < target.size:
        line.say(*_guesses(counts["guesses answered"]))
        for _ in range(2 * AT_ONCE):
            heard = line.hear()
            counts["guesses answered"] += heard.get("code") == "unauthorized"


def _guesses(first: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for n in range(first, first + AT_ONCE):
        said.append({"type": "token", "jwt": f"guess-{n}"})
        said.append({"type": "subscribe", "id": "g", "path": "/known"})
    return said


def leave_waiting(target: Target) -> Counts:
    """Have messages of a megabyte wait behind an application that is slow. size: sockets."""
    text = '"\U0001f600' + "x" * (MEGABYTE - 100) + '"'
    large = frame(TEXT, squeezed(text.encode()), rsv=SQUEEZED)
    with opened(target.port, target.size, DEFLATE) as lines:
        for line in lines:
            token = uuid.uuid4().hex
            line.say({"type": "token", "jwt": token})
            line.say({"type": "subscribe", "id": "a", "path": "/asked"})
        target.begin()
        for line in lines:
            line.send(large * 80)
        target.hold()
    return {"messages": 80 * target.size}


def ping_always(target: Target) -> Counts:
    """Send pings of WebSocket as fast as they are taken. size: sockets."""
    return _flood(target, frame(PING, b"x" * 125) * 200)


def speak_always(target: Target) -> Counts:
    """Send messages `ping` as fast as they are answered. size: sockets."""
    return _flood(target, message({"type": "ping", "id": "x"}) * 200)


def split_finely(target: Target) -> Counts:
    """Send messages in fragments of one byte. size: sockets."""
    text = b'{"type":"ping"}'
    first, *middle, last = [text[n : n + 1] for n in range(len(text))]
    parts = [frame(TEXT, first, fin=False), *(frame(0, each, fin=False) for each in middle)]
    return _flood(target, b"".join([*parts, frame(0, last)]) * 100)


def split_endlessly(target: Target) -> Counts:
    """Send empty fragments of messages that never end. size: sockets."""
    return _flood(target, frame(TEXT, b"", fin=False), frame(0, b"", fin=False) * 1000)


def _flood(target: Target, data: bytes, then: bytes | None = None) -> Counts:
    """Send it again and again; `then` from the second time on. Who is closed comes again."""
    counts: Counter[str] = Counter()
    target.begin()
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        with suppress(*ENDED), opened(target.port, target.size) as lines:
            counts["connections"] += len(lines)
            n, ended = 0, 0
            while not ended and time.monotonic() < ends:
                for line in lines:
                    counts["bursts"] += line.send(data if n == 0 or then is None else then)
                read = drain(lines, 0.005)
                counts["bytes"] += read["bytes"]
                ended = read["ended"]
                n += 1
    return tally(counts)


def change_always(target: Target) -> Counts:
    """Change filters of streams in place, as fast as it is answered. size: sockets."""
    counts: Counter[str] = Counter()
    with opened(target.port, target.size) as lines:
        for line in lines:
            line.send(_subscriptions("s", "/filtered", 20))
        target.begin()
        for n in target.turns():
            for line in lines:
                line.say(*({"type": "change", "id": f"s{k}", "filter": {"key": f"{n}"}}
                           for k in range(20)))  # fmt: skip
                counts["changes"] += 20
            counts.update(drain(lines, 0.005))
    return tally(counts)


ATTACKS = {
    "labels-hoarded": Attack(
        "6 sockets, 100 ids each, that read nothing of 0.6 MB", hoard_labels, 6, 1, seconds=12
    ),
    "filters-hoarded": Attack(
        "6 sockets, 100 filters each, that read nothing of 0.6 MB", hoard_filters, 6, 1, seconds=12
    ),
    "labels-different": Attack(
        "400 sockets with ids of their own that read", name_differently, 400, 3
    ),
    "guesses-message": Attack(
        "tokens guessed over /ws, rate 5/s",
        guess_tokens,
        3_000,
        60,
        sections=RATE,
        bounds={"guesses answered": MAX_GIVEN},
    ),
    "types-unknown": Attack(
        "types of 1 MB, compressed, 8 at once", name_unknown_types, 8, 1, sections=COMPRESSED
    ),
    "messages-waiting": Attack(
        "2 sockets, 80 messages of 1 MiB behind a slow guard",
        leave_waiting,
        2,
        1,
        sections=COMPRESSED,
    ),
    "pings-flooded": Attack("WebSocket pings without end, 4 sockets", ping_always, 4, 1),
    "messages-flooded": Attack("messages `ping` without end, 4 sockets", speak_always, 4, 1),
    "fragments-fine": Attack("fragments of one byte, 4 sockets", split_finely, 4, 1),
    "fragments-endless": Attack("empty fragments without end, 4 sockets", split_endlessly, 4, 1),
    "changes-flooded": Attack("20 streams changed without end, 2 sockets", change_always, 2, 1),
}
