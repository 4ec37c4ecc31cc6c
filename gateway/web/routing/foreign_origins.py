"""Log which pages of other sites were refused, and the option that would let them in.

A browser tells a page only that its request failed. That an origin is missing in `access-control`
is the most frequent cause of a page that shows nothing, and only the gateway knows it.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from starlette.types import Scope

from gateway.web.websocket.handshake import is_same_origin

log = logging.getLogger(__name__)

LISTEN_OPTION = "listen.access-control"  # what applies to routes that have no option of their own
REPEAT_AFTER_S = 3600.0  # seconds after which an origin that is still refused is logged again
MAX_ORIGINS = 200  # refusals that are remembered; beyond that the one logged first is forgotten
MAX_LINES_PER_MINUTE = 10  # of all origins: any client can send any `Origin`
MAX_LOGGED_CHARS = 200  # characters of an origin or a path


class OriginRefusal(NamedTuple):
    """A page that was refused, by an option such as `listen.access-control`.

    `needs_credentials`: the origin is listed, but its browser sends credentials.
    """

    origin: str
    path: str
    option: str
    needs_credentials: bool = False


class ForeignOriginLog:
    """One line for each origin and option, in bounded number and memory."""

    def __init__(self, get_time: Callable[[], float] = time.monotonic) -> None:
        self._get_time = get_time
        self._logged_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._minute = 0.0
        self._lines = 0

    def report(self, refusal: OriginRefusal) -> None:
        """Log a refused page, unless its origin was logged within the last hour."""
        now = self._get_time()
        origin = refusal.origin[:MAX_LOGGED_CHARS]
        key = origin, refusal.option
        if now - self._logged_at.get(key, float("-inf")) < REPEAT_AFTER_S:
            return
        if now - self._minute >= 60.0 or not self._lines:
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines > MAX_LINES_PER_MINUTE:
            if self._lines == MAX_LINES_PER_MINUTE + 1:
                log.warning("pages of more origins are refused; they are logged in a minute again")
            return
        self._logged_at[key] = now
        self._logged_at.move_to_end(key)
        if len(self._logged_at) > MAX_ORIGINS:
            self._logged_at.popitem(last=False)
        if refusal.needs_credentials:
            remedy = "its browser sends credentials, which allow.credentials of %s would permit"
        else:
            remedy = "to allow it, set policy: cross-origin and list it in allow.origins of %s"
            if refusal.option == LISTEN_OPTION:
                remedy += ", or start with --origin"
        log.warning(
            f"a page of %s was refused on %s; {remedy}",
            origin,
            refusal.path[:MAX_LOGGED_CHARS],
            refusal.option,
        )


def is_foreign_request(origin: str, scope: Scope) -> bool:
    """Return whether a request comes from a page of another origin than its own.

    A browser says so in `Sec-Fetch-Site`, also if a proxy in between rewrites `Host`. It sends that
    header only to https and to localhost, so that else the origin is compared with `Host`.
    """
    headers = dict(reversed(scope["headers"]))
    # Of several, which no browser sends, all have to say the same.
    sites = {value for name, value in scope["headers"] if name == b"sec-fetch-site"}
    if sites and sites != {b"none"}:  # that is of requests without an origin
        return sites != {b"same-origin"}
    return not is_same_origin(origin, headers.get(b"host", b"").decode("latin-1"))
