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
from gateway.hub.wires.gzip import GzipWire
from gateway.hub.wires.wire import Wire
from gateway.wire import gzip

from .accept import iter_ranges

GZIP_HEADERS = {"Content-Encoding": "gzip"}


def negotiate_wire(
    wire: Wire, route: Route, request: HTTPConnection
) -> tuple[Wire, dict[str, str]]:
    """The wire of a stream, and the headers that say what it is."""
    return (_create_gzip_wire(wire), GZIP_HEADERS) if _should_gzip(route, request) else (wire, {})


def negotiate_body(
    body: bytes, route: Route, request: HTTPConnection
) -> tuple[bytes, dict[str, str]]:
    """The same of an answer that is there at once; a small one stays as it is."""
    if len(body) < gzip.MIN_COMPRESS_BYTES or not _should_gzip(route, request):
        return body, {}
    return gzip.compress(body), GZIP_HEADERS


@lru_cache(64)
def _create_gzip_wire(wire: Wire) -> GzipWire:
    return GzipWire(wire)


@cache_short(256)
def prefers_gzip(header: str) -> bool:
    """Is gzip named, and worth no less than plain bytes? These are worth what `*` is where they
    are not named, and are what is left to a client that takes nothing."""
    weights = dict(reversed(list(iter_ranges(header))))
    named = max(weights.get("gzip", 0.0), weights.get("x-gzip", 0.0))
    return named > 0 and named >= weights.get("identity", weights.get("*", 0.0))


def _should_gzip(route: Route, request: HTTPConnection) -> bool:
    if route.with_.compression != "gzip":
        return False
    return prefers_gzip(",".join(request.headers.getlist("accept-encoding")))
