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

from .item import Lost, Refused
from .screen import safe

AGAIN = (408, 425, 429)  # the only 4xx that another attempt may turn into a stream
LONGEST = 3600.0  # seconds of a Retry-After that are believed


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, *, hint: str = ""
) -> Refused | Lost:
    """The error for an answer that is no stream. hint: what to say behind a 404."""
    what = safe(_detail(body)) or _phrase(status)
    if status in AGAIN or status >= 500:
        return Lost(f"{status}: {what}", after=retry_after(headers.get("retry-after")))
    return Refused(f"{status}: {what}{hint if status == 404 else ''}")


def retry_after(text: str | None) -> float | None:
    """Seconds, from a number of them or a date."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(LONGEST, float(text))
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(LONGEST, max(0.0, (at - datetime.now(UTC)).total_seconds()))


def cause(exc: BaseException) -> str:
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
    return safe(str(exc)) or type(exc).__name__


async def nearest(http: httpx.AsyncClient, url: str, path: str) -> str:
    """What a gateway that lists its streams at `url` has of a similar path; empty if none does."""
    try:
        answer = await http.get(url, headers={"Accept": "application/json"}, timeout=5)
        paths = [str(path) for stream in answer.json()["streams"] for path in stream["paths"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return ""
    close = difflib.get_close_matches(path, [_filled(each, path) for each in paths], n=1)
    if close:
        return f"; did you mean {safe(close[0])}?"
    return f"; there are {safe(', '.join(paths[:8]))}" if paths else ""


def _filled(pattern: str, path: str) -> str:
    """/records/{topic} with what stands in this path at the place of its parameters."""
    steps = path.split("/")
    return "/".join(
        steps[n] if step.startswith("{") and n < len(steps) else step
        for n, step in enumerate(pattern.split("/"))
    )


def _detail(body: bytes) -> str:
    try:
        told = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(told, dict):
        return ""
    return str(told.get("detail") or told.get("title") or "")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "an answer that is no stream"
