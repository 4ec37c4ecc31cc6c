"""Negotiate the handshake of a WebSocket (RFC 6455 4.2), and keep its scope.

One object serves all connections. A refusal is a problem (RFC 9457), as everywhere.

Compression is agreed on without context takeover (RFC 7692 7.1.1): no message refers to an earlier
one. Frames that all clients share could not do so, and a window for each client would hold 40 KB.

The requests of browsers and most libraries are answered here, in 2.3 us. All others go to the
`websockets` library, which takes 13 us, and as much again to convert the request.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection
from starlette.types import Scope
from websockets.datastructures import Headers
from websockets.extensions.permessage_deflate import (
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike
from websockets.utils import accept_key

from gateway.web.access.x509 import CLIENT_EXTENSIONS
from gateway.wire.websocket import WINDOW_BITS

WEBSOCKET_VERSION = "13"

# websockets logs every handshake with its query, which may hold a token. Only its warnings and
# errors are wanted.
quiet_logger = logging.getLogger(f"{__name__}.quiet")
quiet_logger.setLevel(logging.WARNING)


class UpgradeRequest(NamedTuple):
    """A request to upgrade; the names of its headers are in lower case."""

    method: str
    target: str
    version: str
    headers: Sequence[tuple[bytes, bytes]]

    def to_library_request(self) -> Request:
        headers = [(name.decode(), value.decode("latin-1")) for name, value in self.headers]
        return Request(self.target, Headers(headers), self.method, f"HTTP/{self.version}")


class AcceptedHandshake(NamedTuple):
    """The result of a handshake.

    Attributes:
        head: The head of the response, without a date and the blank line at its end.
        deflate: Whether the client can read the compressed frames that all clients share.
        window_bits: The size of the window with which the client compresses its messages, as a
            power of two; 0 if it does not compress.
    """

    head: bytes
    deflate: bool = False
    window_bits: int = 0


_RESPONSE_HEAD = (
    "HTTP/1.1 101 Switching Protocols\r\n"
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n"
)
_KEY_PATTERN = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")  # 16 bytes in base64
_CONNECTION_VALUES = {b"upgrade", b"keep-alive, upgrade"}  # of Chromium, and of Firefox
_HEADER_PREFIX = b"sec-websocket-"
# The headers that decide a handshake. A request that has one of them twice goes to the library.
_CHECKED_HEADERS = {b"connection", b"upgrade", b"origin"} | {
    _HEADER_PREFIX + name for name in (b"version", b"key", b"protocol", b"extensions")
}


class Handshake(ServerProtocol):
    """The handshake of a server, with or without permessage-deflate.

    There is one for each, in `HANDSHAKES`. It keeps nothing of a connection: the library's protocol
    is used for its negotiation only.
    """

    def __init__(self, *, compression: bool) -> None:
        deflate = ServerPerMessageDeflateFactory(
            server_no_context_takeover=True,
            client_no_context_takeover=True,
            server_max_window_bits=WINDOW_BITS,
            client_max_window_bits=WINDOW_BITS,
        )
        super().__init__(extensions=[deflate] if compression else [], logger=quiet_logger)

    def negotiate(self, request: UpgradeRequest) -> AcceptedHandshake | Response:
        key = self._get_plain_key(request)
        if key is not None:
            return AcceptedHandshake((_RESPONSE_HEAD % accept_key(key.decode())).encode())
        response = self.accept(request.to_library_request())
        # The library stores what was agreed on in itself. It is reset for the next connection.
        extensions, self.extensions = self.extensions, []
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return response
        del response.headers["Date"]
        head = response.serialize().removesuffix(b"\r\n")
        for extension in extensions:
            if isinstance(extension, PerMessageDeflate):
                # Shared frames refer back up to WINDOW_BITS, which a smaller window cannot read.
                deflate = extension.local_max_window_bits >= WINDOW_BITS
                return AcceptedHandshake(head, deflate, extension.remote_max_window_bits)
        return AcceptedHandshake(head)

    def _get_plain_key(self, request: UpgradeRequest) -> bytes | None:
        """Return the key of a request that is certainly valid and that needs no negotiation.

        None stands for any other, which the library decides.
        """
        checked: dict[bytes, bytes] = {}
        for name, value in request.headers:
            if name in _CHECKED_HEADERS:
                if name in checked:
                    return None
                checked[name] = value
        if request.method != "GET" or request.version != "1.1":
            return None
        if checked.get(b"connection", b"").lower() not in _CONNECTION_VALUES:
            return None
        if checked.get(b"upgrade", b"").lower() != b"websocket":
            return None
        if (
            checked.get(_HEADER_PREFIX + b"version") != WEBSOCKET_VERSION.encode()
            or _HEADER_PREFIX + b"protocol" in checked
        ):
            return None
        if self.available_extensions and _HEADER_PREFIX + b"extensions" in checked:
            return None
        key = checked.get(_HEADER_PREFIX + b"key", b"")
        return key if _KEY_PATTERN.fullmatch(key) else None

    def accept(self, request: Request) -> Response:
        """Return the response of the library; 426 for another version (RFC 6455 4.2.2)."""
        versions = request.headers.get_all("Sec-WebSocket-Version")
        if versions != [WEBSOCKET_VERSION] and request.method == "GET":
            response = self.reject(426, f"WebSocket is spoken in version {WEBSOCKET_VERSION} here")
            response.headers["Upgrade"] = "websocket"
            return response
        return super().accept(request)

    def reject(self, status: StatusLike, text: str) -> Response:
        """Return a response that refuses a request, with a problem as its body."""
        response = super().reject(status, text)
        if status == HTTPStatus.UPGRADE_REQUIRED:  # RFC 6455 4.4
            response.headers["Sec-WebSocket-Version"] = WEBSOCKET_VERSION
        known = HTTPStatus(status)
        detail = text.partition("\n")[0].strip() or known.description or known.phrase
        problem = {"title": known.phrase, "status": known.value, "detail": detail}
        response.body = json.dumps(problem).encode()
        for name, value in (
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(response.body))),
        ):
            del response.headers[name]
            response.headers[name] = value
        response.headers["Cache-Control"] = "no-store"
        return response


HANDSHAKES = {compression: Handshake(compression=compression) for compression in (False, True)}
"""The handshakes, by whether compression is configured."""


_OMITTED_KEYS = {"type", "headers", "extensions"}

# Values that are equal for all connections of a server, and so are kept once.
_interned: dict[Any, Any] = {}


class HandshakeScope:
    """The ASGI scope of one handshake, packed. Owned by the `Session`.

    Guards look at the handshake again whenever a stream is subscribed or changed or a token
    renewed, which is seldom. Until then, a scope with eleven headers would hold 2.7 KB for each
    socket. Packed it holds 0.9 KB, and packing takes 3 us.
    """

    __slots__ = ("_extensions", "_header_lines", "_keys", "_values")

    def __init__(self, scope: Scope) -> None:
        names = tuple(name for name in scope if name not in _OMITTED_KEYS)
        self._keys: tuple[str, ...] = _interned.setdefault(names, names)
        self._values = tuple([_intern(name, scope[name]) for name in names])
        extensions = scope.get("extensions") or {}
        kept = {name: extensions[name] for name in CLIENT_EXTENSIONS if name in extensions}
        self._extensions: dict[str, Any] | None = kept or None
        # One object instead of three a header. Neither names nor values can hold a line break, and
        # names no colon (RFC 9110 5.1, 5.5), so that this can be split again.
        self._header_lines = b"\n".join(
            [b"%b:%b" % (name, value) for name, value in scope["headers"]]
        )

    @property
    def size(self) -> int:
        texts = (value for value in self._values if isinstance(value, (str, bytes)))
        return len(self._header_lines) + sum(map(len, texts))

    @property
    def address(self) -> str:
        """The IP address of the client; empty if it is not known."""
        client = self._values[self._keys.index("client")] if "client" in self._keys else None
        return client[0] if client else ""

    def build_connection(self) -> HTTPConnection:
        """Return the handshake as a new connection, which takes 3 us.

        Of the ASGI extensions it has only those that identify the client.
        """
        lines = self._header_lines.split(b"\n") if self._header_lines else ()
        scope = dict(zip(self._keys, self._values, strict=True))
        headers = [tuple(line.split(b":", 1)) for line in lines]
        scope |= {"type": "websocket", "headers": headers}
        if self._extensions is not None:
            scope["extensions"] = self._extensions
        return HTTPConnection(scope)


def _intern(name: str, value: Any) -> Any:
    return _interned.setdefault(value, value) if name == "server" else value
