"""What a program asks for, as the hub understands it: where to start and to end, which view."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from gateway.config.types.filters import parse_fields, parse_filter
from gateway.core.token import resume_token as tokens
from gateway.hub.fanout.view import View
from gateway.hub.reads.stream_start import StreamStart

From: TypeAlias = Literal["live", "earliest"] | datetime | timedelta
Until: TypeAlias = Literal["latest"] | datetime | int


def build_view(topics: str | Iterable[str], filters: Any, fields: str | Iterable[str]) -> View:
    """Raises ValueError where there is no topic, or a filter or field cannot be read."""
    named = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not named or not all(named):
        raise ValueError("no topic is named; give one, or several")
    shown = parse_fields(fields if isinstance(fields, str) else list(fields) or None)
    # As `envelope` sees it: a position of the one is of the same view as one of the other.
    return View(named, parse_filter(filters), "envelope", "error", shown)


def build_start(start: From, position: str | None, until: Until | None) -> StreamStart:
    """Raises ValueError for times that cannot be, TokenCorrupt for a position that is none."""
    token = None if position is None else tokens.parse_token(position)
    end: Literal["latest"] | int | None = None
    count = None
    if isinstance(until, int):
        if until < 1 or isinstance(until, bool):
            raise ValueError(f"until={until} asks for no record at all; ask for one or more")
        count = until
    elif until is not None:
        end = "latest" if until == "latest" else _to_past_ms(until, "until")
    return StreamStart(token, _resolve_origin(start), end, count)


def _resolve_origin(start: From) -> Literal["live", "earliest"] | int:
    if isinstance(start, str) and start in ("live", "earliest"):
        return start
    if isinstance(start, timedelta):
        return max(0, _now_ms() - round(abs(start) / timedelta(milliseconds=1)))
    return _to_past_ms(start, "start")


def _to_past_ms(at: object, name: str) -> int:
    """Milliseconds of the epoch."""
    if not isinstance(at, datetime):
        words = "'live', 'earliest', a timedelta" if name == "start" else "'latest', a number"
        raise ValueError(f"{name}={at!r} is not understood; use {words} or a datetime")
    if at.tzinfo is None:
        raise ValueError(f"{name}={at!r} has no timezone; add one, such as tzinfo=datetime.UTC")
    milliseconds = max(0, round(at.timestamp() * 1000))
    if milliseconds > _now_ms():
        raise ValueError(f"{name}={at!r} lies in the future; give a time that was")
    return milliseconds


def _now_ms() -> int:
    return int(time.time() * 1000)
