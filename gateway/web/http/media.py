"""The media type of a record's value, and the headers of an answer that is one.

Whoever wrote the value chose its type, HTML and SVG as well: a browser must neither guess another
one nor run what is in it, on an origin that has the cookies of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gateway.config import Topic

SAFE: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
}
JSON = "application/json"

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA = re.compile(rf"{_TOKEN}/{_TOKEN}[ \t]*(;[\x20-\x7e]*)?")
_OF_MODEL = {"json": JSON, "string": "text/plain; charset=utf-8"}


def media_of(headers: Iterable[tuple[str, bytes | None]], topic: Topic) -> str:
    """As the record's header `content-type` says; else as the model of its topic's values."""
    for name, content in headers:
        if name.lower() == "content-type" and content:
            said = content.decode("latin-1").strip()
            if _MEDIA.fullmatch(said):
                return said
    if topic.value.decodes:
        return JSON
    return _OF_MODEL.get(topic.value.model, "application/octet-stream")
