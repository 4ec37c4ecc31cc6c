"""Read a `%2F` in a path as a part of a name, such as that of the group `billing/eu`.

Servers decode the path before it is split at its slashes, so a name with one would be cut in two.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from starlette.convertors import StringConvertor
from starlette.types import ASGIApp, Receive, Scope, Send

_MARK = "\ue02f"  # for private use in Unicode: stands for the slash until the path is split
_ENCODED_SLASH = re.compile(rb"%2f", re.IGNORECASE)


class EncodedSlashMiddleware:
    """Mark the encoded slashes of a path, so that routes do not split at them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_path: bytes = scope.get("raw_path") or b""
        marked = _ENCODED_SLASH.sub(quote(_MARK).encode(), raw_path)
        if marked != raw_path:
            # Not in a copy: who counts requests reads from this one which endpoint answered.
            scope["path"] = unquote(marked.decode("latin-1"))
        await self._app(scope, receive, send)


class NameConvertor(StringConvertor):
    def convert(self, value: str) -> str:
        return value.replace(_MARK, "/")
