"""Keep the requests of a long-lived HTTP client apart: no data of one becomes part of another.

No cookies are kept: the session of one service would go to another one on the same host, and names
that are new each time would collect until a server refuses the size of a request.

A connection with bytes behind a response is not used again. They would be taken for the answer to
the next request: those of a server that answers twice, or whose Content-Length is too small.
httpcore notices bytes that come later, but not those that it has read already, which only its
internals show.

Nothing is decompressed. httpx decompresses a whole read at once, and a few KB that are gzip of gzip
fill the memory before anybody can count them: a compressed response is an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx  # takes 0.1 s: import this module where a request is sent

from gateway.errors import GatewayError
from gateway.internals import Internals, find_missing

INTERNALS = (
    Internals(
        "httpx._transports.default",
        "AsyncResponseStream",
        state={"__init__": "_httpcore_stream"},
    ),
    Internals("httpcore._async.connection_pool", "PoolByteStream", state={"__init__": "_stream"}),
    Internals(
        "httpcore._async.http11", "HTTP11ConnectionByteStream", state={"__init__": "_connection"}
    ),
    Internals(
        "httpcore._async.http11",
        "AsyncHTTP11Connection",
        methods={"aclose": ""},
        state={"__init__": "_h11_state"},
    ),
)


class StrictTransport(httpx.AsyncHTTPTransport):
    """The HTTP/1.1 connections of one client; see the module.

    Raises:
        GatewayError: This httpx lacks the internals that are used.
    """

    def __init__(self, **options: Any) -> None:
        _check_internals()
        super().__init__(**options)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        response.stream = _StrictStream(response.stream)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            await response.aclose()
            problem = f"its answer is compressed ({encoding[:40]}), which nobody asked for"
            raise httpx.DecodingError(problem, request=request)
        return response


class _StrictStream(httpx.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        connection = self._stream._httpcore_stream._stream._connection
        has_more = bool(connection._h11_state.trailing_data[0])
        await self._stream.aclose()  # makes the connection idle; nobody can take it before
        if has_more:
            await connection.aclose()


@cache
def _check_internals() -> None:
    if missing := find_missing(INTERNALS):
        raise GatewayError(f"this httpx lacks {', '.join(missing)}; install httpx 0.28")


def create_closed_jar() -> CookieJar:
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
