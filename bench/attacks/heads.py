"""Attack by the heads of HTTP requests."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from support.raw_http import build_request

from .attack import Attack, AttackCounts, Target, convert_counts
from .connections import (
    CLOSED_ERRORS,
    AttackConnection,
    follow_stream,
    open_websockets,
    request_status,
)

PIPELINED_REQUESTS = 16  # requests of a connection that may wait for their answers
RATE_SECTIONS = {"listen": {"limits": {"rate": "5/s", "burst": 30}}}
MAX_ALLOWED_COUNT = 100  # of what `RATE` limits, while an attack lasts
PROXY_SECTIONS = {"listen": {"forwarded": ["127.0.0.0/8"]}}


def repeat_request(target: Target, request: bytes) -> AttackCounts:
    """Send a request again and again, each over a connection of its own."""
    counts: Counter[str] = Counter()
    target.announce_begin()
    for _ in target.iter_turns():
        counts[_get_outcome(target, request)] += 1
    return convert_counts(counts)


def _get_outcome(target: Target, request: bytes) -> str:
    try:
        return f"status {request_status(target.port, request)}"
    except CLOSED_ERRORS:
        return "closed"


def repeat_filters(target: Target) -> AttackCounts:
    """Ask with one filter many times over. size: filters."""
    return repeat_request(target, build_request("/steady?" + "&".join(["filter=/"] * target.size)))


def repeat_filters_by_message(target: Target) -> AttackCounts:
    """Subscribe with one filter many times over. size: filters."""
    path = "/steady?" + "&".join(["filter=/"] * target.size)
    counts: Counter[str] = Counter()
    with open_websockets(target.port, 1) as (line,):
        target.announce_begin()
        for n in target.iter_turns():
            line.send_messages({"type": "ping"}, {"type": "subscribe", "id": f"s{n}", "path": path})
            counts.update(str(line.receive_message()["type"]) for _ in range(2))
    return convert_counts(counts)


def quote_certificate(target: Target) -> AttackCounts:
    """Show a certificate with quotes that never end. size: quotes."""
    header = b'X-Forwarded-Client-Cert: "' + b'\\"' * target.size
    return repeat_request(target, build_request("/steady?until=1", header))


def lengthen_paths(target: Target) -> AttackCounts:
    """Ask for streams of long keys, each of its own, and leave. size: streams."""
    counts: Counter[str] = Counter()
    target.announce_begin()
    for n in range(target.size):
        with AttackConnection(target.port) as line:
            try:
                counts[f"status {follow_stream(line, f'/own/{n:08}' + 'x' * 60_000)}"] += 1
            except CLOSED_ERRORS:
                counts["closed"] += 1
    return convert_counts(counts)


def guess_by_preflight(target: Target) -> AttackCounts:
    """Ask as often as possible by OPTIONS and by POST of a new token. size: of a kind at once."""
    requests = {
        "OPTIONS": build_request("/known", method="OPTIONS"),
        "POST": build_request("/streams/x/token", b"Content-Length: 0", method="POST"),
    }
    counts: Counter[str] = Counter()
    target.announce_begin()
    for _ in target.iter_turns():
        for name, request in requests.items():
            for _ in range(target.size):
                counts[f"{name} {_get_outcome(target, request)}"] += 1
    return convert_counts(counts)


def pipeline_requests(target: Target) -> AttackCounts:
    """Send as many requests at once as are taken, again when they are answered. size: connections
    at a time."""
    burst = build_request("/nowhere/" + "x" * 200) * PIPELINED_REQUESTS
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        lines = [stack.enter_context(AttackConnection(target.port)) for _ in range(target.size)]
        target.announce_begin()
        for _ in target.iter_turns():
            for line in lines:
                line.send_bytes(burst)
            for line in lines:
                counts.update(
                    f"status {line.read_response().status}" for _ in range(PIPELINED_REQUESTS)
                )
    return convert_counts(counts)


ATTACKS = {
    "filters-repeated": Attack(
        "GET with ?filter=/ 7,200 times in 64 KB", repeat_filters, 7_200, 20
    ),
    "filters-message": Attack(
        "subscribe with ?filter=/ 1,800 times in 16 KB", repeat_filters_by_message, 1_800, 20
    ),
    "certificate-quotes": Attack(
        "X-Forwarded-Client-Cert of 20 KB by a named proxy",
        quote_certificate,
        10_000,
        20,
        sections=PROXY_SECTIONS,
    ),
    "paths-long": Attack("4,500 streams of a path of 60 KB each", lengthen_paths, 4_500, 3),
    "guesses-unlimited": Attack(
        "OPTIONS and POST of new tokens, rate 5/s",
        guess_by_preflight,
        50,
        2,
        sections=RATE_SECTIONS,
        max_counts={"OPTIONS status 204": MAX_ALLOWED_COUNT, "POST status 404": MAX_ALLOWED_COUNT},
    ),
    "requests-pipelined": Attack(
        "16 requests at once over 50 connections, again and again", pipeline_requests, 50, 2
    ),
}
