"""Clients that read every byte: chunks, frames, events, values and ids; what came, and how often.

Values are those of `records`; whatever else has their mark in it counts as damaged. A client that
was cut comes back with the id that it read last, as a browser would.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Callable, Iterable
from typing import cast

from .crowd import PATIENCE, PIPES
from .feed import Wire
from .records import MARK

_VALUE = rb'\{"m":"~","at":\d{16},"n":(\d+),"pad":"[a-z ]*"\}'
_EVENT = re.compile(rb"data: ?" + _VALUE + rb"\n(?:id: ?\S+\n)?\n")
_RECORD = re.compile(_VALUE)
_ID = re.compile(rb"^id: ?(\S+)$", re.MULTILINE)
_POSITION = re.compile(rb'"position":"([^"]+)"')
_HEAD_END = b"\r\n\r\n"
_PING = 9


class Exact:
    """What one client has, over all of its connections.

    token: of the last event. ids: how many events had one. bytes: behind the answer's head.
    twice: records that came again. damaged: those that were not whole.
    `expect` says which records make it whole, and live: `done_at` is when it was both.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.token = b""
        self.seen = bytearray()
        self.got = self.twice = self.damaged = self.ids = self.bytes = 0
        self.compressed = False  # something came so
        self.broken = ""  # why the connection ended that was not cut
        self.done_at = 0.0
        self._first = self._end = 1 << 62
        self._left = 0
        self.connection: Connection | None = None

    def expect(self, first: int, end: int) -> None:
        """Whole with all of these, live with any after them."""
        self._first, self._end, self._left = first, end, end - first
        self.done_at = 0.0

    def lost(self, first: int, end: int) -> int:
        return end - first - sum(self.seen[first:end])

    @property
    def left(self) -> int:
        return self._left

    def note(self, numbers: list[bytes]) -> None:
        if not numbers:
            return
        self.got += len(numbers)
        seen, first, end, live = self.seen, self._first, self._end, False
        for n in map(int, numbers):
            if n >= len(seen):
                seen.extend(bytes(n + 10_000 - len(seen)))
            if seen[n]:
                self.twice += 1
                continue
            seen[n] = 1
            if n >= end:
                live = True
            elif n >= first:
                self._left -= 1
        if live and not self._left and not self.done_at:
            self.done_at = time.monotonic()

    def has(self, count: int) -> bool:
        """Raises ConnectionError if no more will come."""
        if self.got < count and self.broken:
            raise ConnectionError(self.broken)
        return self.got >= count

    def cut(self) -> None:
        if self.connection is not None:
            self.connection.transport.abort()
            self.connection.client = None
            self.connection = None


def received(clients: Iterable[Exact]) -> int:
    return sum(client.got for client in clients)


class Connection(asyncio.Protocol):
    def __init__(self, client: Exact, request: bytes) -> None:
        self.client: Exact | None = client
        self.request = request
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.head = b""
        self.rest = b""
        self.text = b""
        self.chunked = False
        self.gzip: zlib._Decompress | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(f"no stream: {self.head!r}"))
        if self.client is not None:
            self.client.broken = f"the server closed, {exc!r}"

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            return
        if not self.opened.done():
            head, found, data = (self.head + data).partition(_HEAD_END)
            self.head = head
            if not found:
                return
            if head.split(b" ", 2)[1] not in (b"200", b"101"):
                self.transport.abort()
                return
            self.chunked = b"chunked" in head.lower()
            if b"\r\ncontent-encoding: gzip" in head.lower():
                self.gzip = zlib.decompressobj(31)
            self.opened.set_result(None)
        client.bytes += len(data)
        if client.wire is Wire.WS:
            self._frames(client, self.rest + data)
            return
        if self.chunked:
            data = self._dechunked(self.rest + data)
        if self.gzip is not None and data:
            client.compressed = True
            data = self.gzip.decompress(data)
        self._events(client, data)

    def _dechunked(self, data: bytes) -> bytes:
        """What is whole of chunked data; the rest is kept (RFC 9112 7.1)."""
        out, at = [], 0
        while (line := data.find(b"\r\n", at)) >= 0:
            end = line + 2 + int(data[at:line], 16)
            if len(data) < end + 2:
                break
            out.append(data[line + 2 : end])
            at = end + 2
        self.rest = data[at:]
        return b"".join(out)

    def _events(self, client: Exact, data: bytes) -> None:
        text = (self.text + data).replace(b"\r\n", b"\n")
        end = text.rfind(b"\n\n") + 2
        if end < 2:
            self.text = text
            return
        whole, self.text = text[:end], text[end:]
        numbers = _EVENT.findall(whole)
        client.damaged += whole.count(MARK) - len(numbers)
        client.ids += whole.count(b"\nid:")
        if last := _ID.search(whole, max(0, whole.rfind(b"\nid:"))):
            client.token = last[1]
        client.note(numbers)

    def _frames(self, client: Exact, data: bytes) -> None:
        """RFC 6455 5.2; messages are one frame each here."""
        at = 0
        while len(data) - at >= 2:
            first, size, body = data[at], data[at + 1], at + 2
            wide = {126: 2, 127: 8}.get(size, 0)
            if wide:
                size = int.from_bytes(data[body : body + wide], "big")
                body += wide
            if len(data) < body + size:
                break
            payload = data[body : body + size]
            if first & 0x40:  # RFC 7692 7.2.2; every message by itself
                client.compressed = True
                payload = zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")
            self._message(client, first & 15, payload)
            at = body + size
        self.rest = data[at:]

    def _message(self, client: Exact, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            # Masked with zeros; one with another payload counts as none (RFC 6455 5.5.3).
            self.transport.write(b"\x8a%c\0\0\0\0%b" % (0x80 | len(payload), payload))
            return
        numbers = _RECORD.findall(payload)
        client.damaged += payload.count(MARK) - len(numbers)
        if position := _POSITION.search(payload, max(0, payload.rfind(b'"position":'))):
            client.token = position[1]
            client.ids += 1
        client.note(numbers)


async def connect(
    clients: list[Exact],
    port: int,
    request: Callable[[int, bytes], bytes],
    within: float | None = PATIENCE,
) -> None:
    """All at once, each from where it stood. within: s for each to be answered."""
    slots = asyncio.Semaphore(PIPES)

    async def one(n: int, client: Exact) -> None:
        async with slots:
            connection = Connection(client, request(n, client.token))
            client.connection = connection
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, "127.0.0.1", port)
            await asyncio.wait_for(connection.opened, within)

    await asyncio.gather(*(one(n, client) for n, client in enumerate(clients)))
