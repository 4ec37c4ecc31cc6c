"""Write given bytes by uvloop and `transport.write`: `python -m bench.peers.raw_server`.

On one port it accepts clients, and answers their request with the head of a stream or of a
WebSocket. On the other port it gets what to write: length, client number (-1: every client; both
int32), and the bytes.
"""

from __future__ import annotations

import asyncio
import re
import signal
import struct
from typing import cast

import uvloop

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
WS_HEAD = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
NUMBER_PATTERN = re.compile(rb"GET /(\d+)")

clients: dict[int, asyncio.Transport] = {}


class Client(asyncio.Protocol):
    number = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not registered as one

    def data_received(self, data: bytes) -> None:
        if asked := NUMBER_PATTERN.match(data):
            self.number = int(asked[1])
            self.transport.write(WS_HEAD if b"Upgrade" in data else SSE_HEAD)
            clients[self.number] = self.transport

    def connection_lost(self, exc: Exception | None) -> None:
        if clients.get(self.number) is self.transport:
            del clients[self.number]


class Control(asyncio.Protocol):
    def __init__(self) -> None:
        self.unparsed = b""

    def data_received(self, data: bytes) -> None:
        data = self.unparsed + data if self.unparsed else data
        at = 0
        while len(data) - at >= 8:
            size, client = struct.unpack_from("!ii", data, at)
            if len(data) - at < 8 + size:
                break
            chunk = data[at + 8 : at + 8 + size]
            at += 8 + size
            if client < 0:
                for transport in clients.values():
                    transport.write(chunk)
            elif client in clients:
                clients[client].write(chunk)
        self.unparsed = data[at:]


async def main() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    serving = await loop.create_server(Client, "127.0.0.1", 0, backlog=2048)
    told = await loop.create_server(Control, "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (serving, told)]
    print(f"listening on {ports[0]} and {ports[1]}", flush=True)
    await ended.wait()


uvloop.run(main())
