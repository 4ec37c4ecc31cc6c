"""The WebSocket edge: uvicorn's protocol with shared frames, bounds, and an end that is heard.

    message    1 MiB, uncompressed (1009); text is UTF-8 (1007)
    frames     as RFC 6455 has them (1002); a thousand pings or small fragments at once (1008)
    reading    4 KiB at a time, in turns with all others, and only while nothing waits for the
               application: a flood of messages costs its sender, not its neighbours
    liveness   a ping every 20 s, answered within 20 s (1011); half-open peers as in `transport`
    end        our close frame, then the other side is read to its end: closing at once would have
               the kernel answer unread bytes with a reset, which eats the close frame

Finished frames (`wire.websocket`) go out by the ASGI extension FRAMES: a scope that has it in
`extensions`, with {"deflate": bool}, takes {"type": FRAMES, "data": bytes}.

A connection that is idle holds 22 KB; a small frame takes 3 us to read, all 680 of a slice 2 ms.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from .peer import Peer

log = logging.getLogger(__name__)

# uvicorn logs each handshake with its query, where tokens stand, websockets every opening and
# closing; of both only what went wrong is of interest.
quiet = logging.getLogger(f"{__name__}.quiet")
quiet.setLevel(logging.WARNING)

FRAMES = "gateway.frames"
"""The ASGI extension, and the type of its message."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """For `uvicorn.Config(ws=...)` with `GatewayProtocol`, which begins it.

    Another limit is a subclass with another constant. Sizes in bytes, times in seconds.
    """

    MAX_SIZE = 1024 * 1024
    SLICE = 4096
    PING_SECONDS = 20.0
    PONG_SECONDS = 20.0
    CLOSE_SECONDS = 10.0
    LINGER_SECONDS = 2.0
    DRAIN_SECONDS = 4.0

    # `_held`:    bytes that came and were not looked at yet.
    # `_turn`:    when they will be.
    # `_pongs`:   answers that wait until the client takes what was sent before.
    # `_drained`: when the client last took enough of a full buffer.
    # `_restart`: set while the server ends: the application has so long to end it.

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = quiet
        self.conn: Peer = Peer(
            max_size=self.MAX_SIZE, compression=config.ws_per_message_deflate, logger=quiet
        )
        self.ping_interval, self.ping_timeout = self.PING_SECONDS, self.PONG_SECONDS
        self.close_timeout = self.CLOSE_SECONDS
        self._held = memoryview(b"")
        self._turn: asyncio.Handle | None = None
        self._pongs = b""
        self._drained = 0.0
        self._restart: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport, request: Request, behind: bytes) -> None:
        """Take over a connection. behind: what came after the head."""
        self.connection_made(transport)
        self._held = memoryview(behind)
        self.handle_connect(request)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions[FRAMES] = {"deflate": self.conn.takes_deflated}

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in (self._turn, self._restart):
            if waiting is not None:
                waiting.cancel()
        self._held, self._pongs = memoryview(b""), b""
        super().connection_lost(exc)

    # What comes in.

    def data_received(self, data: bytes) -> None:
        if self.disconnected:
            return
        self._held = memoryview(b"".join((self._held, data)) if self._held else data)
        if self._turn is None:
            self._read()

    def _read(self) -> None:
        """Look at one slice, or at several of a frame that is longer."""
        self._turn = None
        self.conn.at(self.loop.time())
        heard = self.conn.state is State.CONNECTING or self.read_paused
        while self._held and not heard and not self.disconnected:
            self.conn.receive_data(bytes(self._held[: self.SLICE]))
            self._held = self._held[self.SLICE :]
            heard = bool(self.conn.events)
            self.handle_events()
            if self.conn.failed:
                self._fail()
        self._steer()

    def _steer(self) -> None:
        """Have the next slice looked at, and more of them read, when it is time."""
        if self.disconnected:
            return
        if self.conn.state is State.CONNECTING:  # a client has to wait for the answer
            wanted = len(self._held) < self.SLICE
        else:
            wanted = not self._held and not self.read_paused
            if self._held and not self.read_paused and self._turn is None:
                self._turn = self.loop.call_soon(self._read)
        if wanted is not self.transport.is_reading():
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    def send_receive_event_to_app(self) -> None:
        data = b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        else:
            self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
        self.read_paused = True

    async def receive(self) -> ASGIReceiveEvent:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._steer()
        return message

    # What goes out.

    async def send(self, message: ASGISendEvent) -> None:
        kind: str = message["type"]
        if kind == FRAMES:
            await self._send_frames(cast("dict[str, Any]", message)["data"])
            return
        await self.writable.wait()
        if self.transport.is_closing():  # uvloop's raise an error of their own
            raise ClientDisconnected
        await super().send(message)
        if kind in ("websocket.accept", "websocket.close"):
            self._steer()

    async def _send_frames(self, data: bytes) -> None:
        await self.writable.wait()
        if not self.handshake_complete:
            raise RuntimeError("finished frames before websocket.accept")
        if self.conn.state is not State.OPEN or self.disconnected or self.transport.is_closing():
            raise ClientDisconnected  # also if another task of the application closed meanwhile
        self.transport.write(data)

    def handle_ping(self) -> None:
        """Who does not take its pongs gets the latest only. (RFC 6455 5.5.3)"""
        self._pongs = b"".join(self.conn.data_to_send()) or self._pongs
        if self.writable.is_set():
            self._send_pongs()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drained = self.loop.time()
        self._send_pongs()

    def _send_pongs(self) -> None:
        pongs, self._pongs = self._pongs, b""
        if pongs and not self.disconnected:
            self.transport.write(pongs)

    # Liveness. A client that takes what is sent is alive, however far behind its pong is; one
    # that takes nothing is ended by TCP_USER_TIMEOUT.

    def send_keepalive_ping(self) -> None:
        if self.writable.is_set():
            super().send_keepalive_ping()
        else:
            self.schedule_ping()

    def keepalive_timeout(self) -> None:
        if not self.writable.is_set() or self._drained > self.ping_sent_at:
            self.ping_sent_at = self.loop.time()
            self.pong_timer = self.loop.call_later(self.PONG_SECONDS, self.keepalive_timeout)
            return
        self.conn.fail(1011, "a ping was not answered")
        self._fail()

    # The end.

    def handle_close(self, event: Frame) -> None:
        if self.close_sent:
            super().handle_close(event)
        elif self.conn.close_rcvd is not None:
            self._tell(self.conn.close_rcvd.code, self.conn.close_rcvd.reason)
            self._hang_up(self.CLOSE_SECONDS)

    def send_500_response(self) -> None:
        if not self.handshake_complete:
            super().send_500_response()
        elif not self.close_sent:
            self.conn.fail(1011, "the gateway failed; its log says why")
            self._fail()

    def shutdown(self) -> None:
        """The server ends. The application is told by its hub, and says goodbye with a position;
        1012 is for those to whom it said nothing in time."""
        if self._restart is None and not self.close_sent:
            self._restart = self.loop.call_later(self.DRAIN_SECONDS, self._end)

    def _end(self) -> None:
        if not self.handshake_complete:
            super().shutdown()
        elif not self.close_sent:
            self.conn.fail(1012, "the server restarts")
            self._fail()

    def _fail(self) -> None:
        """`conn` has failed: say so to both sides."""
        sent = self.conn.close_sent
        if self.disconnected:
            return
        if sent is not None and not self.close_sent:
            host, port = self.client or ("-", 0)
            log.info("closed %s:%d: %d %s", host, port, sent.code, sent.reason)
            self._tell(sent.code, sent.reason)
        self._hang_up(self.LINGER_SECONDS)

    def _tell(self, code: int, reason: str) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})

    def _hang_up(self, seconds: float) -> None:
        """Close our side, and read the other's to its end, or for so long."""
        self.stop_keepalive()
        self.transport.write(self._pongs + b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._held, self._pongs = memoryview(b""), b""
        self.close_sent = self.disconnected = True
        self.writable.set()  # whoever waits to send learns that it is over
        if not self.transport.is_reading():
            self.transport.resume_reading()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(seconds, self.transport.abort)
