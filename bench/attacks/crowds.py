"""Attacks by numbers: many connections, many streams, each of which is asked for properly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count

from support.raw_http import get
from support.raw_websocket import TEXT, frame

from .attack import Attack, Counts, Target, tally
from .lines import ENDED, SMALL_BUFFER, Line, drain, follow, message, opened

RECORD = b'{"pad":"' + b"x" * 1000 + b'"}'
LARGE = b'{"pad":"' + b"x" * 50_000 + b'"}'
LINES = b"Accept: application/x-ndjson"
MAX_KEYS = 100  # of one condition, as the gateway takes them
AT_ONCE = 50  # connections that are open at a time where they come and go


def read_nothing(target: Target) -> Counts:
    """Open streams over connections of little room, and read nothing. size: streams; as many
    records of 50 KB are written."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for _ in range(target.size):
            line = stack.enter_context(Line(target.port, receive_buffer=SMALL_BUFFER))
            counts[f"status {follow(line, '/fresh')}"] += 1
        target.begin()
        target.produce(target.fresh, [LARGE] * target.size)
        target.hold()
    return tally(counts)


def read_all(target: Target) -> Counts:
    """Ask for all of a topic again and again, as fast as it begins. size: at a time."""
    target.produce(target.fresh, [LARGE] * (8 * target.size))
    return _come_and_go(target, lambda n: get("/fresh?from=earliest"))


def read_snapshots(target: Target) -> Counts:
    """Ask for a snapshot again and again, as fast as it begins. size: at a time."""
    return _come_and_go(target, lambda n: get("/snapshot"))


def choose_filters(target: Target) -> Counts:
    """Open streams with a filter of 100 keys each, others for each. size: at a time."""

    def request(n: int) -> bytes:
        wanted = ",".join(f"{n}-{k}" for k in range(MAX_KEYS))
        return get(f"/filtered?filter=key=in({wanted})")

    return _come_and_go(target, request)


def _come_and_go(target: Target, request: Callable[[int], bytes]) -> Counts:
    counts: Counter[str] = Counter()
    target.begin()
    number = count()
    for _ in target.turns():
        with ExitStack() as stack:
            lines = []
            for _ in range(target.size):
                line = stack.enter_context(Line(target.port, receive_buffer=SMALL_BUFFER))
                line.send(request(next(number)))
                lines.append(line)
            for line in lines:
                with suppress(*ENDED):
                    counts[f"status {line.answer_head().status}"] += 1
    return tally(counts)


def connect_only(target: Target) -> Counts:
    """Hold connections on which nothing is asked. size: connections."""
    with ExitStack() as stack:
        for _ in range(target.size):
            stack.enter_context(Line(target.port))
        target.begin()
        target.hold()
    return {"connections": target.size}


def send_heads_slowly(target: Target) -> Counts:
    """Send heads of 60 KB that never end, over connections that stay. size: connections."""
    head = get("/steady", b"X: " + b"x" * 60_000)[:-2]
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(target.port)) for _ in range(target.size)]
        target.begin()
        for line in lines:
            line.send(head)
        return tally(drain(lines, target.seconds))


def send_many_headers(target: Target) -> Counts:
    """Send heads of 8,000 headers, as fast as they are answered. size: headers."""
    lines = (b"a%x: b" % n for n in range(target.size))
    return _come_and_go_with(target, get("/steady?until=1", *lines))


def send_cookies(target: Target) -> Counts:
    """Send heads of one cookie of 60 KB to a guarded route. size: pairs in it."""
    cookie = b"Cookie: " + b"; ".join(b"c%x=1" % n for n in range(target.size))
    return _come_and_go_with(target, get("/known", cookie))


def list_addresses(target: Target) -> Counts:
    """Name thousands of addresses that it was forwarded for. size: addresses."""
    header = b"X-Forwarded-For: " + b",".join([b"127.0.0.1"] * target.size)
    return _come_and_go_with(target, get("/steady?until=1", header))


def _come_and_go_with(target: Target, request: bytes) -> Counts:
    counts: Counter[str] = Counter()
    target.begin()
    for _ in target.turns():
        with Line(target.port) as line:
            line.send(request)
            try:
                counts[f"status {line.answer_head().status}"] += 1
            except ENDED:
                counts["closed"] += 1
    return tally(counts)


def wait_for_pages(target: Target) -> Counts:
    """Hold pages that wait for five minutes. size: pages."""
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(target.port)) for _ in range(target.size)]
        for n, line in enumerate(lines):
            line.send(get(f"/own/{n}?wait=5m", LINES))
        target.begin()
        return tally(drain(lines, target.seconds))


