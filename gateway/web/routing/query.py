"""What a request asks for: where to start, where to end, which token to go on from.

`Last-Event-ID` beats `?lastEventId=`, and both beat `?from=`. Times: ISO 8601 (without an
offset they are UTC), or back from now as in `-5m`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from starlette.requests import HTTPConnection

from gateway.core.token import resume_token as tokens
from gateway.core.token.resume_token import ResumeToken
from gateway.errors import RequestError, TokenError
from gateway.hub.reads.stream_start import StreamStart

_AGO_PATTERN = re.compile(r"-([0-9]{1,9})(ms|s|m|h|d)")
_COUNT_PATTERN = re.compile(r"[0-9]{1,12}")
_CREDIT_PATTERN = re.compile(r"[0-9]{1,16}")
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WAIT_PATTERN = re.compile(r"([0-9]{1,9})(ms|s|m)?")
MAX_WAIT_S = 300.0  # seconds
HISTORY_SLACK_MS = 5_000  # milliseconds by which a start may be older than the route's history

T = TypeVar("T")
History = Literal["none", "all"] | float


class StartRequest(NamedTuple):
    """start, and the error of a token that could not be read by one who cannot hear of it."""

    start: StreamStart
    token_error: TokenError | None


def get_query_pairs(request: HTTPConnection) -> list[tuple[str, str]]:
    """All of the query, in its order; most have none, and are spared 2.5 us."""
    return request.query_params.multi_items() if request.scope["query_string"] else []


def is_event_source(request: HTTPConnection) -> bool:
    """A browser's EventSource, or a library on fetch: any answer but 200 ends it for good.
    Those who fetch say so (Fetch Metadata), programs with an HTTP client of their own do not."""
    headers = request.headers
    accepts = "text/event-stream" in headers.get("accept", "")
    mode = "sec-fetch-mode" in headers
    return accepts and (mode or headers.get("user-agent", "").startswith("Mozilla/"))


def parse_start_request(
    request: HTTPConnection, *, default: Literal["live", "earliest"], history: History
) -> StartRequest:
    """Raises RequestError 400 and 403, and TokenError for programs."""
    if not request.scope["query_string"] and "last-event-id" not in request.headers:
        return _build_default_start(
            _limit_origin(default, history)
        )  # 0.7 us, 6 to find that there is nothing
    token, refused = _parse_token(request)
    # A time that the route's history has left behind refuses nobody who comes back: how far back
    # that one goes the hub finds out.
    origin = (
        None if token else _parse_single(request, "from", lambda text: _parse_origin(text, history))
    )
    until, count = _parse_until(request)
    credit = _parse_single(request, "credit", _parse_credit)
    origin = origin if origin is not None else _limit_origin(default, history)
    start = StreamStart(
        token, origin, until, count, credit, max_age=_get_max_age(history) if token else None
    )
    return StartRequest(start, refused)


def get_oldest_origin(history: History) -> Literal["live", "earliest"] | int:
    """Where one begins who asked for more than the route's history, and cannot hear of it."""
    return _limit_origin("earliest", history)


@lru_cache(64)
def _build_default_start(origin: Literal["live", "earliest"] | int) -> StartRequest:
    return StartRequest(StreamStart(origin=origin), None)


def get_wait(request: HTTPConnection) -> float | None:
    """`?wait=`, in seconds; None for a stream. Raises RequestError 400."""
    return _parse_single(request, "wait", _parse_wait)


def wants_positions(request: HTTPConnection) -> bool:
    """Is `?positions` asked for, with nothing behind it or `=true`? Raises RequestError 400."""
    return _parse_flag("positions", get_query_pairs(request))


def is_grouped(query_pairs: Iterable[tuple[str, str]]) -> bool:
    """Return whether the client takes events about many partitions, by `?grouped` in a query.

    Raises:
        RequestError: 400, it is neither there alone nor true or false.
    """
    return _parse_flag("grouped", query_pairs)


def _parse_flag(name: str, query_pairs: Iterable[tuple[str, str]]) -> bool:
    values = [value for each, value in query_pairs if each == name]
    if len(values) > 1:
        raise _build_bad_request(f"?{name}= is given {len(values)} times; give it once")
    text = values[0].lower() if values else "false"
    if text not in ("", "true", "false", "1", "0"):
        raise _build_bad_request(f"?{name}={text[:64]} is not understood; use true or false")
    return text in ("", "true", "1")


