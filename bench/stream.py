"""A client that costs little: it counts records by one byte of each and parses nothing else.

50 of them in one loop take in 1.2 million records a second (see README.md), so what is
measured is the gateway. Times are of `time.monotonic()`, the same in every process here.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from support.gateways import Gateway
from support.until import until

from .producer import MARK

PATIENCE = 60.0  # s
_BEGIN = re.compile(rb"event: begin\n.*?\nid: (\S+)\n\n", re.DOTALL)
_HEARD = re.compile(rb"~(\d+) (\d+);|event: (gap)\n")
_LONGEST = 64  # bytes of what `_HEARD` finds


class Heard(NamedTuple):
    """at: when it came. sent: when it was produced; None for a gap."""

    at: float
    sent: float | None = None
    partition: int = -1


class Stream(asyncio.Protocol):
    """One connection.

    records:  how many came.         heard: all that came, if it `listens`.
    asked_at: before connecting.     began_at: the first block was whole.
    first_at, last_at: the first and the last piece with records.
    """

    def __init__(self, request: bytes, listens: bool) -> None:
        self.records = self.bytes = 0
        self.heard: list[Heard] = []
        self.token = b""
        self.asked_at = time.monotonic()
        self.began_at = self.first_at = self.last_at = 0.0
        self.closed = False
        self._request = request
        self._listens = listens
        self._opening = b""
        self._rest = b""
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls,
        gateway: Gateway,
        topic: str,
        *,
        query: str = "",
        token: bytes = b"",
        listens: bool = False,
        receive_buffer: int | None = None,
    ) -> Self:
        """Return when the stream has begun. Raises ConnectionError with the answer if not."""
        request = f"GET /events/{topic}{query} HTTP/1.1\r\nHost: localhost\r\n".encode()
        request += b"Last-Event-ID: %b\r\n" % token if token else b""
        host, port = "127.0.0.1", gateway.port
        stream = cls(request + b"Accept: text/event-stream\r\n\r\n", listens)
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, port))
        await loop.create_connection(lambda: stream, sock=sock)
        async with asyncio.timeout(PATIENCE):
            await stream._begun
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self.bytes += len(data)
        if not self.began_at:
            self._open(data, now)
        count = data.count(MARK)
        if count:
            self.first_at = self.first_at or now
            self.last_at = now
            self.records += count
        if self._listens:
            self._hear(data, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self._begun.done():
            self._begun.set_exception(ConnectionError(f"no stream: {self._opening[:500]!r}"))

    def close(self) -> None:
        self.transport.abort()

    async def until(self, records: int) -> None:
        """Until so many have come in all. Raises ConnectionError if the stream ends before."""
        await self.hears(
            lambda: self.records >= records,
            lambda: f"{records} records, {self.records} came",
        )

    async def hears(self, condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
        """Until the condition, likewise."""

        def met() -> bool:
            if self.closed and not condition():
                raise ConnectionError(f"the stream ended before {told()}")
            return condition()

        def told() -> str:
            return what if isinstance(what, str) else what()

        await until(met, told, PATIENCE, 0.002)

    def _open(self, data: bytes, now: float) -> None:
        self._opening += data
        begin = _BEGIN.search(self._opening)
        if begin is not None and not self._begun.done():
            self.began_at, self.token = now, begin[1]
            self._begun.set_result(None)

    def _hear(self, data: bytes, now: float) -> None:
        text, end = self._rest + data, 0
        for found in _HEARD.finditer(text):
            end = found.end()
            sent = None if found[3] else int(found[1]) / 1e6
            self.heard.append(Heard(now, sent, -1 if found[3] else int(found[2])))
        self._rest = text[max(end, len(text) - _LONGEST) :]


@asynccontextmanager
async def streams(
    gateway: Gateway, topic: str, count: int, *, listens: bool = False
) -> AsyncIterator[list[Stream]]:
    """So many that have begun; closed with the block."""
    opened = [Stream.connect(gateway, topic, listens=listens) for _ in range(count)]
    all_of = await asyncio.gather(*opened)
    try:
        yield all_of
    finally:
        for stream in all_of:
            stream.close()


def latencies(all_of: list[Stream], since: float = 0.0, before: float = 1e18) -> list[float]:
    """Seconds from produced to received of all records produced in that time."""
    return [
        heard.at - heard.sent
        for stream in all_of
        for heard in stream.heard
        if heard.sent is not None and since <= heard.sent < before
    ]
