"""Whether an answer goes out compressed (RFC 9110 12.5.3).

It does where the client names gzip and wants it no less than what is plain. All clients of a view
that do share what is deflated, so browsers, which all ask for it, get it by default; `none` is
for routes where lengths must not tell of contents (BREACH), or proxies that hold gzip back.
"""

from __future__ import annotations

from functools import lru_cache

from starlette.requests import HTTPConnection

from gateway.config import Route
from gateway.core.short_cache import cache_short
from gateway.hub.wires.gzip import Gzip
from gateway.hub.wires.wire import Wire
from gateway.wire import gzip

from .accept import ranges

GZIP = {"Content-Encoding": "gzip"}


def encoded(wire: Wire, route: Route, request: HTTPConnection) -> tuple[Wire, dict[str, str]]:
    """The wire of a stream, and the headers that say what it is."""
    return (_gzip(wire), GZIP) if _gzips(route, request) else (wire, {})


def whole(body: bytes, route: Route, request: HTTPConnection) -> tuple[bytes, dict[str, str]]:
    """The same of an answer that is there at once; a small one stays as it is."""
    if len(body) < gzip.WORTHWHILE or not _gzips(route, request):
        return body, {}
    return gzip.whole(body), GZIP


@lru_cache(64)
def _gzip(wire: Wire) -> Gzip:
    return Gzip(wire)


@cache_short(256)
def prefers_gzip(header: str) -> bool:
    """Is gzip named, and worth no less than plain bytes? These are worth what `*` is where they
    are not named, and are what is left to a client that takes nothing."""
    weights = dict(reversed(list(ranges(header))))
    named = max(weights.get("gzip", 0.0), weights.get("x-gzip", 0.0))
    return named > 0 and named >= weights.get("identity", weights.get("*", 0.0))


def _gzips(route: Route, request: HTTPConnection) -> bool:
    if route.with_.compression != "gzip":
        return False
    return prefers_gzip(",".join(request.headers.getlist("accept-encoding")))
