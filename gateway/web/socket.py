"""One WebSocket of any ASGI server: messages in, finished frames out."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket as Connection

from ..wire.websocket import messages
from .upgraded import FRAMES

PROTOCOL = "gateway.v1"


class Disconnected(Exception):
    """The client is gone."""


class Socket:
    """See the module. deflate: frames may be compressed.

    The streams of a socket take turns: whoever sends again waits behind those who wait already,
    and what the client does not take is at most one piece of one of them.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.connection = Connection(scope, receive, send)
        self._receive, self._send = receive, send
        frames = scope.get("extensions", {}).get(FRAMES)
        self._frames = frames is not None
        self.deflate = bool(frames and frames["deflate"])
        self.closed = False
        self._turns = asyncio.Lock()  # first come, first served

    async def accept(self) -> None:
        """Of what the client offers, PROTOCOL is taken; a bearer token there is never echoed."""
        offered = self.connection.scope.get("subprotocols", ())
        await self.connection.accept(PROTOCOL if PROTOCOL in offered else None)

    async def refuse(self, response: Response) -> None:
        """Answer the handshake as HTTP, where the server can; browsers hear of a failure only."""
        if "websocket.http.response" in self.connection.scope.get("extensions", {}):
            await self.connection.send_denial_response(response)
        else:
            await self.connection.close(1008)

    async def receive(self) -> str | bytes:
        """The next message. Raises Disconnected."""
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                self.closed = True
                raise Disconnected
            if event["type"] == "websocket.receive":
                text = event.get("text")
                return text if text is not None else event.get("bytes") or b""

    async def send(self, frames: bytes) -> None:
        """Finished frames, once there is room for them. Raises Disconnected."""
        async with self._turns:
            if self.closed:
                raise Disconnected
            try:
                if self._frames:
                    await self._send({"type": FRAMES, "data": frames})
                    return
                for text in messages(frames):
                    await self._send({"type": "websocket.send", "text": text})
            except OSError:  # what servers raise for one who is gone (ASGI 2.4)
                self.closed = True
                raise Disconnected from None

    async def close(self, code: int, reason: str = "") -> None:
        if self.closed:
            return
        self.closed = True
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except OSError:
            return
