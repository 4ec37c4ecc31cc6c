"""Read the times that clients write, and write times, one way wherever they stand.

A time is of RFC 3339, of which seconds or all of the time of day may be left out, and which is UTC
without an offset; or it is milliseconds since 1970 of thirteen digits, which are the years 2001 to
2286. Python's own parser also reads dates of digits alone, so that some of these milliseconds were
dates of the eighteenth century.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

CLOCK_SLACK_MS = 300_000
"""How far a client's clock may be ahead: a time that lies so far in the future means now."""

_EPOCH_MS_PATTERN = re.compile(r"[0-9]{13}")
# The sign of an offset is a space where a "+" of a query was not percent-encoded.
_TIME_PATTERN = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?)([Zz]|[-+ ][0-9]{2}:?[0-9]{2})?)?"
)


def parse_time(text: str) -> int:
    """Return a time in ms since 1970; the message of a ValueError continues the text."""
    if _EPOCH_MS_PATTERN.fullmatch(text):
        return int(text)
    match = _TIME_PATTERN.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date, time_of_day, offset = match.groups(default="")
        offset = offset.upper().replace(" ", "+")
        at = datetime.fromisoformat(f"{date}T{time_of_day or '00:00'}{offset}")
    except ValueError:
        raise ValueError(
            "is no time; use one such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
    seconds = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    if seconds < 0:
        raise ValueError("lies before 1970; use a later time")
    return round(seconds * 1000)


def format_time(milliseconds: float, precision: str = "milliseconds") -> str:
    """Return a time since 1970 as RFC 3339 in UTC.

    Producers stamp their records, and issuers their tokens, with any number. Beyond the years that
    have four digits it is that number of milliseconds.
    """
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds:.0f} ms"
    return at.isoformat(timespec=precision).replace("+00:00", "Z")
