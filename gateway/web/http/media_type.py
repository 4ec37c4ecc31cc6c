"""The media type of a record's value, and the headers of an answer that is one.

Whoever wrote the value chose its type, HTML and SVG as well: a browser must neither guess another
one nor run what is in it, on an origin that has the cookies of others.
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

_TOKEN_PATTERN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE_PATTERN = re.compile(rf"{_TOKEN_PATTERN}/{_TOKEN_PATTERN}[ \t]*(;[\x20-\x7e]*)?")
_MEDIA_TYPES_BY_MODEL = {"json": JSON_MEDIA_TYPE, "string": "text/plain; charset=utf-8"}


def get_media_type(headers: Iterable[tuple[str, bytes | None]], topic: Topic) -> str:
    """As the record's header `content-type` says; else as the model of its topic's values."""
    for name, content in headers:
        if name.lower() == "content-type" and content:
            said = content.decode("latin-1").strip()
            if _MEDIA_TYPE_PATTERN.fullmatch(said):
                return said
    if topic.value.is_decoded:
        return JSON_MEDIA_TYPE
    return _MEDIA_TYPES_BY_MODEL.get(topic.value.model, "application/octet-stream")
