"""A program on a WebSocket of a route's own path, that comes back with the last position.

What it hears is told in the terms of server-sent events, so that what judges a stream of these
judges one of messages. It takes the frames apart by hand and shares no code with the gateway.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, ClassVar
from urllib.parse import quote

from support.clients.client import Event
from support.clients.raw import RawClient, Response
from support.raw_websocket import CLOSE, PING, PONG, TEXT, Said, frame

GONE = {1000, 1001, 1006, 1011, 1012, 1013}  # closes after which a program comes back
_DECODER = json.JSONDecoder()


class WebSocketClient(RawClient):
    """Every record of a message has that message's position: a frame comes whole or not at all.

    closes: the code of every close frame that came.
    """

    name: ClassVar[str] = "websocket"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.closes: list[int | None] = []

    def _request(self) -> bytes:
        parts = self._parts
        if self._id:
            query = f"{parts.query}&" if parts.query else ""
            parts = parts._replace(query=f"{query}lastEventId={quote(self._id)}")
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        headers = {"Host": parts.netloc} | self.headers
        headers |= {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        lines = [f"GET {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        return "\r\n".join(lines).encode()

    def gives_up(self, response: Response) -> bool:
        return response.status != 503

    async def _read(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := await self._receive(sock)):
                return
            head += piece
        head, _, rest = head.partition(b"\r\n\r\n")
        if not self._switched(head.decode("latin-1")):
            return
        frames = Frames()
        piece = rest
        while True:
            self._wire += piece
            for said in frames.feed(piece):
                if not await self._hear(sock, said):
                    return
            if not (piece := await self._receive(sock)):
                return

    def _switched(self, head: str) -> bool:
        status, *lines = head.split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        response = Response(int(status.split()[1]), headers)
        self.responses.append(response)
        switched = response.status == 101
        self.closed = not switched and self.gives_up(response)
        self.opened += switched
        return switched

    async def _hear(self, sock: socket.socket, said: Said) -> bool:
        """False when it is over."""
        loop = asyncio.get_running_loop()
        if said.opcode == TEXT:
            self._take(said.payload.decode())
        elif said.opcode == PING:
            await loop.sock_sendall(sock, frame(PONG, said.payload))
        elif said.opcode == CLOSE:
            self.closes.append(said.code)
            self.closed = said.code not in GONE
            await loop.sock_sendall(sock, frame(CLOSE, said.payload))
            return False
        return True

    def _take(self, text: str) -> None:
        told = json.loads(text)
        name = told.pop("type")
        self._id = told.pop("position", self._id)
        if name == "records":
            for data in records(text):
                self.events.append(Event(event="message", id=self._id, data=data))
        else:
            data = told.pop("record") if name == "delete" else told
            self.events.append(Event(event=name, id=self._id, data=json.dumps(data)))


class Frames:
    """Whole frames of a server, from bytes that are cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Said]:
        self._rest += piece
        found = []
        while (said := self._one()) is not None:
            found.append(said)
        return found

    def _one(self) -> Said | None:
        data = self._rest
        if len(data) < 2:
            return None
        assert data[0] & 0xB0 == 0x80 and not data[1] & 0x80, data[:2]
        wide = {126: 2, 127: 8}.get(data[1], 0)
        length = int.from_bytes(data[2 : 2 + wide], "big") if wide else data[1]
        end = 2 + wide + length
        if len(data) < max(end, 2 + wide):
            return None
        self._rest = data[end:]
        return Said(data[0] & 0x0F, data[2 + wide : end], bool(data[0] & 0x40))


def records(message: str) -> list[str]:
    """The records of a `records` message: JSON to the byte, text where it is a string."""
    at = message.index('"records":[') + len('"records":[')
    found = []
    while message[at] != "]":
        start = at + len(message[at:]) - len(message[at:].lstrip())
        value, end = _DECODER.raw_decode(message, start)
        found.append(value if isinstance(value, str) else message[start:end])
        at = end + len(message[end:]) - len(message[end:].lstrip())
        at += message[at] == ","
    return found
