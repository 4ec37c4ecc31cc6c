"""Read a stream at little cost: count records by one byte of each, and parse nothing else.

50 of them in one loop take in 1.2 million records a second (see README.md), so the gateway is
measured and not its clients. Times are of `time.monotonic()`, the same in every process here.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from support.gateways import GatewayProcess
from support.waiting import wait_until

from .producer import MARK

STREAM_TIMEOUT_S = 60.0  # s
_BEGIN_PATTERN = re.compile(rb"event: begin\n.*?\nid: \S+\n\n", re.DOTALL)
_ARRIVAL_PATTERN = re.compile(rb"~(\d+) (\d+);|event: (gap)\n")
_MAX_MATCH_BYTES = 64  # bytes of what `_HEARD` finds


class Arrival(NamedTuple):
    """at: when it came. sent: when it was produced; None for a gap."""

    received_at: float
    sent_at: float | None = None
    partition: int = -1


class Stream(asyncio.Protocol):
    """One connection.

    records:  how many came.         heard: all that came, if it `listens`.
    asked_at: before connecting.     began_at: the first block was whole.
    first_at, last_at: the first and the last piece with records.
    """

    def __init__(self, request: bytes, keeps_arrivals: bool) -> None:
        self.record_count = self.byte_count = 0
        self.arrivals: list[Arrival] = []
        self.requested_at = time.monotonic()
        self.began_at = self.first_record_at = self.last_record_at = 0.0
        self.is_closed = False
        self._request = request
        self._keeps_arrivals = keeps_arrivals
        self._opening_bytes = b""
        self._unparsed = b""
        self._begun_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls,
        gateway: GatewayProcess,
        topic: str,
        *,
        query: str = "",
        keeps_arrivals: bool = False,
        receive_buffer: int | None = None,
    ) -> Self:
        """Return when the stream has begun. Raises ConnectionError with the answer if not."""
        request = f"GET /events/{topic}{query} HTTP/1.1\r\nHost: localhost\r\n".encode()
        host, port = "127.0.0.1", gateway.port
        stream = cls(request + b"Accept: text/event-stream\r\n\r\n", keeps_arrivals)
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, port))
        await loop.create_connection(lambda: stream, sock=sock)
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            await stream._begun_future
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self.byte_count += len(data)
        if not self.began_at:
            self._read_opening(data, now)
        count = data.count(MARK)
        if count:
            self.first_record_at = self.first_record_at or now
            self.last_record_at = now
            self.record_count += count
        if self._keeps_arrivals:
            self._record_arrivals(data, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if not self._begun_future.done():
            self._begun_future.set_exception(
                ConnectionError(f"no stream: {self._opening_bytes[:500]!r}")
            )

    def close(self) -> None:
        self.transport.abort()

    async def wait_for_records(self, record_count: int) -> None:
        """Until so many have come in all. Raises ConnectionError if the stream ends before."""
        await self.wait_for(
            lambda: self.record_count >= record_count,
            lambda: f"{record_count} records, {self.record_count} came",
        )

    async def wait_for(
        self, condition: Callable[[], bool], description: str | Callable[[], str]
    ) -> None:
        """Until the condition, likewise."""

        def is_met() -> bool:
            if self.is_closed and not condition():
                raise ConnectionError(f"the stream ended before {describe()}")
            return condition()

        def describe() -> str:
            return description if isinstance(description, str) else description()

        await wait_until(is_met, describe, STREAM_TIMEOUT_S, 0.002)

    def _read_opening(self, data: bytes, now: float) -> None:
        self._opening_bytes += data
        begin = _BEGIN_PATTERN.search(self._opening_bytes)
        if begin is not None and not self._begun_future.done():
            self.began_at = now
            self._begun_future.set_result(None)

    def _record_arrivals(self, data: bytes, now: float) -> None:
        text, end = self._unparsed + data, 0
        for found in _ARRIVAL_PATTERN.finditer(text):
            end = found.end()
            sent = None if found[3] else int(found[1]) / 1e6
            self.arrivals.append(Arrival(now, sent, -1 if found[3] else int(found[2])))
        self._unparsed = text[max(end, len(text) - _MAX_MATCH_BYTES) :]


@asynccontextmanager
async def open_streams(
    gateway: GatewayProcess, topic: str, count: int, *, keeps_arrivals: bool = False
) -> AsyncIterator[list[Stream]]:
    """So many that have begun; closed with the block."""
    opened = [Stream.connect(gateway, topic, keeps_arrivals=keeps_arrivals) for _ in range(count)]
    all_of = await asyncio.gather(*opened)
    try:
        yield all_of
    finally:
        for stream in all_of:
            stream.close()


def compute_latencies(
    streams: list[Stream], since: float = 0.0, before: float = 1e18
) -> list[float]:
    """Seconds from produced to received of all records produced in that time."""
    return [
        heard.received_at - heard.sent_at
        for stream in streams
        for heard in stream.arrivals
        if heard.sent_at is not None and since <= heard.sent_at < before
    ]
