"""Attack by numbers: many connections and many streams, each of them a valid request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count

from support.raw_http import build_request
from support.raw_websocket import OPCODE_TEXT, build_frame

from .attack import Attack, AttackCounts, Target, convert_counts
from .connections import (
    CLOSED_ERRORS,
    SMALL_BUFFER_BYTES,
    AttackConnection,
    build_message,
    drain_connections,
    follow_stream,
    open_websockets,
)

SMALL_VALUE = b'{"pad":"' + b"x" * 1000 + b'"}'
LARGE_VALUE = b'{"pad":"' + b"x" * 50_000 + b'"}'
NDJSON_HEADER = b"Accept: application/x-ndjson"
MAX_KEYS = 100  # of one condition, as the gateway takes them
CONCURRENT_CONNECTIONS = 50  # connections that are open at a time where they come and go


def read_nothing(target: Target) -> AttackCounts:
    """Open streams over connections of little room, and read nothing. size: streams; as many
    records of 50 KB are written."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for _ in range(target.size):
            line = stack.enter_context(
                AttackConnection(target.port, receive_buffer=SMALL_BUFFER_BYTES)
            )
            counts[f"status {follow_stream(line, '/fresh')}"] += 1
        target.announce_begin()
        target.produce_values(target.fresh_topic, [LARGE_VALUE] * target.size)
        target.wait_until_over()
    return convert_counts(counts)


def read_all(target: Target) -> AttackCounts:
    """Ask for all of a topic again and again, as fast as it begins. size: at a time."""
    target.produce_values(target.fresh_topic, [LARGE_VALUE] * (8 * target.size))
    return _reconnect_with(target, lambda n: build_request("/fresh?from=earliest"))


def read_snapshots(target: Target) -> AttackCounts:
    """Ask for a snapshot again and again, as fast as it begins. size: at a time."""
    return _reconnect_with(target, lambda n: build_request("/snapshot"))


def choose_filters(target: Target) -> AttackCounts:
    """Open streams with a filter of 100 keys each, others for each. size: at a time."""

    def build_filter_request(n: int) -> bytes:
        wanted = ",".join(f"{n}-{k}" for k in range(MAX_KEYS))
        return build_request(f"/filtered?filter=key=in({wanted})")

    return _reconnect_with(target, build_filter_request)


def _reconnect_with(target: Target, create_request: Callable[[int], bytes]) -> AttackCounts:
    counts: Counter[str] = Counter()
    target.announce_begin()
    number = count()
    for _ in target.iter_turns():
        with ExitStack() as stack:
            lines = []
            for _ in range(target.size):
                line = stack.enter_context(
                    AttackConnection(target.port, receive_buffer=SMALL_BUFFER_BYTES)
                )
                line.send_bytes(create_request(next(number)))
                lines.append(line)
            for line in lines:
                with suppress(*CLOSED_ERRORS):
                    counts[f"status {line.read_head().status}"] += 1
    return convert_counts(counts)


def connect_only(target: Target) -> AttackCounts:
    """Hold connections on which nothing is asked. size: connections."""
    with ExitStack() as stack:
        for _ in range(target.size):
            stack.enter_context(AttackConnection(target.port))
        target.announce_begin()
        target.wait_until_over()
    return {"connections": target.size}


def send_heads_slowly(target: Target) -> AttackCounts:
    """Send heads of 60 KB that never end, over connections that stay. size: connections."""
    head = build_request("/steady", b"X: " + b"x" * 60_000)[:-2]
    with ExitStack() as stack:
        lines = [stack.enter_context(AttackConnection(target.port)) for _ in range(target.size)]
        target.announce_begin()
        for line in lines:
            line.send_bytes(head)
        return convert_counts(drain_connections(lines, target.seconds))


def send_many_headers(target: Target) -> AttackCounts:
    """Send heads of 8,000 headers, as fast as they are answered. size: headers."""
    lines = (b"a%x: b" % n for n in range(target.size))
    return _repeat_request(target, build_request("/steady?until=1", *lines))


def send_cookies(target: Target) -> AttackCounts:
    """Send heads of one cookie of 60 KB to a guarded route. size: pairs in it."""
    cookie = b"Cookie: " + b"; ".join(b"c%x=1" % n for n in range(target.size))
    return _repeat_request(target, build_request("/known", cookie))


def list_addresses(target: Target) -> AttackCounts:
    """Name thousands of addresses that it was forwarded for. size: addresses."""
    header = b"X-Forwarded-For: " + b",".join([b"127.0.0.1"] * target.size)
    return _repeat_request(target, build_request("/steady?until=1", header))


