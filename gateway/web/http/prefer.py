"""Parse the `Prefer` header (RFC 7240): an asynchronous response, and how long to wait."""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.requests import Request

from gateway.web.routing.query import MAX_WAIT_S

_SECONDS_PATTERN = re.compile(r"[0-9]{1,9}")


class Preferences(NamedTuple):
    """The preferences of a request that the gateway honours (RFC 7240 4.1, 4.3)."""

    respond_async: bool = False
    wait_s: float | None = None


def parse_preferences(request: Request) -> Preferences:
    """Return the preferences of a request. Unknown and malformed ones are ignored (RFC 7240 2).

    Preferences are separated by commas or, as zilla's clients write them, by semicolons.
    """
    values: dict[str, str] = {}
    for part in re.split("[,;]", ",".join(request.headers.getlist("prefer"))):
        name, _, value = part.partition("=")
        # Of a preference that is there twice the first one counts (RFC 7240 2).
        values.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = values.get("wait", "")
    seconds = min(float(wait), MAX_WAIT_S) if _SECONDS_PATTERN.fullmatch(wait) else None
    return Preferences("respond-async" in values, seconds)
