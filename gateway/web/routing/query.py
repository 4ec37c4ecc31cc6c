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
from gateway.core.token.resume_token import Token
from gateway.errors import RequestError, TokenError
from gateway.hub.reads.resume import Start

_AGO = re.compile(r"-([0-9]{1,9})(ms|s|m|h|d)")
_COUNT = re.compile(r"[0-9]{1,12}")
_CREDIT = re.compile(r"[0-9]{1,16}")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WAIT = re.compile(r"([0-9]{1,9})(ms|s|m)?")
LONGEST_WAIT = 300.0  # seconds
SLACK = 5_000  # milliseconds by which a start may be older than the route's history

T = TypeVar("T")
History = Literal["none", "all"] | float


class Asked(NamedTuple):
    """start, and the error of a token that could not be read by one who cannot hear of it."""

    start: Start
    refused: TokenError | None


def pairs(request: HTTPConnection) -> list[tuple[str, str]]:
    """All of the query, in its order; most have none, and are spared 2.5 us."""
    return request.query_params.multi_items() if request.scope["query_string"] else []


def is_event_source(request: HTTPConnection) -> bool:
    """A browser's EventSource, or a library on fetch: any answer but 200 ends it for good.
    Those who fetch say so (Fetch Metadata), programs with an HTTP client of their own do not."""
    headers = request.headers
    accepts = "text/event-stream" in headers.get("accept", "")
    mode = "sec-fetch-mode" in headers
    return accepts and (mode or headers.get("user-agent", "").startswith("Mozilla/"))


def asked(
    request: HTTPConnection, *, default: Literal["live", "earliest"], history: History
) -> Asked:
    """Raises RequestError 400 and 403, and TokenError for programs."""
    if not request.scope["query_string"] and "last-event-id" not in request.headers:
        return _nothing(_allowed(default, history))  # 0.7 us, 6 to find that there is nothing
    token, refused = _token(request)
    # A time that the route's history has left behind refuses nobody who comes back: how far back
    # that one goes the hub finds out.
    origin = None if token else _one(request, "from", lambda text: _origin(text, history))
    until, count = _until(request)
    credit = _one(request, "credit", _credit)
    origin = origin if origin is not None else _allowed(default, history)
    start = Start(token, origin, until, count, credit, reach=_reach(history) if token else None)
    return Asked(start, refused)


def limit(history: History) -> Literal["live", "earliest"] | int:
    """Where one begins who asked for more than the route's history, and cannot hear of it."""
    return _allowed("earliest", history)


@lru_cache(64)
def _nothing(origin: Literal["live", "earliest"] | int) -> Asked:
    return Asked(Start(origin=origin), None)


def wait(request: HTTPConnection) -> float | None:
    """`?wait=`, in seconds; None for a stream. Raises RequestError 400."""
    return _one(request, "wait", _wait)


def positions(request: HTTPConnection) -> bool:
    """Is `?positions` asked for, with nothing behind it or `=true`? Raises RequestError 400."""
    return _flag("positions", pairs(request))


def is_grouped(asked: Iterable[tuple[str, str]]) -> bool:
    """Return whether the client takes events about many partitions, by `?grouped` in a query.

    Raises:
        RequestError: 400, it is neither there alone nor true or false.
    """
    return _flag("grouped", asked)


def _flag(name: str, asked: Iterable[tuple[str, str]]) -> bool:
    values = [value for each, value in asked if each == name]
    if len(values) > 1:
        raise _bad(f"?{name}= is given {len(values)} times; give it once")
    text = values[0].lower() if values else "false"
    if text not in ("", "true", "false", "1", "0"):
        raise _bad(f"?{name}={text[:64]} is not understood; use true or false")
    return text in ("", "true", "1")


def _token(request: HTTPConnection) -> tuple[Token | None, TokenError | None]:
    header = request.headers.get("last-event-id", "")
    query = _one(request, "lastEventId", str)
    text = header or query
    if not text:
        return None, None
    try:
        return tokens.decode(text), None
    except TokenError as exc:
        if header and is_event_source(request):
            return None, exc
        raise


def _origin(text: str, history: History) -> Literal["live", "earliest"] | int:
    if text in ("live", "latest"):
        return "live"
    oldest = _oldest(history)
    if text == "earliest":
        return _allowed("earliest", history)
    at = _time(text, "from")
    if at > now():
        raise _bad(f"?from={text} lies in the future; leave it out to begin now")
    if oldest is None or at < oldest - SLACK:
        back = "does not go back at all" if history == "none" else f"goes back {history:g} s"
        raise RequestError(403, "History is limited", f"this route {back}; ask for less of it")
    return at


def _allowed(
    origin: Literal["live", "earliest"], history: History
) -> Literal["live", "earliest"] | int:
    """As far back as the route lets anyone go."""
    if origin == "live" or history == "all":
        return origin
    oldest = _oldest(history)
    return "live" if oldest is None else oldest


def _reach(history: History) -> float | None:
    """Seconds that a token may go back, before what it is granted beyond."""
    if history == "all":
        return None
    return 0.0 if history == "none" else history


def _oldest(history: History) -> int | None:
    """In milliseconds of the epoch; None if the route has no history."""
    if history == "all":
        return 0
    return None if history == "none" else now() - int(history * 1000)


def _until(request: HTTPConnection) -> tuple[Literal["latest"] | int | None, int | None]:
    text = _one(request, "until", str)
    if text is None or text == "latest":
        return ("latest" if text else None), None
    if _COUNT.fullmatch(text):
        if int(text) == 0:
            raise _bad("?until=0 asks for no record at all; ask for one or more")
        return None, int(text)
    at = _time(text, "until")
    if at > now():
        raise _bad(f"?until={text[:64]} lies in the future; end at latest, or after a count")
    return at, None


def _credit(text: str) -> int:
    if not _CREDIT.fullmatch(text):
        raise _bad(f"?credit={text[:64]} is not a number of records; leave it out for no limit")
    return int(text)


def _wait(text: str) -> float:
    given = _WAIT.fullmatch(text)
    if given is None:
        raise _bad(f"?wait={text[:64]} is not understood; use 30s, 500ms, 5m or 0")
    seconds = int(given[1]) * _SECONDS[given[2] or "s"]
    if seconds > LONGEST_WAIT:
        raise _bad(f"?wait={text} is longer than 5m; ask again after less")
    return seconds


def _time(text: str, name: str) -> int:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now() - int(int(ago[1]) * _SECONDS[ago[2]] * 1000))
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0, int(at.timestamp() * 1000))
    except (ValueError, OverflowError):
        words = "live, earliest, " if name == "from" else "latest, a number of records, "
        raise _bad(
            f"?{name}={text[:64]} is not understood; use {words}an ISO 8601 time or -5m"
        ) from None


def _one(request: HTTPConnection, name: str, read: Callable[[str], T]) -> T | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise _bad(f"?{name}= is given {len(values)} times; give it once")
    return read(values[0]) if values and values[0] else None


def _bad(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)


def now() -> int:
    """Milliseconds of the epoch."""
    return int(time.time() * 1000)
