"""The media type of a record's value, and headers that make it safe to show.

Whoever wrote the value chose its type, which may be HTML or SVG. A browser must neither guess
another type nor run what the value contains, since it would run on the gateway's origin, with the
cookies of other clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gateway.config import Topic

SAFE_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
}
JSON_MEDIA_TYPE = "application/json"

_TOKEN_PATTERN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # RFC 9110 5.6.2
# Parameters may hold any printable ASCII character, but no line break: the text becomes a header.
_MEDIA_TYPE_PATTERN = re.compile(rf"{_TOKEN_PATTERN}/{_TOKEN_PATTERN}[ \t]*(;[\x20-\x7e]*)?")
_JSON_PATTERN = re.compile(r"[^/;]+/([^;]+\+)?json[ \t]*(;|$)", re.IGNORECASE)
_MEDIA_TYPES_BY_MODEL = {"json": JSON_MEDIA_TYPE, "string": "text/plain; charset=utf-8"}


def get_media_type(headers: Iterable[tuple[str, bytes | None]], topic: Topic) -> str:
    """Return the media type of a record's value.

    The record's `content-type` decides, if it is well-formed; of a value that was decoded, only if
    it is one of JSON. Otherwise the value model of the topic decides.
    """
    for name, content in headers:
        if name.lower() == "content-type" and content:
            media_type = content.decode("latin-1").strip()
            if _MEDIA_TYPE_PATTERN.fullmatch(media_type) and (
                not topic.value.is_decoded or _JSON_PATTERN.match(media_type)
            ):
                return media_type
    # Decoded values, such as Avro, are shown as JSON.
    if topic.value.is_decoded:
        return JSON_MEDIA_TYPE
    return _MEDIA_TYPES_BY_MODEL.get(topic.value.model, "application/octet-stream")
