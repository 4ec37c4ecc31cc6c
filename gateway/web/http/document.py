"""What is served as a whole and keeps its address while it changes: pages, scripts, descriptions.

Every use of a copy is revalidated, and mostly answered with 304 (RFC 9110 15.4.5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response


class StaticDocument:
    """content: the bytes of its only representation. kind: media type, without a charset."""

    def __init__(
        self, content: bytes, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        charset = (
            "" if media_type == "application/json" else "; charset=utf-8"
        )  # RFC 8259 11: has none
        self._content = content
        self._etag = tag
        self._validation_headers = {"ETag": tag, "Cache-Control": "no-cache", **(headers or {})}
        self._content_headers = {
            "Content-Type": media_type + charset,
            "X-Content-Type-Options": "nosniff",
        }

    def respond(self, request: Request) -> Response:
        if matches_if_none_match(request.headers.get("if-none-match", ""), self._etag):
            return Response(status_code=304, headers=self._validation_headers)
        return Response(
            self._content, headers={**self._validation_headers, **self._content_headers}
        )


def matches_if_none_match(condition: str, etag: str) -> bool:
    """Whether `If-None-Match` has the tag, by weak comparison (RFC 9110 13.1.2): a proxy that
    compresses makes tags weak."""
    tags = [each.strip().removeprefix("W/") for each in condition.split(",")]
    return etag in tags or condition.strip() == "*"
