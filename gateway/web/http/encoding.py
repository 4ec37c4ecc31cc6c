"""Negotiate whether a response is compressed (RFC 9110 12.5.3).

A response is compressed if the client names gzip and wants it at least as much as the plain bytes.
All clients of a view that accept gzip share the deflated bytes. Browsers all accept it, so they get
it by default, unless they have a dictionary (`gateway.web.streams.dictionary`). A route with
`compression: none` opts out, for content whose length must not reveal it (BREACH), or for proxies
that hold compressed responses back.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from starlette.requests import HTTPConnection

from gateway.config import Route
from gateway.core.caches import cache_short
from gateway.hub.wires.gzip import GzipWire
from gateway.hub.wires.wire import Wire
from gateway.wire import gzip

from .accept import iter_ranges

MAX_LOOP_BYTES = 32 * 1024  # larger bodies are compressed outside the event loop
_compressor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gzip")

GZIP_HEADERS = {"Content-Encoding": "gzip"}


def negotiate_wire(
    wire: Wire, route: Route, request: HTTPConnection
) -> tuple[Wire, dict[str, str]]:
    """Return the wire of a stream, compressed or not, and the response headers that name it."""
    return (_create_gzip_wire(wire), GZIP_HEADERS) if _should_gzip(route, request) else (wire, {})


async def negotiate_body(
    body: bytes, route: Route, request: HTTPConnection
) -> tuple[bytes, dict[str, str]]:
    """Return a complete body, compressed or not, and the response headers that name its coding.

    A large body is compressed in a thread, one after the other: a megabyte takes 15 ms, in which
    the event loop would stand still.
    """
    if len(body) < gzip.MIN_COMPRESS_BYTES or not _should_gzip(route, request):
        return body, {}
    if len(body) <= MAX_LOOP_BYTES:
        return gzip.compress(body), GZIP_HEADERS
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_compressor, gzip.compress, body), GZIP_HEADERS


def get_accept_encoding(request: HTTPConnection) -> str:
    """Return `Accept-Encoding` as one value, also if it was sent as several fields."""
    return ",".join(request.headers.getlist("accept-encoding"))


@lru_cache(64)  # channels are looked up by their wire, and the same object is found fastest
def _create_gzip_wire(wire: Wire) -> GzipWire:
    return GzipWire(wire)


@cache_short(256)
def prefers_gzip(header: str) -> bool:
    """Return whether gzip is named, and weighs at least as much as the plain bytes."""
    return _prefers(header, "gzip", "x-gzip")


@cache_short(256)
def prefers_dcz(header: str) -> bool:
    """Return whether `dcz` is named, and weighs at least as much as the plain bytes (RFC 9842)."""
    return _prefers(header, "dcz")


def _prefers(header: str, *codings: str) -> bool:
    """Return whether one of the names of a coding weighs at least as much as the plain bytes.

    The plain bytes weigh what the header says of `identity`, else of `*`, else 0. A client that
    accepts neither gets the plain bytes.
    """
    # Of a coding that is named twice the first weight counts: dict() keeps the last one.
    weights = dict(reversed(list(iter_ranges(header))))
    weight = max(weights.get(coding, 0.0) for coding in codings)
    return weight > 0 and weight >= weights.get("identity", weights.get("*", 0.0))


def _should_gzip(route: Route, request: HTTPConnection) -> bool:
    if route.stream.compression == "none":
        return False
    return prefers_gzip(get_accept_encoding(request))
