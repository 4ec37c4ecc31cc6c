"""Many clients in one loop that cost little: they count records by their mark, nothing else.

uvloop gives each read as one piece of bytes; what is joined in it is counted at once. A WebSocket
is not parsed either: pings are found by how they begin, wherever they are in what was read. The
gateway closes a connection whose pings are not answered with their own payload, after 20 to 40 s.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from typing import Self, cast

from .records import AT, MARK, seconds

PATIENCE = 60.0  # s
PIPES = 256  # connects under way at the same time
_HEAD_END = b"\r\n\r\n"
_PING = 0x89  # in no value, which are ASCII; as a length it makes a pong that nobody waits for
_PINGS = re.compile(rb"\x89\x04(.{4})", re.DOTALL)
_CUT_PING = re.compile(rb"\x89(?:\x04.{0,3})?\Z", re.DOTALL)
_LONGEST_CUT = 5  # bytes of a ping whose last is not there yet
_PONG = b"\x8a\x84\0\0\0\0"  # to be followed by the payload, masked with zeros


class Counting(asyncio.Protocol):
    """One connection. opened_at: its greeting was whole. first_at: its first record came."""

    __slots__ = (
        "asked_at", "crowd", "cut", "first_at", "got", "greeting", "half", "opened", "opened_at",
        "opening", "request", "socket", "timed", "transport",
    )  # fmt: skip

    def __init__(self, crowd: Crowd, request: bytes, greeting: bytes, timed: bool) -> None:
        self.crowd = crowd
        self.request = request
        self.greeting = greeting
        self.timed = timed
        self.socket = b"Upgrade: websocket" in request
        self.got = 0
        self.half = b""
        self.cut = b""  # the beginning of a ping
        self.opening: bytes | None = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked_at = time.monotonic()
        self.opened_at = self.first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not registered as one
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.socket and (_PING in data or self.cut):
            self._answer(self.cut + data)  # one may come before the greeting, too
        if self.opening is not None and not (data := self._open(data)):
            return
        crowd = self.crowd
        count = data.count(MARK)
        if self.half:
            count += (self.half + data[:2]).count(MARK)
            self.half = b""
        if data[-1] in b'"~':
            self.half = data[-2:]
        crowd.bytes += len(data)
        if count:
            self.got += count
            crowd.got += count
            if self.timed:
                crowd.came(self, data)
            if crowd.got >= crowd.target:
                crowd.reached()

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.lost += 1
        self.crowd.reached()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(f"no stream: {self.opening!r}"))

    def _answer(self, data: bytes) -> None:
        """Send the pong of each ping; one that is cut waits for its rest."""
        for payload in _PINGS.findall(data):
            self.transport.write(_PONG + payload)
        cut = _CUT_PING.search(data[-_LONGEST_CUT:])
        self.cut = cut[0] if cut else b""

    def _open(self, data: bytes) -> bytes:
        """What follows the greeting; records may come in the same piece."""
        assert self.opening is not None
        self.opening += data
        head, found, body = self.opening.partition(_HEAD_END)
        if not found or self.greeting not in body:
            return b""
        if head.split(b" ", 2)[1] not in (b"200", b"101"):
            self.transport.abort()
            return b""
        self.opened_at = time.monotonic()
        self.opening = None
        self.opened.set_result(None)
        return body[body.index(self.greeting) + len(self.greeting) :]


class Crowd:
    """got: records that came, at all clients together. lost: connections that ended.

    times: of each piece that came to a client that is timed, when, and when its records were made.
    """

    def __init__(self) -> None:
        self.clients: list[Counting] = []
        self.got = self.bytes = self.lost = 0
        self.target = 1 << 62
        self.times: list[tuple[float, list[bytes]]] = []
        self._reached: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def count(self) -> int:
        return self.got

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.sleep(0)

    async def open(
        self,
        port: int,
        count: int,
        request: Callable[[int], bytes],
        greeting: bytes = b"",
        *,
        timed: int = 0,
        pipes: int = PIPES,
    ) -> None:
        """So many more, each when its greeting was whole. timed: one of how many; 0 for none.
        Raises ConnectionError with the answer that was none."""
        slots, first = asyncio.Semaphore(pipes), len(self.clients)

        async def one(n: int) -> None:
            async with slots:
                client = Counting(
                    self, request(n), greeting, bool(timed) and (n - first) % timed == 0
                )
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: client, "127.0.0.1", port)
                await asyncio.wait_for(client.opened, PATIENCE)
                self.clients.append(client)

        await asyncio.gather(*(one(first + n) for n in range(count)))

    async def until(self, got: int, within: float = math.inf, *, silence: float = PATIENCE) -> bool:
        """Wait until so many records have come in all.

        False if they will not: a connection ended, or nothing came for `silence` seconds. However
        slow the machine is, what still comes is waited for, but for no longer than `within`.
        """
        ends = time.monotonic() + within
        while self.got < got and not self.lost:
            before, wait = self.got, min(silence, ends - time.monotonic())
            self.target = got
            self._reached = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._reached, wait)
            except TimeoutError:
                if self.got == before or time.monotonic() >= ends:
                    break
        self.target = 1 << 62
        return self.got >= got

    def reached(self) -> None:
        """Wake who waits: all has come, or a connection ended."""
        self.target = 1 << 62
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)

    def came(self, client: Counting, data: bytes) -> None:
        now = time.monotonic()
        client.first_at = client.first_at or now
        self.times.append((now, AT.findall(data)))

    def latencies(self) -> list[float]:
        """Seconds from made to received, of all that came to those that are timed."""
        return [now - seconds(at) for now, found in self.times for at in found]

    def close(self) -> None:
        for client in self.clients:
            client.transport.abort()
