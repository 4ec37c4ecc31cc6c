"""What a WebSocket client says: its handshake and its frames, within bounds. Sans-I/O.

websockets' own ServerProtocol reads the frames (RFC 6455). Added here: the head comes from the
HTTP edge, which read and bounded it; a refusal is a problem (RFC 9457), as everywhere; and frames
that cost work but bring the application nothing are counted against an allowance.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Generator
from http import HTTPStatus

from websockets.extensions.permessage_deflate import (
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.frames import CLOSE, CONT, CTRL_OPCODES, TEXT, Frame
from websockets.http11 import Request, Response
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.typing import LoggerLike, StatusLike

from ..wire.websocket import WINDOW_BITS

VERSION = "13"
Utf8 = codecs.getincrementaldecoder("utf-8")


class Peer(ServerProtocol):
    """One client's side of a connection.

    max_size: bytes of a message, uncompressed. compression: permessage-deflate is agreed to.
    """

    # Frames that complete no message: pings, pongs, and fragments of next to nothing. Who fills
    # its messages byte by byte may do so for a thousand bytes; a flood ends with 1008.
    IDLE_FRAMES = 1000
    IDLE_FRAMES_PER_SECOND = 50
    SMALL = 128  # bytes

    def __init__(self, *, max_size: int, compression: bool, logger: LoggerLike) -> None:
        # Nothing refers to an earlier message: what all clients share could not, and a window
        # kept for each client would cost it 40 KB here.
        deflate = ServerPerMessageDeflateFactory(
            server_no_context_takeover=True,
            client_no_context_takeover=True,
            server_max_window_bits=WINDOW_BITS,
            client_max_window_bits=WINDOW_BITS,
            compress_settings={"level": 3, "memLevel": 5},
        )
        super().__init__(
            extensions=[deflate] if compression else [], max_size=max_size, logger=logger
        )
        self.failed = False
        self._utf8: codecs.IncrementalDecoder | None = None
        self._allowance = float(self.IDLE_FRAMES)
        self._now = 0.0

    @property
    def takes_deflated(self) -> bool:
        """It reads the compressed frames that all share."""
        return any(
            isinstance(each, PerMessageDeflate) and each.local_max_window_bits >= WINDOW_BITS
            for each in self.extensions
        )

    # The handshake.

    def accept(self, request: Request) -> Response:
        """101, or why not."""
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

    # Frames.

    def parse(self) -> Generator[None]:
        """Frames from the first byte on: the head was read before."""
        yield from Protocol.parse(self)

    def at(self, now: float) -> None:
        """It is `now`, in seconds: some of the allowance is earned back."""
        earned = (now - self._now) * self.IDLE_FRAMES_PER_SECOND
        self._allowance = min(self.IDLE_FRAMES, self._allowance + earned)
        self._now = now

    def recv_frame(self, frame: Frame) -> None:
        """Raises UnicodeDecodeError, which `parse` makes a 1007."""
        if frame.opcode in CTRL_OPCODES:
            idle = frame.opcode is not CLOSE
        else:
            idle = not frame.fin and len(frame.data) < self.SMALL
            self._check_text(frame)
        if idle:
            self._allowance -= 1
        if self._allowance < 0:
            self.fail(1008, "too many pings or small fragments")
        else:
            super().recv_frame(frame)

    def _check_text(self, frame: Frame) -> None:
        """Here and not where messages are put together: a message that is none ends the
        connection before what stands behind it is looked at."""
        if frame.opcode is not CONT:
            self._utf8 = Utf8() if frame.opcode is TEXT else None
        if self._utf8 is not None:
            self._utf8.decode(frame.data, frame.fin)

    def fail(self, code: int, reason: str = "") -> None:
        """The connection is over: it broke the protocol or a bound."""
        self.failed = True
        super().fail(code, reason)
