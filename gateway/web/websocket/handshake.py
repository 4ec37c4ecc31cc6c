"""The handshake of a WebSocket (RFC 6455 4.2): the library's, one object for all connections.

A refusal is a problem (RFC 9457), as everywhere. Nothing refers to an earlier message in what is
compressed: what all clients share could not, and a window kept for each client would cost it 40 KB.

The requests that browsers and most libraries send are answered here at once, in 2.3 us; the
library, which is asked of all others, takes 13, and as much to be told of them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

from websockets.datastructures import Headers
from websockets.extensions.permessage_deflate import (
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike
from websockets.utils import accept_key

from gateway.wire.websocket import WINDOW_BITS

WEBSOCKET_VERSION = "13"

# websockets logs each handshake with its query, where tokens stand; of these only what went
# wrong is of interest.
quiet_logger = logging.getLogger(f"{__name__}.quiet")
quiet_logger.setLevel(logging.WARNING)


class UpgradeRequest(NamedTuple):
    """A request to upgrade. target: as it came. headers: their names in lower case."""

    method: str
    target: str
    version: str
    headers: Sequence[tuple[bytes, bytes]]

    def to_library_request(self) -> Request:
        """As the library has it."""
        named = [(name.decode(), value.decode("latin-1")) for name, value in self.headers]
        return Request(self.target, Headers(named), self.method, f"HTTP/{self.version}")


class AcceptedHandshake(NamedTuple):
    """What holds for a connection whose handshake is right.

    head:    of the answer, without a date and the blank line.
    deflate: the client reads the compressed frames that all share.
    window:  bits of the window of what it compresses itself; 0 if it does not.
    """

    head: bytes
    deflate: bool = False
    window_bits: int = 0


_RESPONSE_HEAD = (
    "HTTP/1.1 101 Switching Protocols\r\n"
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n"
)
_KEY_PATTERN = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")  # 16 bytes
_CONNECTION_VALUES = {b"upgrade", b"keep-alive, upgrade"}  # Chromium's, Firefox's
_HEADER_PREFIX = b"sec-websocket-"
_CHECKED_HEADERS = {b"connection", b"upgrade", b"origin"} | {
    _HEADER_PREFIX + each for each in (b"version", b"key", b"protocol", b"extensions")
}


class Handshake(ServerProtocol):
    """See the module. compression: permessage-deflate is agreed to."""

    def __init__(self, *, compression: bool) -> None:
        deflate = ServerPerMessageDeflateFactory(
            server_no_context_takeover=True,
            client_no_context_takeover=True,
            server_max_window_bits=WINDOW_BITS,
            client_max_window_bits=WINDOW_BITS,
        )
        super().__init__(extensions=[deflate] if compression else [], logger=quiet_logger)

    def negotiate(self, request: UpgradeRequest) -> AcceptedHandshake | Response:
        """What is agreed on, or why nothing is. Nothing of it is kept here."""
        key = self._get_plain_key(request)
        if key is not None:
            return AcceptedHandshake((_RESPONSE_HEAD % accept_key(key.decode())).encode())
        response = self.accept(request.to_library_request())
        extensions, self.extensions = self.extensions, []
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return response
        del response.headers["Date"]
        head = response.serialize().removesuffix(b"\r\n")
        for each in extensions:
            if isinstance(each, PerMessageDeflate):
                wide = each.local_max_window_bits >= WINDOW_BITS
                return AcceptedHandshake(head, wide, each.remote_max_window_bits)
        return AcceptedHandshake(head)

    def _get_plain_key(self, request: UpgradeRequest) -> bytes | None:
        """The key, of a request in which nothing needs a second look."""
        found: dict[bytes, bytes] = {}
        for name, value in request.headers:
            if name in _CHECKED_HEADERS:
                if name in found:
                    return None
                found[name] = value
        if request.method != "GET" or request.version != "1.1":
            return None
        if found.get(b"connection", b"").lower() not in _CONNECTION_VALUES:
            return None
        if found.get(b"upgrade", b"").lower() != b"websocket":
            return None
        if (
            found.get(_HEADER_PREFIX + b"version") != WEBSOCKET_VERSION.encode()
            or _HEADER_PREFIX + b"protocol" in found
        ):
            return None
        if self.available_extensions and _HEADER_PREFIX + b"extensions" in found:
            return None
        key = found.get(_HEADER_PREFIX + b"key", b"")
        return key if _KEY_PATTERN.fullmatch(key) else None

    def accept(self, request: Request) -> Response:
        versions = request.headers.get_all("Sec-WebSocket-Version")
        if versions != [WEBSOCKET_VERSION] and request.method == "GET":
            response = self.reject(426, f"WebSocket is spoken in version {WEBSOCKET_VERSION} here")
            response.headers["Upgrade"] = "websocket"
            return response
        return super().accept(request)

    def reject(self, status: StatusLike, text: str) -> Response:
        response = super().reject(status, text)
        if status == HTTPStatus.UPGRADE_REQUIRED:  # RFC 6455 4.4
            response.headers["Sec-WebSocket-Version"] = WEBSOCKET_VERSION
        known = HTTPStatus(status)
        detail = text.partition("\n")[0].strip() or known.description or known.phrase
        told = {"title": known.phrase, "status": known.value, "detail": detail}
        response.body = json.dumps(told).encode()
        for name, value in (
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(response.body))),
        ):
            del response.headers[name]
            response.headers[name] = value
        response.headers["Cache-Control"] = "no-store"
        return response


HANDSHAKES = {each: Handshake(compression=each) for each in (False, True)}
"""By whether compression is configured."""
