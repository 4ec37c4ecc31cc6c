"""Read and write the frames of an open WebSocket.

    reading    4 KiB or 64 messages in one turn of the event loop, also of what is inflated, and
               only while the listener is not busy: a flood slows down its sender, and no other
               client
    writing    by the transport: a write past it to the descriptor saves at most 3 %, and releases
               the interpreter's lock each time
    liveness   a ping every 20 s, to be answered within 20 s (1011); for peers that vanished see
               `USER_TIMEOUT_S` in `web/http/edge.py`
    closing    our close frame, then what still comes is discarded until the peer closes its side:
               if we closed at once, the kernel would answer unread bytes with a reset, and the
               peer would lose the close frame

An idle connection has no task and no timer, and holds 0.3 KB for itself and its `MessageReader`. A
small message is delivered in 1.4 us, or 1.0 us as one of 64. To send a ping of the `PingScheduler`
takes 0.3 us.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from gateway.client_memory import MAX_UNCOUNTED_BYTES, ClientMemory, HeldPart
from gateway.telemetry.logs import LogRateLimit
from gateway.web.http.outlet import half_close, hold_unsent
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
from gateway.wire.websocket import encode_ping

log = logging.getLogger(__name__)
log.addFilter(LogRateLimit())

SLOT_COUNT = 64
ABNORMAL_CLOSURE = 1006
"""The close code of a connection that ended without a close frame (RFC 6455 7.4.1)."""
MEMORY_REASON = "more is held for clients than memory allows; come back later"


class MessageListener(Protocol):
    """The receiver of a socket's events. Sessions implement it."""

    @property
    def is_busy(self) -> bool:
        """Whether no message may be delivered until `Socket.resume_reading` is called."""

    def on_message(self, message: str | bytes) -> None: ...

    def on_drained(self) -> None:
        """Go on writing: the socket is no longer full."""

    def on_closed(self, code: int, reason: str) -> None:
        """Release everything: the socket is closed, by either side. This is the last call."""


class Socket(Protocol):
    """An open WebSocket, as a session writes to it."""

    @property
    def transport(self) -> asyncio.Transport | None: ...

    @property
    def deflate(self) -> bool:
        """Whether frames may be compressed (RFC 7692)."""

    @property
    def full(self) -> bool:
        """Whether bytes wait for the client to read."""

    @property
    def closed(self) -> bool:
        """Whether nothing more is sent."""

    def write(self, data: bytes) -> None:
        """Write finished frames (`gateway.wire.websocket`), or buffer what is not taken at once."""

    def close(self, code: int, reason: str = "") -> None:
        """Close the socket after all that was written.

        The listener's `on_closed` is called at once.
        """

    def resume_reading(self) -> None:
        """Deliver messages again: the listener is not busy any more."""


