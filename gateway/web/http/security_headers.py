"""Headers that forbid browsers to misuse a response.

A browser must not guess the media type of a response, run what is in it, show it in a frame of
another site, or send its URL, which may hold a token, to the next site.

Scripts get no Content-Security-Policy. A SharedWorker would be bound by the policy of its script's
response, although it connects for pages that may have another policy.
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
"""Headers of a page whose scripts and styles are separate files, and which connects to its own
gateway. Responses of data have them too, since a browser may show such a response as a page, and
streams can be tried in that page's console."""

_DATA_MEDIA_TYPES = (
    b"application/json",
    b"application/problem+json",
    b"application/openmetrics",
    b"text/plain",
)


def add_security_headers(send: Send, *, varies_by_origin: bool) -> Send:
    """Return a `send` that adds these headers to a response that does not have them."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower(): value for name, value in headers}
            defaults = (
                _RAW_PAGE_HEADERS
                if present.get(b"content-type", b"").startswith(_DATA_MEDIA_TYPES)
                else _RAW_PRIVATE_HEADERS
            )
            headers += [(name, value) for name, value in defaults if name not in present]
            if varies_by_origin and b"origin" not in present.get(b"vary", b"").lower():
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
