"""Answers that are no stream: what they say, and whether to ask again (RFC 9110, RFC 9457)."""

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

from .source import ConnectionLost, StreamRefused
from .terminal import escape_controls

RETRYABLE_STATUSES = (408, 425, 429)  # the only 4xx that another attempt may turn into a stream
MAX_RETRY_AFTER_S = 3600.0  # seconds of a Retry-After that are believed


def build_error(
    status: int, headers: Mapping[str, str], body: bytes, *, hint: str = ""
) -> StreamRefused | ConnectionLost:
    """The error for an answer that is no stream. hint: what to say behind a 404."""
    what = escape_controls(_parse_detail(body)) or _get_reason_phrase(status)
    if status in RETRYABLE_STATUSES or status >= 500:
        return ConnectionLost(
            f"{status}: {what}", retry_after=parse_retry_after(headers.get("retry-after"))
        )
    return StreamRefused(f"{status}: {what}{hint if status == 404 else ''}")


def parse_retry_after(text: str | None) -> float | None:
    """Seconds, from a number of them or a date."""
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
    """Why a connection failed: libraries wrap what the system said."""
    found: BaseException | None = exc
    seen: list[BaseException] = []
    while found is not None and found not in seen:
        seen.append(found)
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is refused ({found.verify_message}); see --cacert"
        found = found.__cause__ or found.__context__
    for each in seen:
        if isinstance(each, OSError) and each.strerror and each.errno:
            return os.strerror(each.errno) if each.errno > 0 else each.strerror
    return escape_controls(str(exc)) or type(exc).__name__


async def suggest_path(http: httpx.AsyncClient, url: str, path: str) -> str:
    """What a gateway that lists its streams at `url` has of a similar path; empty if none does."""
    try:
        answer = await http.get(url, headers={"Accept": "application/json"}, timeout=5)
        paths = [str(path) for stream in answer.json()["streams"] for path in stream["paths"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return ""
    close = difflib.get_close_matches(path, [_fill_pattern(each, path) for each in paths], n=1)
    if close:
        return f"; did you mean {escape_controls(close[0])}?"
    return f"; there are {escape_controls(', '.join(paths[:8]))}" if paths else ""


def _fill_pattern(pattern: str, path: str) -> str:
    """/records/{topic} with what stands in this path at the place of its parameters."""
    steps = path.split("/")
    return "/".join(
        steps[n] if step.startswith("{") and n < len(steps) else step
        for n, step in enumerate(pattern.split("/"))
    )


def _parse_detail(body: bytes) -> str:
    try:
        told = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(told, dict):
        return ""
    return str(told.get("detail") or told.get("title") or "")


def _get_reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "an answer that is no stream"
