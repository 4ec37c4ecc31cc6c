"""The other side of an open WebSocket: all that a connection holds, and the transport's protocol.

    reading    4 KiB or 64 messages at a time, also of what is inflated, in turns with all others,
               and only while the listener is not busy: a flood costs its sender, not its neighbours
    writing    by the transport: a write past it to the descriptor saves 3 % at most, and lets go
               of the interpreter's lock each time
    liveness   a ping every 20 s, answered within 20 s (1011); half-open peers as in `transport`
    end        our close frame, then the other side is read to its end: closing at once would have
               the kernel answer unread bytes with a reset, which eats the close frame

No task and no timer belongs to a connection that is idle, and 0.3 KB: itself and its `Reader`. A
small message is heard in 1.4 us, as one of 64 in 1.0, a ping of `Pulse` sent in 0.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from gateway.wire import websocket
from gateway.wire.reader import BINARY, PING, PONG, TEXT, Broken, Reader, close_of

from .pings import Pulse
from .socket import GONE, Listener

log = logging.getLogger(__name__)


class Peer(asyncio.Protocol):
    """See the module. It is a `Socket`; another limit is a subclass with another constant.

    reader:      what came with the handshake is in there.
    greeting:    what goes out first.
    connections: it is in there while it is connected.
    full:        something waits for the client to take it.
    closed:      nothing more is sent.
    deflate:     frames may be compressed.
    Sizes in bytes, times in seconds.
    """

    __slots__ = (
        "_connections",
        "_drained",
        "_greeting",
        "_listener",
        "_over",
        "_paused",
        "_pinged",
        "_pinged_at",
        "_pong",
        "_pulse",
        "_reader",
        "_timer",
        "_turn",
        "closed",
        "deflate",
        "full",
        "slot",
        "transport",
    )

    SLICE = 4096
    TURN = 64
    PING_SECONDS = 20.0
    PONG_SECONDS = 20.0
    CLOSE_SECONDS = 10.0
    LINGER_SECONDS = 2.0
    DRAIN_SECONDS = 4.0

    # `_greeting`: the answer to the handshake, and what is said in the same turn: one write.
    # `_turn`:    when more of what came will be heard.
    # `_paused`:  nothing is read from the transport.
    # `_pong`:    an answer that waits until the client takes what was sent before; the latest.
    # `_pinged`:  the payload of a ping that was not answered yet, and when it was sent.
    # `_drained`: when the client last took all of a full buffer.
    # `_over`:    what comes is read to its end and not looked at.

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: Reader,
        pulse: Pulse,
        connections: set[Any],
        *,
        greeting: bytes = b"",
        deflate: bool = False,
    ) -> None:
        self.transport = transport
        self.deflate = deflate
        self.closed = self._over = False
        self._reader = reader
        self._pulse = pulse
        self._connections = connections
        self._listener: Listener | None = None
        self._pinged: bytes | None = None
        self._pinged_at = self._drained = 0.0
        self._pong = b""
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = not transport.is_reading()
        self._greeting = greeting
        self.slot = 0
        transport.set_protocol(self)
        # full is whatever is not sent; with TLS, asyncio and uvloop pause at `high`, else above it
        tls = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=1 if tls else 0)
        self.full = transport.get_write_buffer_size() > 0
        pulse.add(self)
        connections.add(self)
        if greeting:
            pulse.loop.call_soon(self._greet)

    def attend(self, listener: Listener) -> None:
        """Let it hear what the client says. Until then that is held."""
        self._listener = listener
        self.go_on()

    # What comes in.

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._reader.feed(data)
        if self._turn is None:
            self._read()

    def _read(self) -> None:
        """Hear some of what came; the rest when all others had their turn."""
        self._turn = None
        reader, more = self._reader, True
        least, inflated = reader.held - self.SLICE, 0
        now = self._pulse.loop.time()
        try:
            for _ in range(self.TURN):
                if self._deaf or reader.held < least or inflated > self.SLICE:
                    break
                heard = reader.read(now)
                if heard is None:
                    more = False
                    break
                inflated += len(heard[1])
                self._hear(*heard)
                if self._over:
                    return
        except Broken as error:
            self.fail(error.code, error.reason)
        except Exception:
            log.exception("what a WebSocket client said could not be dealt with")
            self.fail(1011, "the gateway failed; its log says why")
        else:
            self._steer(more)

    def _steer(self, more: bool) -> None:
        """Have more of it heard, or more read, when it is time. more: of what was read."""
        if self._deaf:
            wanted = self._listener is None and self._reader.held < self.SLICE
        else:
            wanted = not more
            if more:
                self._soon()
        if wanted is self._paused:
            self._paused = not wanted
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    @property
    def _deaf(self) -> bool:
        """Nobody would hear a message now. Once we have closed, only its close is waited for."""
        return not self.closed and (self._listener is None or self._listener.busy)

    def _soon(self) -> None:
        if self._turn is None and not self._over:
            self._turn = self._pulse.loop.call_soon(self._read)

    def go_on(self) -> None:
        """The listener is not busy any more."""
        if self._paused or self._reader.held:
            self._soon()

    def _hear(self, kind: int, said: Any) -> None:
        if kind in (TEXT, BINARY):
            if self._listener is not None and not self.closed:
                self._listener.heard(said)
        elif kind == PONG:
            if said == self._pinged:
                self._pinged = None
        elif kind == PING:
            self._answer(websocket.pong(said))
        else:
            self._hear_close(*close_of(said))

    def _answer(self, pong: bytes) -> None:
        """Who does not take its pongs gets the latest only. (RFC 6455 5.5.3)"""
        if self.full:
            self._pong = pong
        else:
            self.write(pong)

    # What goes out.

    def write(self, data: bytes) -> None:
        """Finished frames. What the client does not take at once waits."""
        if self.closed or self.transport.is_closing():
            return
        if self._greeting:
            self._greeting += data
        else:
            self.transport.write(data)

    def _greet(self) -> None:
        greeting, self._greeting = self._greeting, b""
        if greeting:
            self.write(greeting)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._drained = self._pulse.loop.time()
        if self._pong:
            pong, self._pong = self._pong, b""
            self.write(pong)
        if self._listener is not None:
            self._listener.drained()

    # Liveness. A client that takes what is sent is alive, however far behind its pong is; one
    # that takes nothing is ended by TCP_USER_TIMEOUT. Whom we do not read we do not blame.

    def beat(self, now: float, payload: bytes, frame: bytes) -> None:
        if self.closed or self.full:
            return
        excused = self._paused or self._drained > self._pinged_at
        if self._pinged is None or excused:
            self._pinged, self._pinged_at = payload, now
            self.write(frame)
        elif now - self._pinged_at > 0.9 * self.PONG_SECONDS:  # or this round would be too early
            self.fail(1011, "a ping was not answered")

    # The end.

    def close(self, code: int, reason: str = "") -> None:
        """Say so, and wait for the client to say it."""
        if self.closed:
            return
        self._say_close(code, reason)
        self._set_timer(self.CLOSE_SECONDS, self.transport.close)
        self._lose(code, reason)
        self.go_on()

    def fail(self, code: int, reason: str) -> None:
        """It is over: the client broke the protocol or a bound, or the application failed."""
        if not self.closed:
            host, port = (self.transport.get_extra_info("peername") or ("-", 0))[:2]
            log.info("closed %s:%s: %d %s", host, port, code, reason)
            self._say_close(code, reason)
        self._hang_up(self.LINGER_SECONDS)
        self._lose(code, reason)

    def shutdown(self) -> None:
        """The server ends. The application is told by its hub, and says goodbye with a position;
        1012 is for those to whom it said nothing in time."""
        if not self.closed:
            self._set_timer(self.DRAIN_SECONDS, lambda: self.fail(1012, "the server restarts"))

    def _hear_close(self, code: int, reason: str) -> None:
        if self.closed:  # it is the answer to ours
            self._hang_up(self.LINGER_SECONDS)
        else:
            self._say_close(code if code != 1005 else None, reason)
            self._hang_up(self.CLOSE_SECONDS)
            self._lose(code, reason)
        if not self.transport.can_write_eof():  # it waits for us to end the connection
            self.transport.close()

    def _say_close(self, code: int | None, reason: str) -> None:
        self._greet()
        if self._pong:
            self.write(self._pong)
        self.write(websocket.close(code, reason))
        self.closed, self._pong = True, b""

    def _hang_up(self, seconds: float) -> None:
        """End our side, and read the other's to its end, or for so long."""
        if self._over or self.transport.is_closing():
            return
        self._over = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        self._set_timer(seconds, self.transport.abort)

    def _set_timer(self, seconds: float, ring: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._pulse.loop.call_later(seconds, ring)

    def _lose(self, code: int, reason: str) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.lost(code, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self._over = True
        self._pulse.discard(self)
        self._connections.discard(self)
        for waiting in (self._turn, self._timer):
            if waiting is not None:
                waiting.cancel()
        self._turn = self._timer = None
        self._lose(GONE, "")
