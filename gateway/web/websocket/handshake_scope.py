"""Who opened a WebSocket: the scope of the handshake, packed, for what is asked of it later.

Access is asked again when a stream is chosen or a token renewed, which is seldom; until then a
scope of eleven headers would be 2.7 KB, and this is 0.9, packed in 3 us.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Scope

from gateway.web.http.client_certificate import CLIENT_EXTENSIONS

_OMITTED_KEYS = {"type", "headers", "extensions"}

# Equal for all connections of a server, and so held once.
_interned: dict[Any, Any] = {}


class HandshakeScope:
    """See the module."""

    __slots__ = ("_extensions", "_header_lines", "_keys", "_values")

    def __init__(self, scope: Scope) -> None:
        names = tuple(name for name in scope if name not in _OMITTED_KEYS)
        self._keys: tuple[str, ...] = _interned.setdefault(names, names)
        self._values = tuple([_intern(name, scope[name]) for name in names])
        extensions = scope.get("extensions") or {}
        kept = {name: extensions[name] for name in CLIENT_EXTENSIONS if name in extensions}
        self._extensions: dict[str, Any] | None = kept or None
        # neither has a line break in it, nor the name a colon (RFC 9110 5)
        self._header_lines = b"\n".join(
            [b"%b:%b" % (name, value) for name, value in scope["headers"]]
        )

    @property
    def address(self) -> str:
        """Empty if it is not known."""
        client = self._values[self._keys.index("client")] if "client" in self._keys else None
        return client[0] if client else ""

    def build_connection(self) -> HTTPConnection:
        """As the handshake was, but for `extensions` that say nothing of the client; 3 us."""
        lines = self._header_lines.split(b"\n") if self._header_lines else ()
        scope = dict(zip(self._keys, self._values, strict=True))
        headers = [tuple(line.split(b":", 1)) for line in lines]
        scope |= {"type": "websocket", "headers": headers}
        if self._extensions is not None:
            scope["extensions"] = self._extensions
        return HTTPConnection(scope)


def _intern(name: str, value: Any) -> Any:
    return _interned.setdefault(value, value) if name == "server" else value
