"""What a request prefers (RFC 7240): a later answer, and how long it waits for this one."""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.requests import Request

from gateway.web.routing.query import MAX_WAIT_S

_SECONDS_PATTERN = re.compile(r"[0-9]{1,9}")


class Preferences(NamedTuple):
    """respond_async: an answer that says where to ask later. wait: seconds; None for not said."""

    respond_async: bool = False
    wait_s: float | None = None


def parse_preferences(request: Request) -> Preferences:
    """Those that are known here; what is not understood is passed over, as the RFC has it.

    Between them stands a comma or, as zilla's clients write it, a semicolon.
    """
    told: dict[str, str] = {}
    for part in re.split("[,;]", ",".join(request.headers.getlist("prefer"))):
        name, _, value = part.partition("=")
        told.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = told.get("wait", "")
    seconds = min(float(wait), MAX_WAIT_S) if _SECONDS_PATTERN.fullmatch(wait) else None
    return Preferences("respond-async" in told, seconds)