class PingScheduler:
    """A wheel of slots that visits every connection once an interval, by one timer for all.

    The timer visits one slot after the other. A timer for each connection would hold 520 bytes and
    take 0.5 us a ping. New connections go to the slots in rotation, so that a thousand clients that
    connected at once are not pinged at once.

    There is one for each server. The timer runs while there are connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self.loop = loop
        self._slot_interval_s = interval_s / SLOT_COUNT
        self._slots: list[set[WebSocketConnection]] = [set() for _ in range(SLOT_COUNT)]
        self._current_slot = 0
        self._last_slot = 0
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def add(self, target: WebSocketConnection) -> None:
        self._last_slot = (self._last_slot + 1) % SLOT_COUNT
        target.ping_slot = self._last_slot
        self._slots[target.ping_slot].add(target)
        self._count += 1
        if self._timer is None:
            self._timer = self.loop.call_later(self._slot_interval_s, self._ping_current_slot)

    def discard(self, target: WebSocketConnection) -> None:
        slot = self._slots[target.ping_slot]
        if target in slot:
            slot.discard(target)
            self._count -= 1
        if not self._count and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ping_current_slot(self) -> None:
        self._timer = self.loop.call_later(self._slot_interval_s, self._ping_current_slot)
        self._current_slot = (self._current_slot + 1) % SLOT_COUNT
        payload = os.urandom(4)
        # One frame for all of them: a server's frames carry no mask.
        now, frame = self.loop.time(), encode_ping(payload)
        for target in list(self._slots[self._current_slot]):
            target.on_ping_due(now, payload, frame)


class WebSocketConnection(asyncio.Protocol):
    """An open WebSocket on our own server; a `Socket`.

    Created by `WebSocketProtocol` when the application accepts, and owned by its transport. Once it
    is closed it sends nothing, and its listener is not called again. To change a limit, derive a
    class with another constant.

    Attributes:
        closed: Whether nothing more is sent, since either side has closed.
        full: Whether bytes wait in the transport for the client to read.
        ping_slot: The slot of the ping scheduler, which sets it.
        pending_pong: The latest pong that the client does not take yet, as a frame.
    """

    __slots__ = (
        "_client_memory", "_connections", "_drained_at", "_handshake_buffer", "_ignores_input",
        "_is_counted", "_is_paused", "_listener", "_open_connection", "_ping_payload",
        "_ping_scheduler", "_ping_sent_at", "_read_handle", "_reader", "_timer", "closed",
        "deflate", "full", "pending_pong", "ping_slot", "transport",
    )  # fmt: skip

    MAX_SLICE_BYTES = 4096
    MAX_MESSAGES_PER_TURN = 64
    PING_INTERVAL_S = 20.0
    PONG_TIMEOUT_S = 20.0
    CLOSE_TIMEOUT_S = 10.0
    LINGER_S = 2.0
    DRAIN_TIMEOUT_S = 4.0

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: MessageReader,
        ping_scheduler: PingScheduler,
        connections: set[Any],
        *,
        handshake_response: bytes = b"",
        deflate: bool = False,
        open_connection: Callable[[], None] | None = None,
        client_memory: ClientMemory | None = None,
    ) -> None:
        """Take a transport over; the reader may hold bytes from before the accept.

        `open_connection` is called when the connection is lost.
        """
        self.transport = transport
        self._open_connection = open_connection
        self._client_memory = client_memory or ClientMemory()
        self._is_counted = False  # bytes that were received count
        self.deflate = deflate
        # `_ignores_input`: what comes is discarded until the peer closes its side.
        self.closed = self._ignores_input = False
        self._reader = reader
        self._ping_scheduler = ping_scheduler
        self._connections = connections
        self._listener: MessageListener | None = None
        self._ping_payload: bytes | None = None  # of a ping that was not answered yet
        # When that ping was sent, and when the client last took all of a full buffer.
        self._ping_sent_at = self._drained_at = 0.0
        self.pending_pong = b""
        self._read_handle: asyncio.Handle | None = None  # the turn in which reading goes on
        self._timer: asyncio.TimerHandle | None = None  # of closing
        self._is_paused = not transport.is_reading()
        # The response and what is written in the same turn of the loop leave in one write.
        self._handshake_buffer = handshake_response
        self.ping_slot = 0
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=0)  # full as soon as one byte waits
        self.full = transport.get_write_buffer_size() > 0
        ping_scheduler.add(self)
        connections.add(self)
        if handshake_response:
            ping_scheduler.loop.call_soon(self._flush_handshake)

    def set_listener(self, listener: MessageListener) -> None:
        """Deliver messages to a listener, beginning with those that have waited for it."""
        self._listener = listener
        self.resume_reading()

    # Reading.

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._reader.feed(data)
        if self._read_handle is None:
            self._read_messages()

    def _read_messages(self) -> None:
        """Deliver some of the messages that came, and schedule the rest for a later turn."""
        self._read_handle = None
        reader, has_more = self._reader, True
        # The slice ends when this many bytes are left, or as many were inflated.
        slice_end, inflated = reader.buffered_bytes - self.MAX_SLICE_BYTES, 0
        now = self._ping_scheduler.loop.time()
        try:
            for _ in range(self.MAX_MESSAGES_PER_TURN):
                if (
                    self._is_blocked
                    or reader.buffered_bytes < slice_end
                    or inflated > self.MAX_SLICE_BYTES
                ):
                    break
                message = reader.read(now)
                if message is None:
                    has_more = False
                    break
                inflated += len(message[1])
                self._handle_frame(*message)
                if self._ignores_input:
                    return
        except ProtocolError as error:
            self.fail(error.code, error.reason)
        except Exception:
            log.exception("a message of a WebSocket client could not be handled")
            self.fail(1011, "the gateway failed; its log says why")
        else:
            self._update_reading(has_more)
            # What came of messages that are not delivered yet.
            size = reader.held_bytes
            if size > MAX_UNCOUNTED_BYTES:
                self._is_counted = True
                self._client_memory.hold(HeldPart.RECEIVED, self, size)
            elif self._is_counted:
                self._release_received()

    def _release_received(self) -> None:
        self._is_counted = False
        self._client_memory.release(HeldPart.RECEIVED, self)

    def _update_reading(self, has_more: bool) -> None:
        """Pause or resume the transport, and schedule the next slice if there may be more."""
        if self._is_blocked:
            # Before there is a listener a little is buffered, so that nothing is paused for the
            # moment between the accept and the application's taking over.
            should_read = (
                self._listener is None and self._reader.buffered_bytes < self.MAX_SLICE_BYTES
            )
        else:
            # Nothing is read from the transport while complete messages wait.
            should_read = not has_more
            if has_more:
                self._schedule_read()
        if should_read is self._is_paused:
            self._is_paused = not should_read
            (self.transport.resume_reading if should_read else self.transport.pause_reading)()

    @property
    def _is_blocked(self) -> bool:
        """Whether no message can be delivered now.

        Once this side has closed it never is: messages are dropped, and the peer's close frame is
        still to be read.
        """
        return not self.closed and (self._listener is None or self._listener.is_busy)

    def _schedule_read(self) -> None:
        if self._read_handle is None and not self._ignores_input:
            self._read_handle = self._ping_scheduler.loop.call_soon(self._read_messages)

    def resume_reading(self) -> None:
        """Deliver messages again: the listener is not busy any more."""
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
        """Write a pong, or keep the latest one for a client that does not read (RFC 6455 5.5.3)."""
        if self.full:
            self.pending_pong = pong
        else:
            self.write(pong)

    # Writing.

    def write(self, data: bytes) -> None:
        """Write finished frames, or buffer what the client does not take at once."""
        if self.closed or self.transport.is_closing():
            return
        if self._handshake_buffer:
            self._handshake_buffer += data
        else:
            self.transport.write(data)
            if self.full:
                hold_unsent(self._client_memory, self, self.transport, data)

    def _flush_handshake(self) -> None:
        buffered, self._handshake_buffer = self._handshake_buffer, b""
        if buffered:
            self.write(buffered)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._client_memory.release(HeldPart.UNSENT, self)
        self._drained_at = self._ping_scheduler.loop.time()
        if self.pending_pong:
            pong, self.pending_pong = self.pending_pong, b""
            self.write(pong)
        if self._listener is not None:
            self._listener.on_drained()

    # Liveness. A client that takes what is sent is alive, however late its pong is. One that takes
    # nothing is disconnected by TCP_USER_TIMEOUT. While this side does not read, a missing pong is
    # not the client's fault.

    def on_ping_due(self, now: float, payload: bytes, frame: bytes) -> None:
        """Send a ping, or close if the last one was not answered."""
        if self.closed or self.full:
            return
        is_excused = self._is_paused or self._drained_at > self._ping_sent_at
        if self._ping_payload is None or is_excused:
            self._ping_payload, self._ping_sent_at = payload, now
            self.write(frame)
        # The interval of pings is about as long as the timeout: without the tolerance, a round of
        # the wheel that is a little short would let a missing pong pass for another interval.
        elif now - self._ping_sent_at > 0.9 * self.PONG_TIMEOUT_S:
            self.fail(1011, "a ping was not answered")

    # Closing.

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame, and wait for the client's. The listener is notified at once."""
        if self.closed:
            return
        self._send_close(code, reason)
        self._set_timer(self.CLOSE_TIMEOUT_S, self.transport.close)
        self._notify_closed(code, reason)
        self.resume_reading()

    def fail(self, code: int, reason: str) -> None:
        """Close without waiting for the close frame of a client.

        The client violated the protocol or a limit, or the application failed.
        """
        if not self.closed:
            host, port = (self.transport.get_extra_info("peername") or ("-", 0))[:2]
            log.info("closed %s:%s: %d %s", host, port, code, reason)
        self._close_at_once(code, reason)

    def release_memory(self) -> None:
        if self.full:
            self.transport.abort()
        self._close_at_once(1013, MEMORY_REASON)  # the account logs it, for all at once

    def _close_at_once(self, code: int, reason: str) -> None:
        if not self.closed:
            self._send_close(code, reason)
        self._linger(self.LINGER_S)
        self._notify_closed(code, reason)

    def shutdown(self) -> None:
        """Close by 1012 after a while. Called by uvicorn when the server shuts down.

        The hub drains at the same time: its streams end with a position, and the session closes the
        socket. The timer is for sockets that were not closed in time.
        """
        if not self.closed:
            self._set_timer(self.DRAIN_TIMEOUT_S, lambda: self.fail(1012, "the server restarts"))

    def _handle_close(self, code: int, reason: str) -> None:
        if self.closed:  # the reply to our close frame
            self._linger(self.LINGER_S)
        else:
            self._send_close(code if code != 1005 else None, reason)
            self._linger(self.CLOSE_TIMEOUT_S)
            self._notify_closed(code, reason)
        # Under TLS there is no half-close, and the client waits for the server to close the
        # connection (RFC 6455 7.1.1).
        if not self.transport.can_write_eof():
            self.transport.close()

    def _send_close(self, code: int | None, reason: str) -> None:
        self._flush_handshake()
        if self.pending_pong:
            self.write(self.pending_pong)
        self.write(websocket.encode_close(code, reason))
        self.closed, self.pending_pong = True, b""

    def _linger(self, seconds: float) -> None:
        """Close our side, and discard input until the client closes its own, or time is up."""
        if self._ignores_input or self.transport.is_closing():
            return
        self._ignores_input = True
        self._reader = MessageReader()  # what came of a message is not needed any more
        self._release_received()
        half_close(self.transport)
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        self._set_timer(seconds, self.transport.abort)

    def _set_timer(self, seconds: float, callback: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._ping_scheduler.loop.call_later(seconds, callback)

    def _notify_closed(self, code: int, reason: str) -> None:
        # Both closing and the loss of the connection call this; the first one tells the listener.
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_closed(code, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self._ignores_input = True
        self._ping_scheduler.discard(self)
        self._connections.discard(self)
        for handle in (self._read_handle, self._timer):
            if handle is not None:
                handle.cancel()
        self._read_handle = self._timer = None
        self._release_received()
        self._client_memory.release(HeldPart.UNSENT, self)
        if self._open_connection is not None:
            self._open_connection()
        self._notify_closed(ABNORMAL_CLOSURE, "")
