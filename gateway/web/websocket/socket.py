"""The interface of a WebSocket that a session uses, and its implementation on ASGI.

`AsgiSocket` is for other ASGI servers, which frame messages themselves. On our own server the
socket is a `WebSocketConnection`, to which the session writes directly.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from starlette.types import Receive, Send

from gateway.wire.websocket import iter_texts

ABNORMAL_CLOSURE = 1006
MEMORY_REASON = "more is held for clients than memory allows; come back later"
"""The close code of a connection that ended without a close frame (RFC 6455 7.4.1)."""


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


class AsgiSocket:
    """A `Socket` on another ASGI server.

    `endpoint` runs it until the socket is closed. It is full from a write until the server has
    taken all of it. Frames are decoded to texts again, as the server frames messages itself.
    """

    deflate = False
    transport = None

    def __init__(self, listener: MessageListener, receive: Receive, send: Send) -> None:
        self.full = self.closed = False
        self._receive, self._send = receive, send
        self._output: list[bytes] = []
        self._close_code = 0
        self._close_reason = ""
        self._output_ready = asyncio.Event()
        self._listener_ready = asyncio.Event()
        self._listener: MessageListener | None = listener

    async def run(self) -> None:
        """Deliver messages and send what is written, until either side closes."""
        sending = asyncio.create_task(self._send_output())
        event: Any = {}
        try:
            while (event := await self._receive())["type"] != "websocket.disconnect":
                if event["type"] == "websocket.receive" and self._listener is not None:
                    await self._deliver_message(self._listener, event)
        finally:
            self.closed = True
            self._notify_closed(event.get("code") or ABNORMAL_CLOSURE, event.get("reason") or "")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _deliver_message(self, listener: MessageListener, event: Any) -> None:
        text = event.get("text")
        listener.on_message(text if text is not None else event.get("bytes") or b"")
        while listener.is_busy and not self.closed:
            self._listener_ready.clear()
            await self._listener_ready.wait()

    def resume_reading(self) -> None:
        self._listener_ready.set()

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._output.append(data)
            self.full = True
            self._output_ready.set()

    def close(self, code: int, reason: str = "") -> None:
        if self.closed:
            return
        self.closed, self._close_code, self._close_reason = True, code, reason
        self._output_ready.set()  # the task sends what is left, and then the close
        self._listener_ready.set()
        self._notify_closed(code, reason)

    async def _send_output(self) -> None:
        try:
            while self._output or not self._close_code:
                await self._output_ready.wait()
                self._output_ready.clear()
                frames, self._output = self._output, []
                for text in iter_texts(b"".join(frames)):
                    await self._send({"type": "websocket.send", "text": text})
                # More may have been written while the server took this.
                if self._listener is not None and not self._output:
                    self.full = False
                    self._listener.on_drained()
            close = {
                "type": "websocket.close",
                "code": self._close_code,
                "reason": self._close_reason,
            }
            await self._send(close)
        except OSError:  # raised by servers if the client is gone (ASGI 2.4)
            self.closed = True
            self._listener_ready.set()

    def _notify_closed(self, code: int, reason: str) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_closed(code, reason)