def _repeat_request(target: Target, request: bytes) -> AttackCounts:
    counts: Counter[str] = Counter()
    target.announce_begin()
    for _ in target.iter_turns():
        with AttackConnection(target.port) as line:
            line.send_bytes(request)
            try:
                counts[f"status {line.read_head().status}"] += 1
            except CLOSED_ERRORS:
                counts["closed"] += 1
    return convert_counts(counts)


def wait_for_pages(target: Target) -> AttackCounts:
    """Hold pages that wait for five minutes. size: pages."""
    with ExitStack() as stack:
        lines = [stack.enter_context(AttackConnection(target.port)) for _ in range(target.size)]
        for n, line in enumerate(lines):
            line.send_bytes(build_request(f"/own/{n}?wait=5m", NDJSON_HEADER))
        target.announce_begin()
        return convert_counts(drain_connections(lines, target.seconds))


def produce_ahead(target: Target) -> AttackCounts:
    """Write records of 900 KB over sockets and wait for no answer. size: sockets."""
    value = "x" * (900_000 if target.size > 1 else 1000)
    large = build_message({"type": "produce", "id": "p", "path": "/written", "value": value})
    counts: Counter[str] = Counter()
    with open_websockets(target.port, target.size) as lines:
        target.announce_begin()
        for _ in target.iter_turns():
            for line in lines:
                counts["records"] += line.send_bytes(large)
            counts.update(drain_connections(lines, 0.01))
    return convert_counts(counts)


def subscribe_and_leave(target: Target) -> AttackCounts:
    """Subscribe to 100 streams of keys of their own and unsubscribe, again. size: sockets."""
    counts: Counter[str] = Counter()
    number = count()
    with open_websockets(target.port, target.size) as lines:
        target.announce_begin()
        for _ in target.iter_turns():
            for line in lines:
                ids = [str(next(number)) for _ in range(100)]
                line.send_messages(
                    *({"type": "subscribe", "id": n, "path": f"/own/{n}"} for n in ids)
                )
                line.send_messages(*({"type": "unsubscribe", "id": n} for n in ids))
                counts["subscriptions"] += 100
            counts.update(drain_connections(lines, 0.01))
    return convert_counts(counts)


def nest_filters(target: Target) -> AttackCounts:
    """Subscribe with filters of a megabyte. size: conditions."""
    conditions = {f"/{n}": {"prefix": "x"} for n in range(target.size)}
    said = {"type": "subscribe", "id": "a", "path": "/filtered", "filter": {"value": conditions}}
    return _send_repeatedly(target, said)


def name_fields(target: Target) -> AttackCounts:
    """Subscribe with a list of thousands of fields. size: fields."""
    fields = [f"/{n}" for n in range(target.size)]
    return _send_repeatedly(
        target, {"type": "subscribe", "id": "a", "path": "/filtered", "fields": fields}
    )


def nest_values(target: Target) -> AttackCounts:
    """Write a value that nests deeply. size: levels."""
    text = '{"type":"produce","id":"p","path":"/written","value":' + "[" * target.size
    return _send_repeatedly(target, text + "]" * target.size + "}")


def _send_repeatedly(target: Target, payload: object) -> AttackCounts:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    data = build_frame(OPCODE_TEXT, text.encode())
    leave = build_message({"type": "unsubscribe", "id": "a"})
    counts: Counter[str] = Counter()
    target.announce_begin()
    for _ in target.iter_turns():
        with suppress(*CLOSED_ERRORS), open_websockets(target.port, 1) as (line,):
            for _ in target.iter_turns():
                if not line.send_bytes(data + leave):
                    break
                heard = line.receive_message()
                counts[f"{heard['type']} {heard.get('code', '')}".strip()] += 1
    return convert_counts(counts)


ATTACKS = {
    "readers-slow": Attack("600 streams that read nothing of 30 MB", read_nothing, 600, 2),
    "earliest-storm": Attack(
        "?from=earliest of 20 MB by 50 at a time", read_all, CONCURRENT_CONNECTIONS, 2
    ),
    "snapshot-storm": Attack(
        "snapshots by 50 at a time", read_snapshots, CONCURRENT_CONNECTIONS, 2
    ),
    "filters-distinct": Attack(
        "filters of 100 keys, by 50 at a time", choose_filters, CONCURRENT_CONNECTIONS, 2
    ),
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
