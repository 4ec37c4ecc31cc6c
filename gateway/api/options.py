"""Turn what a program asks for into what the hub understands: starts, ends and views."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from gateway.config.types.filters import parse_fields, parse_filter
from gateway.core.times import CLOCK_SLACK_MS
from gateway.core.token import resume_token as tokens
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.view import View

From: TypeAlias = Literal["live", "earliest"] | datetime | timedelta
Until: TypeAlias = Literal["latest"] | datetime | int


def build_view(topics: str | Iterable[str], filters: Any, fields: str | Iterable[str]) -> View:
    """Return the view of a subscription.

    Args:
        topics: The name of a topic, or several.
        filters: Filters as in a configuration.
        fields: The parts of the value that are shown, as JSON pointers.

    Raises:
        ValueError: No topic is named, or a filter or field cannot be understood.
    """
    names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not names or not all(names):
        raise ValueError("no topic is named; give one, or several")
    field_paths = parse_fields(fields if isinstance(fields, str) else list(fields) or None)
    # The format `envelope`, so that positions also fit that format on a server, and the reverse.
    return View(names, parse_filter(filters), "envelope", "error", field_paths)


def build_start(start: From, position: str | None, until: Until | None) -> StreamStart:
    """Return where a subscription begins and ends.

    Args:
        start: `live`, `earliest`, a time, or a timedelta back from now.
        position: A resume token, which takes precedence over `start`; None for none.
        until: `latest`, a time, or a number of records; None for no end.

    Raises:
        ValueError: A time or number is not possible.
        TokenCorrupt: The position is not a token.
    """
    token = None if position is None else tokens.parse_token(position)
    end: Literal["latest"] | int | None = None
    count = None
    if isinstance(until, int):
        if until < 1 or isinstance(until, bool):
            raise ValueError(f"until={until} asks for no record at all; ask for one or more")
        count = until
    elif until is not None:
        past_ms = None if until == "latest" else _to_past_ms(until, "until")
        end = "latest" if past_ms is None else past_ms
    return StreamStart(token, _resolve_origin(start), end, count)


def _resolve_origin(start: From) -> Literal["live", "earliest"] | int:
    """Return a start as the hub understands it; times are milliseconds since 1970."""
    if isinstance(start, str) and start in ("live", "earliest"):
        return start
    if isinstance(start, timedelta):
        return max(0, _now_ms() - round(abs(start) / timedelta(milliseconds=1)))
    past_ms = _to_past_ms(start, "start")
    return "live" if past_ms is None else past_ms


def _to_past_ms(at: object, name: str) -> int | None:
    """Return a datetime in milliseconds since 1970; None for one that means now.

    Args:
        at: The value of the argument.
        name: The name of the argument, for messages.

    Raises:
        ValueError: It is not a datetime with a timezone, is in the future, or before 1970.
    """
    if not isinstance(at, datetime):
        alternatives = (
            "'live', 'earliest', a timedelta" if name == "start" else "'latest', a number"
        )
        raise ValueError(f"{name}={at!r} is not understood; use {alternatives} or a datetime")
    if at.tzinfo is None:
        raise ValueError(f"{name}={at!r} has no timezone; add one, such as tzinfo=datetime.UTC")
    milliseconds = round(at.timestamp() * 1000)
    ahead_ms = milliseconds - _now_ms()
    if milliseconds < 0 or ahead_ms > CLOCK_SLACK_MS:
        when = "before 1970" if milliseconds < 0 else "in the future"
        raise ValueError(f"{name}={at!r} lies {when}; give a time that was")
    return milliseconds if ahead_ms <= 0 else None


def _now_ms() -> int:
    return int(time.time() * 1000)
