"""Turn a response that is not a stream into an error: permanent, or worth another attempt.

Statuses and `Retry-After` are those of RFC 9110, the JSON of errors that of RFC 9457.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx

from .in_process import ConnectionLost, StreamRefused
from .output import escape_controls

RETRYABLE_STATUSES = (408, 425, 429)  # the 4xx after which another attempt may succeed
MAX_RETRY_AFTER_S = 3600.0  # seconds; a longer Retry-After is shortened to this


def build_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    hint: str = "",
    shows_status: bool = True,
) -> StreamRefused | ConnectionLost:
    """Return the error for a response that is not a stream.

    Args:
        hint: What to append to the message of a 404 that makes no suggestion itself.
        shows_status: Whether the message begins with the status.
    """
    start = f"{status}: " if shows_status else ""
    detail = escape_controls(_parse_detail(body)) or _get_reason_phrase(status)
    if status in RETRYABLE_STATUSES or status >= 500:
        return ConnectionLost(
            f"{start}{detail}", retry_after=parse_retry_after(headers.get("retry-after"))
        )
    has_hint = status == 404 and "did you mean" not in detail
    return StreamRefused(f"{start}{detail}{hint if has_hint else ''}")


def parse_retry_after(text: str | None) -> float | None:
    """Return the seconds of a Retry-After, which is a number or a date; None if it is neither."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(MAX_RETRY_AFTER_S, float(text))
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(MAX_RETRY_AFTER_S, max(0.0, (at - datetime.now(UTC)).total_seconds()))


def describe_cause(exc: BaseException) -> str:
    """Return why a connection failed.

    HTTP libraries wrap the error of the system, so the chain of causes is searched for it.
    """
    cause: BaseException | None = exc
    chain: list[BaseException] = []
    while cause is not None and cause not in chain:
        chain.append(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused ({cause.verify_message}); see --cacert"
        cause = cause.__cause__ or cause.__context__
    for each in chain:
        if isinstance(each, OSError) and each.strerror and each.errno:
            return os.strerror(each.errno) if each.errno > 0 else each.strerror
    return escape_controls(str(exc)) or type(exc).__name__


async def suggest_path(http: httpx.AsyncClient, url: str, path: str) -> str:
    """Return a hint for an unknown path: a similar one of the gateway, else its first ones."""
    try:
        response = await http.get(url, headers={"Accept": "application/json"}, timeout=5)
        paths = [str(path) for stream in response.json()["streams"] for path in stream["paths"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return ""
    close = difflib.get_close_matches(path, [_fill_pattern(each, path) for each in paths], n=1)
    if close:
        return f"; did you mean {escape_controls(close[0])}?"
    return f"; there are {escape_controls(', '.join(paths[:8]))}" if paths else ""


def _fill_pattern(pattern: str, path: str) -> str:
    """Return a pattern whose parameters have the values that a path has in their place."""
    segments = path.split("/")
    return "/".join(
        segments[n] if segment.startswith("{") and n < len(segments) else segment
        for n, segment in enumerate(pattern.split("/"))
    )


def _parse_detail(body: bytes) -> str:
    try:
        problem = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(problem, dict):
        return ""
    return str(problem.get("detail") or problem.get("title") or "")


def _get_reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "the response is not a stream"
