"""A WebSocket as a session knows it, and the one of ASGI servers that frame messages themselves.

Our own server's is a `Peer`, which nothing stands between.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from starlette.types import Receive, Send

from gateway.wire.websocket import messages

GONE = 1006
"""The code of a connection that ended without one."""


class Listener(Protocol):
    """What hears a client."""

    @property
    def busy(self) -> bool:
        """It wants to hear no more messages, until it calls `go_on`."""

    def heard(self, message: str | bytes) -> None:
        """A message of the client."""

    def drained(self) -> None:
        """The socket is no longer full."""

    def lost(self, code: int, reason: str) -> None:
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

    def go_on(self) -> None:
        """The listener is not busy any more."""


class AsgiSocket:
    """See the module. Full from a write on until the server has taken it.

    listener: of what the client says while it is `run`.
    """

    deflate = False
    transport = None

    def __init__(self, listener: Listener, receive: Receive, send: Send) -> None:
        self.full = self.closed = False
        self._receive, self._send = receive, send
        self._out: list[bytes] = []
        self._code = 0
        self._reason = ""
        self._wake = asyncio.Event()
        self._calm = asyncio.Event()
        self._listener: Listener | None = listener

    async def run(self) -> None:
        """Until either side closes."""
        sending = asyncio.create_task(self._send_all())
        event: Any = {}
        try:
            while (event := await self._receive())["type"] != "websocket.disconnect":
                if event["type"] == "websocket.receive" and self._listener is not None:
                    await self._hear(self._listener, event)
        finally:
            self.closed = True
            self._lose(event.get("code") or GONE, event.get("reason") or "")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _hear(self, listener: Listener, event: Any) -> None:
        text = event.get("text")
        listener.heard(text if text is not None else event.get("bytes") or b"")
        while listener.busy and not self.closed:
            self._calm.clear()
            await self._calm.wait()

    def go_on(self) -> None:
        self._calm.set()

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._out.append(data)
            self.full = True
            self._wake.set()

    def close(self, code: int, reason: str = "") -> None:
        if self.closed:
            return
        self.closed, self._code, self._reason = True, code, reason
        self._wake.set()
        self._calm.set()
        self._lose(code, reason)

    async def _send_all(self) -> None:
        try:
            while self._out or not self._code:
                await self._wake.wait()
                self._wake.clear()
                out, self._out = self._out, []
                for text in messages(b"".join(out)):
                    await self._send({"type": "websocket.send", "text": text})
                if self._listener is not None and not self._out:
                    self.full = False
                    self._listener.drained()
            close = {"type": "websocket.close", "code": self._code, "reason": self._reason}
            await self._send(close)
        except OSError:  # what servers raise for one who is gone (ASGI 2.4)
            self.closed = True
            self._calm.set()

    def _lose(self, code: int, reason: str) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.lost(code, reason)
