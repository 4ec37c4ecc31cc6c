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

VERSION = "13"

# websockets logs each handshake with its query, where tokens stand; of these only what went
# wrong is of interest.
quiet = logging.getLogger(f"{__name__}.quiet")
quiet.setLevel(logging.WARNING)


class Asked(NamedTuple):
    """A request to upgrade. target: as it came. headers: their names in lower case."""

    method: str
    target: str
    version: str
    headers: Sequence[tuple[bytes, bytes]]

    def request(self) -> Request:
        """As the library has it."""
        named = [(name.decode(), value.decode("latin-1")) for name, value in self.headers]
        return Request(self.target, Headers(named), self.method, f"HTTP/{self.version}")


class Agreed(NamedTuple):
    """What holds for a connection whose handshake is right.

    head:    of the answer, without a date and the blank line.
    deflate: the client reads the compressed frames that all share.
    window:  bits of the window of what it compresses itself; 0 if it does not.
    """

    head: bytes
    deflate: bool = False
    window: int = 0


_HEAD = (
    "HTTP/1.1 101 Switching Protocols\r\n"
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n"
)
_KEY = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")  # 16 bytes
_CONNECTIONS = {b"upgrade", b"keep-alive, upgrade"}  # Chromium's, Firefox's
_PREFIX = b"sec-websocket-"
_LOOKED_AT = {b"connection", b"upgrade", b"origin"} | {
    _PREFIX + each for each in (b"version", b"key", b"protocol", b"extensions")
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
        super().__init__(extensions=[deflate] if compression else [], logger=quiet)

    def answer(self, asked: Asked) -> Agreed | Response:
        """What is agreed on, or why nothing is. Nothing of it is kept here."""
        key = self._usual(asked)
        if key is not None:
            return Agreed((_HEAD % accept_key(key.decode())).encode())
        response = self.accept(asked.request())
        extensions, self.extensions = self.extensions, []
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return response
        del response.headers["Date"]
        head = response.serialize().removesuffix(b"\r\n")
        for each in extensions:
            if isinstance(each, PerMessageDeflate):
                wide = each.local_max_window_bits >= WINDOW_BITS
                return Agreed(head, wide, each.remote_max_window_bits)
        return Agreed(head)

    def _usual(self, asked: Asked) -> bytes | None:
        """The key, of a request in which nothing needs a second look."""
        found: dict[bytes, bytes] = {}
        for name, value in asked.headers:
            if name in _LOOKED_AT:
                if name in found:
                    return None
                found[name] = value
        if asked.method != "GET" or asked.version != "1.1":
            return None
        if found.get(b"connection", b"").lower() not in _CONNECTIONS:
            return None
        if found.get(b"upgrade", b"").lower() != b"websocket":
            return None
        if found.get(_PREFIX + b"version") != VERSION.encode() or _PREFIX + b"protocol" in found:
            return None
        if self.available_extensions and _PREFIX + b"extensions" in found:
            return None
        key = found.get(_PREFIX + b"key", b"")
        return key if _KEY.fullmatch(key) else None

    def accept(self, request: Request) -> Response:
        versions = request.headers.get_all("Sec-WebSocket-Version")
        if versions != [VERSION] and request.method == "GET":
            response = self.reject(426, f"WebSocket is spoken in version {VERSION} here")
            response.headers["Upgrade"] = "websocket"
            return response
        return super().accept(request)

    def reject(self, status: StatusLike, text: str) -> Response:
        response = super().reject(status, text)
        if status == HTTPStatus.UPGRADE_REQUIRED:  # RFC 6455 4.4
            response.headers["Sec-WebSocket-Version"] = VERSION
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
