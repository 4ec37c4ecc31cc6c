"""Attack by the heads of HTTP requests."""

from __future__ import annotations

from collections import Counter

from support.raw_http import build_request

from .attack import MAX_ALLOWED_COUNT, PROXY_SECTIONS, RATE_SECTIONS, AttackCounts, Target, attack
from .connections import (
    EVENTS_HEADER,
    count_status,
    open_connections,
    open_websockets,
    repeat_request,
)

PIPELINED_REQUESTS = 16  # requests of a connection that may wait for their answers


@attack("filters-repeated", "GET with ?filter=/ 7,200 times in 64 KB", 7_200, 20)
def repeat_filters(target: Target) -> AttackCounts:
    """Ask with one filter many times over. size: filters."""
    return repeat_request(target, build_request("/steady?" + "&".join(["filter=/"] * target.size)))


@attack("filters-message", "subscribe with ?filter=/ 1,800 times in 16 KB", 1_800, 20)
def repeat_filters_by_message(target: Target) -> AttackCounts:
    """Subscribe with one filter many times over. size: filters."""
    path = "/steady?" + "&".join(["filter=/"] * target.size)
    counts: Counter[str] = Counter()
    with open_websockets(target.port, 1) as (line,):
        target.announce_begin()
        for n in target.iter_turns():
            line.send_messages({"type": "ping"}, {"type": "subscribe", "id": f"s{n}", "path": path})
            counts.update(str(line.receive_message()["type"]) for _ in range(2))
    return counts


@attack(
    "certificate-quotes",
    "X-Forwarded-Client-Cert of 20 KB by a named proxy",
    10_000,
    20,
    sections=PROXY_SECTIONS,
)
def quote_certificate(target: Target) -> AttackCounts:
    """Show a certificate with quotes that never end. size: quotes."""
    header = b'X-Forwarded-Client-Cert: "' + b'\\"' * target.size
    return repeat_request(target, build_request("/steady?until=1", header))


@attack("paths-long", "4,500 streams of a path of 60 KB each", 4_500, 3)
def lengthen_paths(target: Target) -> AttackCounts:
    """Ask for streams of long keys, each of its own, and leave. size: streams."""
    counts: Counter[str] = Counter()
    target.announce_begin()
    for n in range(target.size):
        count_status(
            counts, target.port, build_request(f"/own/{n:08}{'x' * 60_000}", EVENTS_HEADER)
        )
    return counts


@attack(
    "guesses-unlimited",
    "OPTIONS and POST of new tokens, rate 5/s",
    50,
    sections=RATE_SECTIONS,
    max_counts={"OPTIONS status 204": MAX_ALLOWED_COUNT, "POST status 404": MAX_ALLOWED_COUNT},
)
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
                count_status(counts, target.port, request, f"{name} ")
    return counts


@attack("requests-pipelined", "16 requests at once over 50 connections, again and again", 50)
def pipeline_requests(target: Target) -> AttackCounts:
    """Send as many requests at once as are taken, again when they are answered. size: connections
    at a time."""
    burst = build_request("/nowhere/" + "x" * 200) * PIPELINED_REQUESTS
    counts: Counter[str] = Counter()
    with open_connections(target.port, target.size) as lines:
        target.announce_begin()
        for _ in target.iter_turns():
            for line in lines:
                line.send_bytes(burst)
            for line in lines:
                counts.update(
                    f"status {line.read_response().status}" for _ in range(PIPELINED_REQUESTS)
                )
    return counts