def _parse_token(request: HTTPConnection) -> tuple[ResumeToken | None, TokenError | None]:
    header = request.headers.get("last-event-id", "")
    query = _parse_single(request, "lastEventId", str)
    text = header or query
    if not text:
        return None, None
    try:
        return tokens.parse_token(text), None
    except TokenError as exc:
        if header and is_event_source(request):
            return None, exc
        raise


def _parse_origin(text: str, history: History) -> Literal["live", "earliest"] | int:
    if text in ("live", "latest"):
        return "live"
    oldest = _get_oldest_ms(history)
    if text == "earliest":
        return _limit_origin("earliest", history)
    at = _parse_time(text, "from")
    if at > now_ms():
        raise _build_bad_request(f"?from={text} lies in the future; leave it out to begin now")
    if oldest is None or at < oldest - HISTORY_SLACK_MS:
        back = "does not go back at all" if history == "none" else f"goes back {history:g} s"
        raise RequestError(403, "History is limited", f"this route {back}; ask for less of it")
    return at


def _limit_origin(
    origin: Literal["live", "earliest"], history: History
) -> Literal["live", "earliest"] | int:
    """As far back as the route lets anyone go."""
    if origin == "live" or history == "all":
        return origin
    oldest = _get_oldest_ms(history)
    return "live" if oldest is None else oldest


def _get_max_age(history: History) -> float | None:
    """Seconds that a token may go back, before what it is granted beyond."""
    if history == "all":
        return None
    return 0.0 if history == "none" else history


def _get_oldest_ms(history: History) -> int | None:
    """In milliseconds of the epoch; None if the route has no history."""
    if history == "all":
        return 0
    return None if history == "none" else now_ms() - int(history * 1000)


def _parse_until(request: HTTPConnection) -> tuple[Literal["latest"] | int | None, int | None]:
    text = _parse_single(request, "until", str)
    if text is None or text == "latest":
        return ("latest" if text else None), None
    if _COUNT_PATTERN.fullmatch(text):
        if int(text) == 0:
            raise _build_bad_request("?until=0 asks for no record at all; ask for one or more")
        return None, int(text)
    at = _parse_time(text, "until")
    if at > now_ms():
        raise _build_bad_request(
            f"?until={text[:64]} lies in the future; end at latest, or after a count"
        )
    return at, None


def _parse_credit(text: str) -> int:
    if not _CREDIT_PATTERN.fullmatch(text):
        raise _build_bad_request(
            f"?credit={text[:64]} is not a number of records; leave it out for no limit"
        )
    return int(text)


def _parse_wait(text: str) -> float:
    given = _WAIT_PATTERN.fullmatch(text)
    if given is None:
        raise _build_bad_request(f"?wait={text[:64]} is not understood; use 30s, 500ms, 5m or 0")
    seconds = int(given[1]) * _UNIT_SECONDS[given[2] or "s"]
    if seconds > MAX_WAIT_S:
        raise _build_bad_request(f"?wait={text} is longer than 5m; ask again after less")
    return seconds


def _parse_time(text: str, name: str) -> int:
    ago = _AGO_PATTERN.fullmatch(text)
    if ago is not None:
        return max(0, now_ms() - int(int(ago[1]) * _UNIT_SECONDS[ago[2]] * 1000))
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0, int(at.timestamp() * 1000))
    except (ValueError, OverflowError):
        words = "live, earliest, " if name == "from" else "latest, a number of records, "
        raise _build_bad_request(
            f"?{name}={text[:64]} is not understood; use {words}an ISO 8601 time or -5m"
        ) from None


def _parse_single(request: HTTPConnection, name: str, parse: Callable[[str], T]) -> T | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise _build_bad_request(f"?{name}= is given {len(values)} times; give it once")
    return parse(values[0]) if values and values[0] else None


def _build_bad_request(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)


def now_ms() -> int:
    """Milliseconds of the epoch."""
    return int(time.time() * 1000)
