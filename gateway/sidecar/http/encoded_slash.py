"""Read a `%2F` in a path as a part of a name, such as that of the group `billing/eu`.

Servers decode the path before it is split at its slashes, so a name with one would be cut in two.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.convertors import StringConvertor
from starlette.types import ASGIApp, Receive, Scope, Send

_MARK = "\ue02f"  # for private use in Unicode; followed by a digit that says what it stands for
_SLASH, _ITSELF = f"{_MARK}0", f"{_MARK}1"
_ENCODED_SLASH = re.compile(rb"%2f", re.IGNORECASE)


class EncodedSlashMiddleware:
    """Mark the encoded slashes of a path, so that routes do not split at them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = _ENCODED_SLASH.split(scope.get("raw_path") or b"")
        if len(pieces) > 1 or _MARK in scope.get("path", ""):
            texts = (unquote(piece.decode("latin-1")) for piece in pieces)
            # Not in a copy: who counts requests reads from this one which endpoint answered.
            scope["path"] = _SLASH.join(text.replace(_MARK, _ITSELF) for text in texts)
        await self._app(scope, receive, send)


class NameConvertor(StringConvertor):
    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/").replace(_ITSELF, _MARK)
