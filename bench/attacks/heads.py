"""Attacks by the heads of requests."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from support.raw_http import get

from .attack import Attack, Counts, Target, tally
from .lines import ENDED, Line, ask, follow, opened

PIPELINED = 16  # requests of a connection that may wait for their answers
RATE = {"listen": {"limits": {"rate": "5/s", "burst": 30}}}
MAX_GIVEN = 100  # of what `RATE` limits, while an attack lasts
PROXIED = {"listen": {"forwarded": ["127.0.0.0/8"]}}


def repeat(target: Target, request: bytes) -> Counts:
    """Send a request again and again, each over a connection of its own."""
    counts: Counter[str] = Counter()
    target.begin()
    for _ in target.turns():
        counts[_answer(target, request)] += 1
    return tally(counts)


def _answer(target: Target, request: bytes) -> str:
    try:
        return f"status {ask(target.port, request)}"
    except ENDED:
        return "closed"


def repeat_filters(target: Target) -> Counts:
    """Ask with one filter many times over. size: filters."""
    return repeat(target, get("/steady?" + "&".join(["filter=/"] * target.size)))


def repeat_filters_by_message(target: Target) -> Counts:
    """Subscribe with one filter many times over. size: filters."""
    path = "/steady?" + "&".join(["filter=/"] * target.size)
    counts: Counter[str] = Counter()
    with opened(target.port, 1) as (line,):
        target.begin()
        for n in target.turns():
            line.say({"type": "ping"}, {"type": "subscribe", "id": f"s{n}", "path": path})
            counts.update(str(line.hear()["type"]) for _ in range(2))
    return tally(counts)


def quote_certificate(target: Target) -> Counts:
    """Show a certificate with quotes that never end. size: quotes."""
    header = b'X-Forwarded-Client-Cert: "' + b'\\"' * target.size
    return repeat(target, get("/steady?until=1", header))


def lengthen_paths(target: Target) -> Counts:
    """Ask for streams of long keys, each of its own, and leave. size: streams."""
    counts: Counter[str] = Counter()
    target.begin()
    for n in range(target.size):
        with Line(target.port) as line:
            try:
                counts[f"status {follow(line, f'/own/{n:08}' + 'x' * 60_000)}"] += 1
            except ENDED:
                counts["closed"] += 1
    return tally(counts)


def guess_by_preflight(target: Target) -> Counts:
    """Ask as often as possible by OPTIONS and by POST of a new token. size: of a kind at once."""
    requests = {
        "OPTIONS": get("/known", method="OPTIONS"),
        "POST": get("/streams/x/token", b"Content-Length: 0", method="POST"),
    }
    counts: Counter[str] = Counter()
    target.begin()
    for _ in target.turns():
        for name, request in requests.items():
            for _ in range(target.size):
                counts[f"{name} {_answer(target, request)}"] += 1
    return tally(counts)


def pipeline_requests(target: Target) -> Counts:
    """Send as many requests at once as are taken, again when they are answered. size: connections
    at a time."""
    burst = get("/nowhere/" + "x" * 200) * PIPELINED
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(target.port)) for _ in range(target.size)]
        target.begin()
        for _ in target.turns():
            for line in lines:
                line.send(burst)
            for line in lines:
                counts.update(f"status {line.answer().status}" for _ in range(PIPELINED))
    return tally(counts)


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
        sections=PROXIED,
    ),
    "paths-long": Attack("4,500 streams of a path of 60 KB each", lengthen_paths, 4_500, 3),
    "guesses-unlimited": Attack(
        "OPTIONS and POST of new tokens, rate 5/s",
        guess_by_preflight,
        50,
        2,
        sections=RATE,
        bounds={"OPTIONS status 204": MAX_GIVEN, "POST status 404": MAX_GIVEN},
    ),
    "requests-pipelined": Attack(
        "16 requests at once over 50 connections, again and again", pipeline_requests, 50, 2
    ),
}
