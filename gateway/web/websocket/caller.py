"""Who opened a WebSocket: the scope of the handshake, packed, for what is asked of it later.

Access is asked again when a stream is chosen or a token renewed, which is seldom; until then a
scope of eleven headers would be 2.7 KB, and this is 0.9, packed in 3 us.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Scope

from gateway.web.http.client_certificate import KEPT

_LEFT_OUT = {"type", "headers", "extensions"}

# Equal for all connections of a server, and so held once.
_shared: dict[Any, Any] = {}


class Caller:
    """See the module."""

    __slots__ = ("_extensions", "_head", "_names", "_values")

    def __init__(self, scope: Scope) -> None:
        names = tuple(name for name in scope if name not in _LEFT_OUT)
        self._names: tuple[str, ...] = _shared.setdefault(names, names)
        self._values = tuple([_once(name, scope[name]) for name in names])
        extensions = scope.get("extensions") or {}
        kept = {name: extensions[name] for name in KEPT if name in extensions}
        self._extensions: dict[str, Any] | None = kept or None
        # neither has a line break in it, nor the name a colon (RFC 9110 5)
        self._head = b"\n".join([b"%b:%b" % (name, value) for name, value in scope["headers"]])

    @property
    def address(self) -> str:
        """Empty if it is not known."""
        client = self._values[self._names.index("client")] if "client" in self._names else None
        return client[0] if client else ""

    def connection(self) -> HTTPConnection:
        """As the handshake was, but for `extensions` that say nothing of the client; 3 us."""
        lines = self._head.split(b"\n") if self._head else ()
        scope = dict(zip(self._names, self._values, strict=True))
        headers = [tuple(line.split(b":", 1)) for line in lines]
        scope |= {"type": "websocket", "headers": headers}
        if self._extensions is not None:
            scope["extensions"] = self._extensions
        return HTTPConnection(scope)


def _once(name: str, value: Any) -> Any:
    return _shared.setdefault(value, value) if name == "server" else value
