"""Serve documents that keep their URL while their content changes: pages, scripts, descriptions.

A document is held in memory as a whole, also compressed. Browsers revalidate every use of a copy,
and mostly get 304 (RFC 9110 15.4.5). gzip takes the JavaScript module from 40 to 12 kB, brotli
would take it to 11: not worth a dependency.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cached_property

from starlette.requests import Request
from starlette.responses import Response

from gateway.wire.gzip import MIN_COMPRESS_BYTES

from .negotiation import GZIP_HEADERS, get_accept_encoding, prefers_gzip

IMMUTABLE_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}
"""For a URL whose content never changes (RFC 8246)."""


class StaticDocument:
    """One version of a document, with its headers prepared. It never changes."""

    def __init__(
        self, content: bytes, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        digest = hashlib.sha256(content).hexdigest()[:32]
        # JSON is always UTF-8, and its media type has no charset parameter (RFC 8259 8.1, 11).
        charset = "" if media_type == "application/json" else "; charset=utf-8"
        self._content = content
        # A strong tag is of one representation: that in gzip has another one (RFC 9110 8.8.3.3).
        self._etag, self._gzip_etag = f'"{digest}"', f'"{digest}-gzip"'
        self._is_compressible = len(content) >= MIN_COMPRESS_BYTES
        # `no-cache` lets a browser keep the copy, but not use it without asking (RFC 9111 5.2.2.4).
        self._validation_headers = {"Cache-Control": "no-cache", **(headers or {})}
        if self._is_compressible:
            names = [self._validation_headers.get("Vary", ""), "Accept-Encoding"]
            self._validation_headers["Vary"] = ", ".join(filter(None, names))
        self._content_headers = {
            "Content-Type": media_type + charset,
            "X-Content-Type-Options": "nosniff",
        }

    @cached_property
    def _gzip_content(self) -> bytes:
        """The content in gzip, made for the first client that takes it."""
        return gzip.compress(self._content, 9, mtime=0)

    def respond(self, request: Request) -> Response:
        """Return the document, compressed if the client prefers that, or 304 if it has it."""
        content, etag, coding = self._content, self._etag, {}
        if self._is_compressible and prefers_gzip(get_accept_encoding(request)):
            content, etag, coding = self._gzip_content, self._gzip_etag, GZIP_HEADERS
        headers = {"ETag": etag, **self._validation_headers}
        if matches_if_none_match(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, **self._content_headers, **coding})


def matches_if_none_match(condition: str, etag: str) -> bool:
    """Return whether `If-None-Match` lists an entity tag or is `*` (RFC 9110 13.1.2).

    The comparison is weak, as a proxy that compresses makes tags weak.
    """
    tags = [tag.strip().removeprefix("W/") for tag in condition.split(",")]
    return etag in tags or condition.strip() == "*"