def produce_ahead(target: Target) -> Counts:
    """Write records of 900 KB over sockets and wait for no answer. size: sockets."""
    value = "x" * (900_000 if target.size > 1 else 1000)
    large = message({"type": "produce", "id": "p", "path": "/written", "value": value})
    counts: Counter[str] = Counter()
    with opened(target.port, target.size) as lines:
        target.begin()
        for _ in target.turns():
            for line in lines:
                counts["records"] += line.send(large)
            counts.update(drain(lines, 0.01))
    return tally(counts)


def subscribe_and_leave(target: Target) -> Counts:
    """Subscribe to 100 streams of keys of their own and unsubscribe, again. size: sockets."""
    counts: Counter[str] = Counter()
    number = count()
    with opened(target.port, target.size) as lines:
        target.begin()
        for _ in target.turns():
            for line in lines:
                ids = [str(next(number)) for _ in range(100)]
                line.say(*({"type": "subscribe", "id": n, "path": f"/own/{n}"} for n in ids))
                line.say(*({"type": "unsubscribe", "id": n} for n in ids))
                counts["subscriptions"] += 100
            counts.update(drain(lines, 0.01))
    return tally(counts)


def nest_filters(target: Target) -> Counts:
    """Subscribe with filters of a megabyte. size: conditions."""
    conditions = {f"/{n}": {"prefix": "x"} for n in range(target.size)}
    said = {"type": "subscribe", "id": "a", "path": "/filtered", "filter": {"value": conditions}}
    return _say_again(target, said)


def name_fields(target: Target) -> Counts:
    """Subscribe with a list of thousands of fields. size: fields."""
    fields = [f"/{n}" for n in range(target.size)]
    return _say_again(
        target, {"type": "subscribe", "id": "a", "path": "/filtered", "fields": fields}
    )


def nest_values(target: Target) -> Counts:
    """Write a value that nests deeply. size: levels."""
    text = '{"type":"produce","id":"p","path":"/written","value":' + "[" * target.size
    return _say_again(target, text + "]" * target.size + "}")


def _say_again(target: Target, said: object) -> Counts:
    text = said if isinstance(said, str) else json.dumps(said)
    data = frame(TEXT, text.encode())
    leave = message({"type": "unsubscribe", "id": "a"})
    counts: Counter[str] = Counter()
    target.begin()
    for _ in target.turns():
        with suppress(*ENDED), opened(target.port, 1) as (line,):
            for _ in target.turns():
                if not line.send(data + leave):
                    break
                heard = line.hear()
                counts[f"{heard['type']} {heard.get('code', '')}".strip()] += 1
    return tally(counts)


ATTACKS = {
    "readers-slow": Attack("600 streams that read nothing of 30 MB", read_nothing, 600, 2),
    "earliest-storm": Attack("?from=earliest of 20 MB by 50 at a time", read_all, AT_ONCE, 2),
    "snapshot-storm": Attack("snapshots by 50 at a time", read_snapshots, AT_ONCE, 2),
    "filters-distinct": Attack("filters of 100 keys, by 50 at a time", choose_filters, AT_ONCE, 2),
    "connections-idle": Attack("2,000 connections that ask nothing", connect_only, 2000, 2),
    "heads-slow": Attack("1,000 heads of 60 KB that never end", send_heads_slowly, 1000, 2),
    "headers-many": Attack("heads of 7,000 headers", send_many_headers, 7000, 10),
    "cookies-many": Attack("heads of a cookie of 60 KB", send_cookies, 7000, 10),
    "addresses-many": Attack(
        "X-Forwarded-For of 6,000 addresses",
        list_addresses,
        6000,
        10,
        sections={"listen": {"forwarded": ["127.0.0.0/8"]}},
    ),
    "pages-waiting": Attack("1,000 pages of keys of their own that wait", wait_for_pages, 1000, 2),
    "produces-ahead": Attack("records of 900 KB without end, 4 sockets", produce_ahead, 4, 1),
    "subscriptions-flooded": Attack(
        "subscribe and unsubscribe, 2 sockets", subscribe_and_leave, 2, 1
    ),
    "filter-large": Attack("a filter of 20,000 conditions", nest_filters, 20_000, 10),
    "fields-many": Attack("a list of 60,000 fields", name_fields, 60_000, 10),
    "values-nested": Attack("a value of 400,000 levels", nest_values, 400_000, 10),
}
