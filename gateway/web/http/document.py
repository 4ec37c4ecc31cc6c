"""Serve documents that keep their URL while their content changes: pages, scripts, records.

A document is held in memory as a whole, also compressed. Browsers revalidate every use of a copy,
and mostly get 304 (RFC 9110 15.4.5). gzip takes the JavaScript module from 40 to 12 kB, brotli
would take it to 11: not worth a dependency.

The entity tag of a record says which one is shown, and how. Offsets are not used twice in a topic,
so equal tags mean equal bytes: they are strong tags (RFC 9110 8.8.1). The same record shown with
other fields or in another format is another representation and has another tag. Conditions of
writes compare the record alone.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cached_property, lru_cache
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import Record
from gateway.hub.fanout.view import View
from gateway.web.http.negotiation import GZIP_HEADERS, get_accept_encoding, prefers_gzip
from gateway.wire.gzip import MIN_COMPRESS_BYTES

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


def build_record_id(record: Record, topic_id: str) -> str:
    """Return a text that identifies a record among all records of its topic's name.

    It includes the leader epoch, as an unclean leader election may assign an offset again, and the
    topic id, as the topic may be deleted and created again.
    """
    return f"{record.tp.partition}.{record.offset}.{record.epoch}.{topic_id}"


def build_etag(record: Record, topic_id: str, view: View) -> str:
    """Return the strong entity tag of a record as a view shows it."""
    record_id = build_record_id(record, topic_id)
    if view.fields or view.format != "value":
        return f'"{record_id}/{_hash_representation(view.format, view.binary, view.fields)}"'
    return f'"{record_id}"'


@lru_cache(256)  # routes and clients choose among few representations
def _hash_representation(format: str, binary: str, fields: tuple[str, ...]) -> str:
    """Return 128 bits of a hash, in hexadecimal.

    They do not collide, neither by chance nor by a client's choice of fields.
    """
    return sha256(repr((format, binary, fields)).encode()).hexdigest()[:32]


def lists_record(condition: str, record_id: str | None, *, weakly: bool = False) -> bool:
    """Return whether `If-Match` or `If-None-Match` lists a record, in any representation.

    Weak tags match only if `weakly`, as in `If-None-Match` (RFC 9110 13.1.2).
    """
    if condition.strip() == "*":
        return record_id is not None
    tags = [tag.strip() for tag in condition.split(",")]
    if weakly:
        tags = [tag.removeprefix("W/") for tag in tags]
    return record_id is not None and any(
        tag[:1] == tag[-1:] == '"' and tag[1:-1].partition("/")[0] == record_id for tag in tags
    )
