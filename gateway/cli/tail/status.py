"""Report the events of a stream on standard error, and why a response is no stream."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import ssl
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx

from .source import ConnectionLost, StreamEvent, StreamRefused
from .terminal import Colours, escape_controls, paint

MAX_SHOWN_PARTITIONS = 8  # pending partitions that are named


class StatusReporter:
    def __init__(self, *, quiet: bool, colours: Colours) -> None:
        self._quiet = quiet
        self._colours = colours

    def report(self, text: str, tone: str = "dim") -> None:
        """Write a line; its colour is that of the tone. Failures to write are ignored."""
        if not self._quiet:
            with contextlib.suppress(OSError):
                print(
                    paint(f"gateway: {escape_controls(text)}", tone, self._colours), file=sys.stderr
                )

    def report_event(self, event: StreamEvent, data: dict[str, Any]) -> None:
        """Write a line about a control event, except `position` and `end`."""
        match event.name:
            case "begin":
                self.report(_describe_begin(data))
            case "ready":
                note = " (found by time)" if data.get("resolved") == "approximate" else ""
                self.report(
                    f"{_format_partition(data)} is ready at {data.get('offset')}{note}", "good"
                )
            case "partitions-ready":
                self.report(f"{_format_groups(data)} are ready", "good")
            case "partitions-error":
                self.report(f"{_format_groups(data)} cannot be read for now", "bad")
            case "gap":
                self.report(describe_gap(data), "warn")
            case "error":
                self.report(f"{data.get('code')}: {data.get('message')}", "bad")
            case "end" | "position":
                pass
            case _:
                self.report(f"{event.name} {json.dumps(data, ensure_ascii=False)}")


def describe_gap(data: dict[str, Any]) -> str:
    if data.get("topic") is None:
        return f"gap: it is not known what was missed ({data.get('reason')})"
    span = f"from offset {data.get('from')} to {data.get('to')}"
    return f"gap in {_format_partition(data)} {span} ({data.get('reason')})"


def _describe_begin(data: dict[str, Any]) -> str:
    counts = data.get("partitions") or {}
    topics = ", ".join(
        f"{name} ({count} partition{'' if count == 1 else 's'})" for name, count in counts.items()
    )
    pending = [_format_partition(each) for each in data.get("pending") or ()]
    if not pending:
        return f"following {topics}"
    unnamed = len(pending) - MAX_SHOWN_PARTITIONS
    more = f" and {unnamed} more" if unnamed > 0 else ""
    return f"following {topics}; not ready yet: {', '.join(pending[:MAX_SHOWN_PARTITIONS])}{more}"


def _format_groups(data: dict[str, Any]) -> str:
    """Return the topics of an event about several partitions, with how many there are of each."""
    counts: Counter[str] = Counter()
    for group in data.get("topics") or ():
        counts[group.get("topic")] += len(group.get("partitions") or ())
    return ", ".join(f"{count} partitions of {topic}" for topic, count in counts.items())


def _format_partition(data: dict[str, Any]) -> str:
    return f"{data.get('topic')}-{data.get('partition')}"


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
    """Return the error for a response that is not a stream: permanent, or worth another attempt.

    Statuses and `Retry-After` are those of RFC 9110, the JSON of errors that of RFC 9457.

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
