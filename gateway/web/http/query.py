"""Parse what a request asks for: where to start, where to end, and which token to resume from.

`Last-Event-ID` overrides `?lastEventId=`, and both override `?from=`. Times are those of
`core/times`, or relative to now, such as `-5m`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from starlette.requests import HTTPConnection

from gateway.core.times import CLOCK_SLACK_MS, parse_time
from gateway.core.token import resume_token as tokens
from gateway.core.token.resume_token import ResumeToken
from gateway.errors import RequestError, TokenError
from gateway.hub.reads.position_resolver import StreamStart

from .head import build_bad_request

_AGO_PATTERN = re.compile(r"-([0-9]{1,9})(ms|s|m|h|d)")
_COUNT_PATTERN = re.compile(r"[0-9]{1,12}")
_CREDIT_PATTERN = re.compile(r"[0-9]{1,16}")
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WAIT_PATTERN = re.compile(r"([0-9]{1,9})(ms|s|m)?")
MAX_WAIT_S = 300.0  # seconds that a client may wait for records by `?wait=`
# Milliseconds by which a start may be older than the route's history: the clocks of clients differ,
# and a request takes time.
HISTORY_SLACK_MS = 5_000

T = TypeVar("T")
History = Literal["none", "all"] | float


class StartRequest(NamedTuple):
    """Where a stream starts and ends.

    Attributes:
        token_error: Why the resume token cannot be parsed, if the client is an EventSource, which
            could not read an error response. Its stream starts without the token.
    """

    start: StreamStart
    token_error: TokenError | None


def get_query_pairs(request: HTTPConnection) -> Sequence[tuple[str, str]]:
    # Most requests have no query, and this check spares them 2.5 us.
    return request.query_params.multi_items() if request.scope["query_string"] else ()


def is_event_source(request: HTTPConnection) -> bool:
    """Return whether an EventSource asks: any response but 200 ends it for good.

    Browsers' EventSource and libraries on fetch send Fetch Metadata; programs with an HTTP client
    of their own do not.
    """
    headers = request.headers
    accepts = "text/event-stream" in headers.get("accept", "")
    has_fetch_metadata = "sec-fetch-mode" in headers
    return accepts and (has_fetch_metadata or headers.get("user-agent", "").startswith("Mozilla/"))


def parse_start_request(
    request: HTTPConnection, *, default: Literal["live", "earliest"], history: History
) -> StartRequest:
    """Parse where a stream starts and ends.

    Raises:
        RequestError: 400 for a parameter that cannot be parsed, 403 for a start beyond `history`.
        TokenError: The resume token cannot be parsed, and the client can read the error.
    """
    if not request.scope["query_string"] and "last-event-id" not in request.headers:
        # 0.7 us; parsing takes 6 us to find that there is nothing.
        return _build_default_start(_limit_origin(default, history))
    token, token_error = _parse_token(request)
    # A client that resumes repeats the `?from=` of its first request, which may lie beyond the
    # history by now: it is not looked at, and the hub limits the age of the token instead.
    origin = (
        None if token else _parse_single(request, "from", lambda text: _parse_origin(text, history))
    )
    until, count = _parse_until(request)
    credit = _parse_single(request, "credit", _parse_credit)
    origin = origin if origin is not None else _limit_origin(default, history)
    start = StreamStart(
        token, origin, until, count, credit, max_age=_get_max_age(history) if token else None
    )
    return StartRequest(start, token_error)


def get_oldest_origin(history: History) -> Literal["live", "earliest"] | int:
    """Return where a client starts that asks for more than the history, but reads no errors."""
    return _limit_origin("earliest", history)


@lru_cache(64)
def _build_default_start(origin: Literal["live", "earliest"] | int) -> StartRequest:
    return StartRequest(StreamStart(origin=origin), None)


def get_wait(request: HTTPConnection) -> float | None:
    """Return `?wait=` in seconds, or None if the request asks for a stream."""
    return _parse_single(request, "wait", _parse_wait)


def wants_positions(request: HTTPConnection) -> bool:
    """Return whether `?positions` is requested, without a value or with a true one."""
    values = [value for name, value in get_query_pairs(request) if name == "positions"]
    if len(values) > 1:
        raise build_bad_request(f"?positions= is given {len(values)} times; give it once")
    text = values[0].lower() if values else "false"
    if text not in ("", "true", "false", "1", "0"):
        raise build_bad_request(f"?positions={text[:64]} is not understood; use true or false")
    return text in ("", "true", "1")


def _parse_token(request: HTTPConnection) -> tuple[ResumeToken | None, TokenError | None]:
    """Return the resume token, or the error of one that an EventSource sent."""
    text = request.headers.get("last-event-id") or _parse_single(request, "lastEventId", str)
    if not text:
        return None, None
    try:
        return tokens.parse_token(text), None
    except TokenError as exc:
        # Browsers send the header on their own after a reconnect, and pages the parameter after a
        # reload, so users can correct nothing.
        if is_event_source(request):
            return None, exc
        raise


def _parse_origin(text: str, history: History) -> Literal["live", "earliest"] | int:
    """Parse `?from=`; a time is milliseconds since 1970."""
    if text in ("live", "latest"):
        return "live"
    oldest = _get_oldest_ms(history)
    if text == "earliest":
        return _limit_origin("earliest", history)
    at = _parse_time(text, "from")
    if at is None:
        return "live"
    if oldest is None or at < oldest - HISTORY_SLACK_MS:
        back = "does not go back at all" if history == "none" else f"goes back {history:g} s"
        raise RequestError(403, "History is limited", f"this route {back}; ask for less of it")
    return at


def _limit_origin(
    origin: Literal["live", "earliest"], history: History
) -> Literal["live", "earliest"] | int:
    """Return the origin, or the oldest one that the route allows if that is later."""
    if origin == "live" or history == "all":
        return origin
    oldest = _get_oldest_ms(history)
    return "live" if oldest is None else oldest


def _get_max_age(history: History) -> float | None:
    """Return how old a position a token may resume from, in seconds; None for any age."""
    if history == "all":
        return None
    return 0.0 if history == "none" else history


def _get_oldest_ms(history: History) -> int | None:
    """Return the oldest start in milliseconds since 1970; None if the route has no history."""
    if history == "all":
        return 0
    return None if history == "none" else now_ms() - int(history * 1000)


def _parse_until(request: HTTPConnection) -> tuple[Literal["latest"] | int | None, int | None]:
    """Return `?until=` as a time (milliseconds since 1970) or "latest", and as a count."""
    text = _parse_single(request, "until", str)
    if text is None or text == "latest":
        return ("latest" if text else None), None
    # Thirteen digits are a time.
    if _COUNT_PATTERN.fullmatch(text):
        if int(text) == 0:
            raise build_bad_request("?until=0 asks for no record at all; ask for one or more")
        return None, int(text)
    at = _parse_time(text, "until")
    return ("latest" if at is None else at), None


def _parse_credit(text: str) -> int:
    if not _CREDIT_PATTERN.fullmatch(text):
        raise build_bad_request(
            f"?credit={text[:64]} is not a number of records; leave it out for no limit"
        )
    return int(text)


def _parse_wait(text: str) -> float:
    match = _WAIT_PATTERN.fullmatch(text)
    if match is None:
        raise build_bad_request(f"?wait={text[:64]} is not understood; use 30s, 500ms, 5m or 0")
    seconds = int(match[1]) * _UNIT_SECONDS[match[2] or "s"]
    if seconds > MAX_WAIT_S:
        raise build_bad_request(f"?wait={text} is longer than 5m; ask again after less")
    return seconds


def _parse_time(text: str, name: str) -> int | None:
    """Return a time in milliseconds since 1970; None for now, by a clock that is ahead."""
    ago = _AGO_PATTERN.fullmatch(text)
    if ago is not None:
        return max(0, now_ms() - int(int(ago[1]) * _UNIT_SECONDS[ago[2]] * 1000))
    try:
        at = parse_time(text)
    except ValueError as exc:
        alternatives = "live, earliest" if name == "from" else "latest, a number of records"
        problem = str(exc).replace("use ", f"use {alternatives}, -5m, ")
        raise build_bad_request(f"?{name}={text[:64]} {problem}") from None
    ahead_ms = at - now_ms()
    if ahead_ms > CLOCK_SLACK_MS:
        advice = "leave it out to begin now" if name == "from" else "end at latest"
        raise build_bad_request(f"?{name}={text[:64]} lies in the future; {advice}")
    return at if ahead_ms <= 0 else None


def _parse_single(request: HTTPConnection, name: str, parse: Callable[[str], T]) -> T | None:
    """Return a parsed parameter that may be given once; None if it is absent or empty."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise build_bad_request(f"?{name}= is given {len(values)} times; give it once")
    return parse(values[0]) if values and values[0] else None


def now_ms() -> int:
    return int(time.time() * 1000)
