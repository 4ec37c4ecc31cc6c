"""Say in one sentence why there is no HTTP response from another server, and what to do.

Only `describe_http_failure` words it for issuers, applications and telemetry back ends. The log,
`/health/ready`, `gateway token check` and `gateway check --cluster` show its sentence, which names
no URL, because that may hold data of a client.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator

import httpx  # takes 0.1 s: import this module where a request is sent

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
