"""A WebSocket as a session knows it, and the one of ASGI servers that frame messages themselves.

Our own server's is a `Peer`, which nothing stands between.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from starlette.types import Receive, Send

from gateway.wire.websocket import iter_texts

ABNORMAL_CLOSURE = 1006
"""The code of a connection that ended without one."""


class MessageListener(Protocol):
    """What hears a client."""

    @property
    def is_busy(self) -> bool:
        """It wants to hear no more messages, until it calls `go_on`."""

    def on_message(self, message: str | bytes) -> None:
        """A message of the client."""

    def on_drained(self) -> None:
        """The socket is no longer full."""

    def on_closed(self, code: int, reason: str) -> None:
        """It is closed, by either side. The last call."""


class Socket(Protocol):
    """What a client hears."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """None where it is another server's."""

    @property
    def deflate(self) -> bool:
        """Frames may be compressed."""

    @property
    def full(self) -> bool:
        """Something waits for the client to take it."""

    @property
    def closed(self) -> bool:
        """Nothing more is sent."""

    def write(self, data: bytes) -> None:
        """Finished frames (`wire.websocket`). What the client does not take at once waits."""

    def close(self, code: int, reason: str = "") -> None:
        """Behind all that was written. The listener is told by `lost`."""

    def resume_reading(self) -> None:
        """The listener is not busy any more."""


class AsgiSocket:
    """See the module. Full from a write on until the server has taken it.

    listener: of what the client says while it is `run`.
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
        """Until either side closes."""
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
        self._output_ready.set()
        self._listener_ready.set()
        self._notify_closed(code, reason)

    async def _send_output(self) -> None:
        try:
            while self._output or not self._close_code:
                await self._output_ready.wait()
                self._output_ready.clear()
                out, self._output = self._output, []
                for text in iter_texts(b"".join(out)):
                    await self._send({"type": "websocket.send", "text": text})
                if self._listener is not None and not self._output:
                    self.full = False
                    self._listener.on_drained()
            close = {
                "type": "websocket.close",
                "code": self._close_code,
                "reason": self._close_reason,
            }
            await self._send(close)
        except OSError:  # what servers raise for one who is gone (ASGI 2.4)
            self.closed = True
            self._listener_ready.set()

    def _notify_closed(self, code: int, reason: str) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_closed(code, reason)
