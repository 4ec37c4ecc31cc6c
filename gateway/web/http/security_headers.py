"""What browsers must not do with an answer: guess what it is, run what is in it, show it within a
page of another site, or tell the next site its address, which may hold a token.

A script is told nothing of what it may load: of a SharedWorker its answer would bind the worker,
which connects for pages that may have another policy.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Message, Send

NOSNIFF_HEADERS = {"X-Content-Type-Options": "nosniff"}
PRIVATE_HEADERS = {**NOSNIFF_HEADERS, "Referrer-Policy": "no-referrer"}
PAGE_HEADERS: Mapping[str, str] = {
    **PRIVATE_HEADERS,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}
"""Of a page whose scripts and styles are files beside it, and which connects to its own gateway. Of
data as well, should a browser show it as a page: in a console there streams can be tried."""

_DATA_MEDIA_TYPES = (
    b"application/json",
    b"application/problem+json",
    b"application/openmetrics",
    b"text/plain",
)


def add_security_headers(send: Send, *, varies_by_origin: bool) -> Send:
    """Say so in answers that do not say it themselves. varies: other answers are for pages of other
    sites."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            said = {name.lower(): value for name, value in headers}
            told = (
                _RAW_PAGE_HEADERS
                if said.get(b"content-type", b"").startswith(_DATA_MEDIA_TYPES)
                else _RAW_PRIVATE_HEADERS
            )
            headers += [(name, value) for name, value in told if name not in said]
            if varies_by_origin and b"origin" not in said.get(b"vary", b"").lower():
                headers.append((b"vary", b"Origin"))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


def _encode_headers(headers: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.lower().encode(), value.encode()) for name, value in headers.items())


_RAW_PAGE_HEADERS, _RAW_PRIVATE_HEADERS = (
    _encode_headers(PAGE_HEADERS),
    _encode_headers(PRIVATE_HEADERS),
)
