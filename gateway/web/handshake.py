"""The handshake of a WebSocket (RFC 6455 4.2): the library's, one object for all connections.

A refusal is a problem (RFC 9457), as everywhere. Nothing refers to an earlier message in what is
compressed: what all clients share could not, and a window kept for each client would cost it 40 KB.

12 us each; a protocol object of the library's for every connection would be 8 more.
"""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import NamedTuple

from websockets.extensions.permessage_deflate import (
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from ..wire.websocket import WINDOW_BITS

VERSION = "13"

# websockets logs each handshake with its query, where tokens stand; of these only what went
# wrong is of interest.
quiet = logging.getLogger(f"{__name__}.quiet")
quiet.setLevel(logging.WARNING)


class Agreed(NamedTuple):
    """An answer to a handshake, and what holds if it is 101.

    deflate: the client reads the compressed frames that all share.
    window:  bits of the window of what it compresses itself; 0 if it does not.
    """

    response: Response
    deflate: bool
    window: int


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

    def answer(self, request: Request) -> Agreed:
        """101, or why not. Nothing of it is kept here."""
        response = self.accept(request)
        extensions, self.extensions = self.extensions, []
        for each in extensions:
            if isinstance(each, PerMessageDeflate):
                wide = each.local_max_window_bits >= WINDOW_BITS
                return Agreed(response, wide, each.remote_max_window_bits)
        return Agreed(response, False, 0)

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
