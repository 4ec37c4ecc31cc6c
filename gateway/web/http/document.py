"""Serve documents that keep their URL while their content changes: pages, scripts, descriptions.

A document is held in memory as a whole. Browsers revalidate every use of a copy, and mostly get
304 (RFC 9110 15.4.5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response


class StaticDocument:
    """One version of a document, with its headers prepared.

    Created by `web/discovery` and `web/app/assets.py`. It never changes: new content is another
    instance.
    """

    def __init__(
        self, content: bytes, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the headers of a document.

        Args:
            content: The bytes of its only representation.
            media_type: Its media type, without a charset.
            headers: Further headers, for 200 and for 304.
        """
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        # JSON is always UTF-8, and its media type has no charset parameter (RFC 8259 8.1, 11).
        charset = "" if media_type == "application/json" else "; charset=utf-8"
        self._content = content
        self._etag = etag
        # `no-cache` lets a browser keep the copy, but not use it without asking (RFC 9111 5.2.2.4).
        self._validation_headers = {"ETag": etag, "Cache-Control": "no-cache", **(headers or {})}
        self._content_headers = {
            "Content-Type": media_type + charset,
            "X-Content-Type-Options": "nosniff",
        }

    def respond(self, request: Request) -> Response:
        """Return the document, or 304 if the client has this version."""
        if matches_if_none_match(request.headers.get("if-none-match", ""), self._etag):
            return Response(status_code=304, headers=self._validation_headers)
        return Response(
            self._content, headers={**self._validation_headers, **self._content_headers}
        )


def matches_if_none_match(condition: str, etag: str) -> bool:
    """Return whether `If-None-Match` lists an entity tag or is `*` (RFC 9110 13.1.2).

    The comparison is weak, as a proxy that compresses makes tags weak.

    Args:
        condition: The value of the header; empty if the request has none.
        etag: The strong tag, with its quotes.
    """
    tags = [tag.strip().removeprefix("W/") for tag in condition.split(",")]
    return etag in tags or condition.strip() == "*"
