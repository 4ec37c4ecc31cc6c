"""Attack by numbers: many connections and many streams, each of them a valid request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from support.raw_http import build_request
from support.raw_websocket import OPCODE_TEXT, build_frame

from .attack import PROXY_SECTIONS, AttackCounts, Target, attack
from .connections import (
    CLOSED_ERRORS,
    build_message,
    drain_connections,
    follow_stream,
    open_connections,
    open_websockets,
    repeat_request,
)

LARGE_VALUE = b'{"pad":"' + b"x" * 50_000 + b'"}'
NDJSON_HEADER = b"Accept: application/x-ndjson"
MAX_KEYS = 100  # of one condition, as the gateway takes them
CONCURRENT_CONNECTIONS = 50  # connections that are open at a time where they come and go


@attack("readers-slow", "600 streams that read nothing of 30 MB", 600)
def read_nothing(target: Target) -> AttackCounts:
    """Open streams over connections of little room, and read nothing. size: streams; as many
    records of 50 KB are written."""
    counts: Counter[str] = Counter()
    with open_connections(target.port, target.size, has_small_buffer=True) as lines:
        for line in lines:
            counts[f"status {follow_stream(line, '/fresh')}"] += 1
        target.announce_begin()
        target.produce_values(target.fresh_topic, [LARGE_VALUE] * target.size)
        target.wait_until_over()
    return counts


@attack("earliest-storm", "?from=earliest of 20 MB by 50 at a time", CONCURRENT_CONNECTIONS)
def read_all(target: Target) -> AttackCounts:
    """Ask for all of a topic again and again, as fast as it begins. size: at a time."""
    target.produce_values(target.fresh_topic, [LARGE_VALUE] * (8 * target.size))
    return _reconnect_with(target, lambda n: build_request("/fresh?from=earliest"))


@attack("snapshot-storm", "snapshots by 50 at a time", CONCURRENT_CONNECTIONS)
def read_snapshots(target: Target) -> AttackCounts:
    """Ask for a snapshot again and again, as fast as it begins. size: at a time."""
    return _reconnect_with(target, lambda n: build_request("/snapshot"))


@attack("filters-distinct", "filters of 100 keys, by 50 at a time", CONCURRENT_CONNECTIONS)
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
        with open_connections(target.port, target.size, has_small_buffer=True) as lines:
            for line in lines:
                line.send_bytes(create_request(next(number)))
            for line in lines:
                with suppress(*CLOSED_ERRORS):
                    counts[f"status {line.read_head().status}"] += 1
    return counts


@attack("connections-idle", "2,000 connections that ask nothing", 2000)
def connect_only(target: Target) -> AttackCounts:
    """Hold connections on which nothing is asked. size: connections."""
    with open_connections(target.port, target.size):
        target.announce_begin()
        target.wait_until_over()
    return {"connections": target.size}


@attack("heads-slow", "1,000 heads of 60 KB that never end", 1000)
def send_heads_slowly(target: Target) -> AttackCounts:
    """Send heads of 60 KB that never end, over connections that stay. size: connections."""
    head = build_request("/steady", b"X: " + b"x" * 60_000)[:-2]
    with open_connections(target.port, target.size) as lines:
        target.announce_begin()
        for line in lines:
            line.send_bytes(head)
        return drain_connections(lines, target.seconds)


@attack("headers-many", "heads of 7,000 headers", 7000, 10)
def send_many_headers(target: Target) -> AttackCounts:
    """Send heads of 8,000 headers, as fast as they are answered. size: headers."""
    lines = (b"a%x: b" % n for n in range(target.size))
    return repeat_request(target, build_request("/steady?until=1", *lines))


@attack("cookies-many", "heads of a cookie of 60 KB", 7000, 10)
def send_cookies(target: Target) -> AttackCounts:
    """Send heads of one cookie of 60 KB to a guarded route. size: pairs in it."""
    cookie = b"Cookie: " + b"; ".join(b"c%x=1" % n for n in range(target.size))
    return repeat_request(target, build_request("/known", cookie))


@attack("addresses-many", "X-Forwarded-For of 6,000 addresses", 6000, 10, sections=PROXY_SECTIONS)
def list_addresses(target: Target) -> AttackCounts:
    """Name thousands of addresses that it was forwarded for. size: addresses."""
    header = b"X-Forwarded-For: " + b",".join([b"127.0.0.1"] * target.size)
    return repeat_request(target, build_request("/steady?until=1", header))


@attack("pages-waiting", "1,000 pages of keys of their own that wait", 1000)
def wait_for_pages(target: Target) -> AttackCounts:
    """Hold pages that wait for five minutes. size: pages."""
    with open_connections(target.port, target.size) as lines:
        for n, line in enumerate(lines):
            line.send_bytes(build_request(f"/own/{n}?wait=5m", NDJSON_HEADER))
        target.announce_begin()
        return drain_connections(lines, target.seconds)


@attack("produces-ahead", "records of 900 KB without end, 4 sockets", 4, 1)
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
    return counts


@attack("subscriptions-flooded", "subscribe and unsubscribe, 2 sockets", 2, 1)
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
    return counts


@attack("filter-large", "a filter of 20,000 conditions", 20_000, 10)
def nest_filters(target: Target) -> AttackCounts:
    """Subscribe with filters of a megabyte. size: conditions."""
    conditions = {f"/{n}": {"prefix": "x"} for n in range(target.size)}
    said = {"type": "subscribe", "id": "a", "path": "/filtered", "filter": {"value": conditions}}
    return _send_repeatedly(target, said)


@attack("fields-many", "a list of 60,000 fields", 60_000, 10)
def name_fields(target: Target) -> AttackCounts:
    """Subscribe with a list of thousands of fields. size: fields."""
    fields = [f"/{n}" for n in range(target.size)]
    return _send_repeatedly(
        target, {"type": "subscribe", "id": "a", "path": "/filtered", "fields": fields}
    )


@attack("values-nested", "a value of 400,000 levels", 400_000, 10)
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
    return counts
