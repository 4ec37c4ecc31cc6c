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

from support.clients.client import ReceivedEvent
from support.clients.raw import RawClient, ResponseHead
from support.raw_websocket import (
    OPCODE_CLOSE,
    OPCODE_PING,
    OPCODE_PONG,
    OPCODE_TEXT,
    ServerFrame,
    build_frame,
)

RECONNECT_CODES = {1000, 1001, 1006, 1011, 1012, 1013}  # closes after which a program comes back
_DECODER = json.JSONDecoder()


class WebSocketClient(RawClient):
    """Every record of a message has that message's position: a frame comes whole or not at all.

    closes: the code of every close frame that came.
    """

    name: ClassVar[str] = "websocket"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.close_codes: list[int | None] = []

    def _build_request(self) -> bytes:
        parts = self._url_parts
        if self._last_event_id:
            query = f"{parts.query}&" if parts.query else ""
            parts = parts._replace(query=f"{query}lastEventId={quote(self._last_event_id)}")
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

    def should_give_up(self, response: ResponseHead) -> bool:
        return response.status != 503

    async def _read_response(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := await self._receive_piece(sock)):
                return
            head += piece
        head, _, rest = head.partition(b"\r\n\r\n")
        if not self._is_switched(head.decode("latin-1")):
            return
        frames = FrameParser()
        piece = rest
        while True:
            if self.keeps_body:
                self._body += piece
            for said in frames.feed(piece):
                if not await self._handle_frame(sock, said):
                    return
            if not (piece := await self._receive_piece(sock)):
                return

    def _is_switched(self, head: str) -> bool:
        status, *lines = head.split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        response = ResponseHead(int(status.split()[1]), headers)
        self.responses.append(response)
        switched = response.status == 101
        self.is_closed = not switched and self.should_give_up(response)
        self.open_count += switched
        return switched

    async def _handle_frame(self, sock: socket.socket, frame: ServerFrame) -> bool:
        """False when it is over."""
        loop = asyncio.get_running_loop()
        if frame.opcode == OPCODE_TEXT:
            self._apply_message(frame.payload.decode())
        elif frame.opcode == OPCODE_PING:
            await loop.sock_sendall(sock, build_frame(OPCODE_PONG, frame.payload))
        elif frame.opcode == OPCODE_CLOSE:
            self.close_codes.append(frame.close_code)
            self.is_closed = frame.close_code not in RECONNECT_CODES
            await loop.sock_sendall(sock, build_frame(OPCODE_CLOSE, frame.payload))
            return False
        return True

    def _apply_message(self, text: str) -> None:
        told = json.loads(text)
        name = told.pop("type")
        self._last_event_id = told.pop("position", self._last_event_id)
        if name == "records":
            for data in split_records(text):
                self.events.append(
                    ReceivedEvent(event="message", id=self._last_event_id, data=data)
                )
        else:
            data = told.pop("record") if name == "delete" else told
            self.events.append(
                ReceivedEvent(event=name, id=self._last_event_id, data=json.dumps(data))
            )


class FrameParser:
    """Whole frames of a server, from bytes that are cut anywhere."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[ServerFrame]:
        self._buffer += data
        found = []
        while (said := self._parse_frame()) is not None:
            found.append(said)
        return found

    def _parse_frame(self) -> ServerFrame | None:
        data = self._buffer
        if len(data) < 2:
            return None
        assert data[0] & 0xB0 == 0x80 and not data[1] & 0x80, data[:2]
        wide = {126: 2, 127: 8}.get(data[1], 0)
        length = int.from_bytes(data[2 : 2 + wide], "big") if wide else data[1]
        end = 2 + wide + length
        if len(data) < max(end, 2 + wide):
            return None
        self._buffer = data[end:]
        return ServerFrame(data[0] & 0x0F, data[2 + wide : end], bool(data[0] & 0x40))


def split_records(message: str) -> list[str]:
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
