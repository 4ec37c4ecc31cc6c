"""Keep the requests of a long-lived HTTP client apart, and say in one sentence why one failed.

No cookies are kept: the session of one service would go to another one on the same host, and names
that are new each time would collect until a server refuses the size of a request.

A connection with bytes behind a response is not used again. They would be taken for the answer to
the next request: those of a server that answers twice, or whose Content-Length is too small.
httpcore notices bytes that come later, but not those that it has read already, which only its
internals show.

Nothing is decompressed. httpx decompresses a whole read at once, and a few KB that are gzip of gzip
fill the memory before anybody can count them: a compressed response is an error.

Only `describe_http_failure` words it for issuers, applications and telemetry back ends. The log,
`/health/ready`, `gateway token check` and `gateway check --cluster` show its sentence, which names
no URL, because that may hold data of a client.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from email.utils import parsedate_to_datetime
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


# OpenSSL's codes of certificates of an unknown authority (openssl-verification-options).
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})


HTTP_ERRORS = (
    httpx.HTTPError,
    httpx.InvalidURL,
    OSError,
    ValueError,
    ArithmeticError,
    ExceptionGroup,
)
"""What a request may raise for any URL. anyio groups the errors of several addresses."""


MAX_RETRY_AFTER_S = 3600.0  # a longer Retry-After counts as this


def parse_retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of a Retry-After header of either form (RFC 9110 10.2.3), or 0.0."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal() and text.isascii():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):  # a year of 20 digits overflows
        return 0.0
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S)


def describe_http_failure(exc: BaseException, url: str) -> str:
    """Return the reason of a failed request, as a sentence whose subject is the server."""
    causes = list(_iter_causes(exc))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _describe_certificate(cause)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return (
                "it cannot be reached: it ends the TLS handshake, as a port without TLS does; "
                "correct the port, or write http"
            )
        if isinstance(cause, socket.gaierror):
            return "it cannot be reached: its host name is unknown; correct the URL"
        if isinstance(cause, OSError) and cause.errno:
            text = os.strerror(cause.errno)
            return (
                f"it cannot be reached: {text[0].lower()}{text[1:]}; start it, or correct the URL"
            )
    if isinstance(exc, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        hint = ", as a port with TLS does; try https" if url.startswith("http:") else ""
        return f"it gives no HTTP response{hint}"
    if isinstance(exc, httpx.TransportError) and not isinstance(exc, httpx.UnsupportedProtocol):
        return f"it cannot be reached ({type(exc).__name__})"
    return "it cannot be reached: its URL cannot be used; correct it"


def _describe_certificate(exc: ssl.SSLCertVerificationError) -> str:
    if exc.verify_code in _UNKNOWN_AUTHORITY:
        what = "it has a certificate of an authority that is not trusted here"
        return f"{what}; set SSL_CERT_FILE to a PEM file with this authority"
    message = exc.verify_message or "it is not valid"
    return f"its certificate is refused ({message}); renew it, or correct the URL"


def _iter_causes(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        if isinstance(exc, BaseExceptionGroup):
            for each in exc.exceptions:
                yield from _iter_causes(each)
        exc = exc.__cause__ or exc.__context__
