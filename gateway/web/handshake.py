"""The handshake of a WebSocket (RFC 6455 4.2): the library's, one object for all connections.

A refusal is a problem (RFC 9457), as everywhere. Nothing refers to an earlier message in what is
compressed: what all clients share could not, and a window kept for each client would cost it 40 KB.

The requests that browsers and most libraries send are answered here at once, in 2.3 us; the
library, which is asked of all others, takes 13.
"""

from __future__ import annotations

import json
import logging
import re
from http import HTTPStatus
from typing import NamedTuple

from websockets.extensions.permessage_deflate import (
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike
from websockets.utils import accept_key

from ..wire.websocket import WINDOW_BITS

VERSION = "13"

# websockets logs each handshake with its query, where tokens stand; of these only what went
# wrong is of interest.
quiet = logging.getLogger(f"{__name__}.quiet")
quiet.setLevel(logging.WARNING)


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
_KEY = re.compile("[A-Za-z0-9+/]{21}[AQgw]==")  # 16 bytes
_CONNECTIONS = {"upgrade", "keep-alive, upgrade"}  # Chromium's, Firefox's


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

    def answer(self, request: Request) -> Agreed | Response:
        """What is agreed on, or why nothing is. Nothing of it is kept here."""
        key = self._usual(request)
        if key is not None:
            return Agreed((_HEAD % accept_key(key)).encode())
        response = self.accept(request)
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

    def _usual(self, request: Request) -> str | None:
        """The key, of a request in which nothing needs a second look."""
        if request.method != "GET" or request.protocol != "HTTP/1.1":
            return None
        every = request.headers.get_all
        connection, upgrade = every("Connection"), every("Upgrade")
        if len(connection) != 1 or connection[0].lower() not in _CONNECTIONS:
            return None
        if len(upgrade) != 1 or upgrade[0].lower() != "websocket":
            return None
        if every("Sec-WebSocket-Version") != [VERSION] or len(every("Origin")) > 1:
            return None
        if every("Sec-WebSocket-Protocol"):
            return None
        if self.available_extensions and every("Sec-WebSocket-Extensions"):
            return None
        (key, *more) = every("Sec-WebSocket-Key") or ("",)
        return key if not more and _KEY.fullmatch(key) else None

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
