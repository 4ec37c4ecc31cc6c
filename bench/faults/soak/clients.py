"""Clients that come and go: each stays for a while, leaves, and comes back with its position.

A client with a key of its own gets records that are numbered one by one, so what is missing or
comes twice is seen at once, over all its connections. Others share one stream, by SSE or WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bench.client_pool import ClientPool, WebSocketClient
from bench.peers.peer import build_sse_request, build_ws_request
from bench.records import parse_time

OWN_PATH, SHARED_PATH = "/own", "/news"
OWN_SHARE, SHARED_SSE_SHARE = 0.9, 0.05  # of the clients; the rest uses WebSocket
RESUME_SHARE, ABRUPT_SHARE = 0.8, 0.5
MEAN_AWAY_S = 2.0
RETRY_S = 0.5
OPEN_TIMEOUT_S = 30.0
MAX_TAIL_BYTES = 4096  # of an event whose end is not there yet
SSE_GREETING, WS_GREETING = b"event: begin\n", b'{"type":"begin",'
_PATTERN = re.compile(
    rb'"at":(\d{16}),"n":(\d+)|\nid: ([^\n]+)\n|"position":"([^"]+)"|\nevent: (gap)\n'
)


@dataclass(slots=True)
class Visitor:
    """Somebody who has a client most of the time.

    Attributes:
        number: Its number, and its key.
        is_own: Whether it gets what has its key, or the shared stream.
        is_websocket: Whether it comes by WebSocket.
        position: Where it goes on; empty for live.
        next_number: The number of the record that comes next; None if any may.
    """

    number: int
    is_own: bool
    is_websocket: bool = False
    position: bytes = b""
    next_number: int | None = None

    def build_request(self) -> bytes:
        """Build the request of its next client."""
        path = f"{OWN_PATH}/{self.number}" if self.is_own else SHARED_PATH
        if self.is_websocket:
            return build_ws_request(path)
        return build_sse_request(path, self.position)


class VisitingClient(WebSocketClient):
    """One connection of a visitor, on either wire: no ping is in a stream of events."""

    __slots__ = ("_tail", "_uncommitted", "lost_future", "visitor", "visitors")

    def __init__(self, visitors: Visitors, visitor: Visitor) -> None:
        greeting = WS_GREETING if visitor.is_websocket else SSE_GREETING
        super().__init__(visitors, visitor.build_request(), greeting)
        self.visitors = visitors
        self.visitor = visitor
        self.lost_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = b""
        self._uncommitted: list[int] = []  # records whose id has not come

    def data_received(self, data: bytes) -> None:
        """Count by the base class, and read numbers, times and positions."""
        super().data_received(data)
        data, end, now = self._tail + data, 0, time.monotonic()
        for found in _PATTERN.finditer(data):
            at, number, id_, position, gap = found.groups()
            # The line break after an id may be the one before the next field.
            end = found.end() - 1 if id_ else found.end()
            if at:
                self._uncommitted.append(int(number))
                sent_at = parse_time(at)
                if self.opened_at and sent_at > self.opened_at:
                    self.visitors.latencies.append(now - sent_at)
            elif gap:
                self.visitors.add_finding(self.visitor, "a gap was told")
            else:
                self._commit(id_ or position)
        self._tail = data[end:][-MAX_TAIL_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the visitor."""
        super().connection_lost(exc)
        if not self.lost_future.done():
            self.lost_future.set_result(None)

    def _commit(self, position: bytes) -> None:
        visitor = self.visitor
        if visitor.is_websocket:
            self._uncommitted.clear()
            return
        visitor.position = position
        for number in self._uncommitted if visitor.is_own else ():
            if visitor.next_number is not None and number != visitor.next_number:
                text = f"got record {number}, expected {visitor.next_number}"
                self.visitors.add_finding(visitor, text)
            visitor.next_number = number + 1
        self._uncommitted.clear()


class Visitors(ClientPool):
    """All visitors of a soak.

    Attributes:
        latencies: Seconds from sent to received since the last `take_latencies`, of records that
            were sent while their client was there.
        open_count: Clients that are there now.
        visit_count: Clients that were there.
        findings: What was wrong.
    """

    def __init__(
        self, count: int, random: Random, mean_stay_s: float, choose_port: Callable[[], int]
    ) -> None:
        super().__init__()
        self.latencies: list[float] = []
        self.open_count = self.visit_count = 0
        self.findings: list[str] = []
        self._random = random
        self._mean_stay_s = mean_stay_s
        self._choose_port = choose_port
        own, shared = int(count * OWN_SHARE), int(count * SHARED_SSE_SHARE)
        self.visitors = [Visitor(n, n < own, is_websocket=n >= own + shared) for n in range(count)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, within_s: float) -> None:
        """Have all come, evenly spread."""
        self._tasks = [
            asyncio.create_task(self._visit_forever(each, within_s * n / len(self.visitors)))
            for n, each in enumerate(self.visitors)
        ]

    async def stop(self) -> None:
        """Have all leave for good."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def visit_once(self, visitor: Visitor, stay_s: float) -> None:
        """Be there, and leave; return as well when the connection ends by itself, or is refused."""
        client: VisitingClient | None = None
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                _, client = await asyncio.get_running_loop().create_connection(
                    lambda: VisitingClient(self, visitor), "127.0.0.1", self._choose_port()
                )
                await client.opened_future
        except (OSError, TimeoutError):
            if client is not None:
                client.transport.abort()
            await asyncio.sleep(RETRY_S)
            return
        except asyncio.CancelledError:
            if client is not None:
                client.transport.abort()
            raise
        self.open_count += 1
        self.visit_count += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stay_s):
                    await asyncio.shield(client.lost_future)
        finally:
            self.open_count -= 1
            if self._random.random() < ABRUPT_SHARE:
                client.transport.abort()
            else:
                client.transport.close()

    def take_latencies(self) -> list[float]:
        """Return the latencies since the last call."""
        taken, self.latencies = self.latencies, []
        return taken

    def add_finding(self, visitor: Visitor, text: str) -> None:
        """Note that something is wrong."""
        self.findings.append(f"visitor {visitor.number}: {text}")

    async def _visit_forever(self, visitor: Visitor, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            await self.visit_once(visitor, self._random.expovariate(1 / self._mean_stay_s))
            await asyncio.sleep(self._random.expovariate(1 / MEAN_AWAY_S))
            if self._random.random() > RESUME_SHARE:
                visitor.position, visitor.next_number = b"", None
