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
from gateway.wire.message_reader import (
    BINARY,
    PING,
    PONG,
    TEXT,
    MessageReader,
    ProtocolError,
    parse_close,
)

from .pings import PingScheduler
from .socket import ABNORMAL_CLOSURE, MessageListener

log = logging.getLogger(__name__)


class WebSocketConnection(asyncio.Protocol):
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
        "_drained_at",
        "_handshake_buffer",
        "_ignores_input",
        "_is_paused",
        "_listener",
        "_pending_pong",
        "_ping_payload",
        "_ping_scheduler",
        "_ping_sent_at",
        "_read_handle",
        "_reader",
        "_timer",
        "closed",
        "deflate",
        "full",
        "ping_slot",
        "transport",
    )

    MAX_SLICE_BYTES = 4096
    MAX_MESSAGES_PER_TURN = 64
    PING_INTERVAL_S = 20.0
    PONG_TIMEOUT_S = 20.0
    CLOSE_TIMEOUT_S = 10.0
    LINGER_S = 2.0
    DRAIN_TIMEOUT_S = 4.0

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
        reader: MessageReader,
        ping_scheduler: PingScheduler,
        connections: set[Any],
        *,
        handshake_response: bytes = b"",
        deflate: bool = False,
    ) -> None:
        self.transport = transport
        self.deflate = deflate
        self.closed = self._ignores_input = False
        self._reader = reader
        self._ping_scheduler = ping_scheduler
        self._connections = connections
        self._listener: MessageListener | None = None
        self._ping_payload: bytes | None = None
        self._ping_sent_at = self._drained_at = 0.0
        self._pending_pong = b""
        self._read_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = not transport.is_reading()
        self._handshake_buffer = handshake_response
        self.ping_slot = 0
        transport.set_protocol(self)
        # full is whatever is not sent; with TLS, asyncio and uvloop pause at `high`, else above it
        tls = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=1 if tls else 0)
        self.full = transport.get_write_buffer_size() > 0
        ping_scheduler.add(self)
        connections.add(self)
        if handshake_response:
            ping_scheduler.loop.call_soon(self._flush_handshake)

    def set_listener(self, listener: MessageListener) -> None:
        """Let it hear what the client says. Until then that is held."""
        self._listener = listener
        self.resume_reading()

    # What comes in.

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._reader.feed(data)
        if self._read_handle is None:
            self._read_messages()

    def _read_messages(self) -> None:
        """Hear some of what came; the rest when all others had their turn."""
        self._read_handle = None
        reader, more = self._reader, True
        least, inflated = reader.buffered_bytes - self.MAX_SLICE_BYTES, 0
        now = self._ping_scheduler.loop.time()
        try:
            for _ in range(self.MAX_MESSAGES_PER_TURN):
                if (
                    self._is_blocked
                    or reader.buffered_bytes < least
                    or inflated > self.MAX_SLICE_BYTES
                ):
                    break
                heard = reader.read(now)
                if heard is None:
                    more = False
                    break
                inflated += len(heard[1])
                self._handle_frame(*heard)
                if self._ignores_input:
                    return
        except ProtocolError as error:
            self.fail(error.code, error.reason)
        except Exception:
            log.exception("what a WebSocket client said could not be dealt with")
            self.fail(1011, "the gateway failed; its log says why")
        else:
            self._update_reading(more)

    def _update_reading(self, has_more: bool) -> None:
        """Have more of it heard, or more read, when it is time. more: of what was read."""
        if self._is_blocked:
            wanted = self._listener is None and self._reader.buffered_bytes < self.MAX_SLICE_BYTES
        else:
            wanted = not has_more
            if has_more:
                self._schedule_read()
        if wanted is self._is_paused:
            self._is_paused = not wanted
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    @property
    def _is_blocked(self) -> bool:
        """Nobody would hear a message now. Once we have closed, only its close is waited for."""
        return not self.closed and (self._listener is None or self._listener.is_busy)

    def _schedule_read(self) -> None:
        if self._read_handle is None and not self._ignores_input:
            self._read_handle = self._ping_scheduler.loop.call_soon(self._read_messages)

    def resume_reading(self) -> None:
        """The listener is not busy any more."""
        if self._is_paused or self._reader.buffered_bytes:
            self._schedule_read()

    def _handle_frame(self, opcode: int, payload: Any) -> None:
        if opcode in (TEXT, BINARY):
            if self._listener is not None and not self.closed:
                self._listener.on_message(payload)
        elif opcode == PONG:
            if payload == self._ping_payload:
                self._ping_payload = None
        elif opcode == PING:
            self._send_pong(websocket.encode_pong(payload))
        else:
            self._handle_close(*parse_close(payload))

    def _send_pong(self, pong: bytes) -> None:
        """Who does not take its pongs gets the latest only. (RFC 6455 5.5.3)"""
        if self.full:
            self._pending_pong = pong
        else:
            self.write(pong)

    # What goes out.

    def write(self, data: bytes) -> None:
        """Finished frames. What the client does not take at once waits."""
        if self.closed or self.transport.is_closing():
            return
        if self._handshake_buffer:
            self._handshake_buffer += data
        else:
            self.transport.write(data)

    def _flush_handshake(self) -> None:
        greeting, self._handshake_buffer = self._handshake_buffer, b""
        if greeting:
            self.write(greeting)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._drained_at = self._ping_scheduler.loop.time()
        if self._pending_pong:
            pong, self._pending_pong = self._pending_pong, b""
            self.write(pong)
        if self._listener is not None:
            self._listener.on_drained()

    # Liveness. A client that takes what is sent is alive, however far behind its pong is; one
    # that takes nothing is ended by TCP_USER_TIMEOUT. Whom we do not read we do not blame.

    def on_ping_due(self, now: float, payload: bytes, frame: bytes) -> None:
        if self.closed or self.full:
            return
        excused = self._is_paused or self._drained_at > self._ping_sent_at
        if self._ping_payload is None or excused:
            self._ping_payload, self._ping_sent_at = payload, now
            self.write(frame)
        elif (
            now - self._ping_sent_at > 0.9 * self.PONG_TIMEOUT_S
        ):  # or this round would be too early
            self.fail(1011, "a ping was not answered")

    # The end.

    def close(self, code: int, reason: str = "") -> None:
        """Say so, and wait for the client to say it."""
        if self.closed:
            return
        self._send_close(code, reason)
        self._set_timer(self.CLOSE_TIMEOUT_S, self.transport.close)
        self._notify_closed(code, reason)
        self.resume_reading()

    def fail(self, code: int, reason: str) -> None:
        """It is over: the client broke the protocol or a bound, or the application failed."""
        if not self.closed:
            host, port = (self.transport.get_extra_info("peername") or ("-", 0))[:2]
            log.info("closed %s:%s: %d %s", host, port, code, reason)
            self._send_close(code, reason)
        self._linger(self.LINGER_S)
        self._notify_closed(code, reason)

    def shutdown(self) -> None:
        """The server ends. The application is told by its hub, and says goodbye with a position;
        1012 is for those to whom it said nothing in time."""
        if not self.closed:
            self._set_timer(self.DRAIN_TIMEOUT_S, lambda: self.fail(1012, "the server restarts"))

    def _handle_close(self, code: int, reason: str) -> None:
        if self.closed:  # it is the answer to ours
            self._linger(self.LINGER_S)
        else:
            self._send_close(code if code != 1005 else None, reason)
            self._linger(self.CLOSE_TIMEOUT_S)
            self._notify_closed(code, reason)
        if not self.transport.can_write_eof():  # it waits for us to end the connection
            self.transport.close()

    def _send_close(self, code: int | None, reason: str) -> None:
        self._flush_handshake()
        if self._pending_pong:
            self.write(self._pending_pong)
        self.write(websocket.encode_close(code, reason))
        self.closed, self._pending_pong = True, b""

    def _linger(self, seconds: float) -> None:
        """End our side, and read the other's to its end, or for so long."""
        if self._ignores_input or self.transport.is_closing():
            return
        self._ignores_input = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        self._set_timer(seconds, self.transport.abort)

    def _set_timer(self, seconds: float, callback: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._ping_scheduler.loop.call_later(seconds, callback)

    def _notify_closed(self, code: int, reason: str) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_closed(code, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self._ignores_input = True
        self._ping_scheduler.discard(self)
        self._connections.discard(self)
        for waiting in (self._read_handle, self._timer):
            if waiting is not None:
                waiting.cancel()
        self._read_handle = self._timer = None
        self._notify_closed(ABNORMAL_CLOSURE, "")
