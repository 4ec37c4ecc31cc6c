"""Run many cheap clients in one loop, which only count records by their mark.

uvloop delivers each read as one bytes object; all records in it are counted at once. WebSocket
frames are not parsed either: pings are found by their first bytes, wherever they are in a read. The
gateway closes a connection whose pings are not answered with their own payload, after 20 to 40 s.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from typing import Self, cast

from support.waiting import wait_until

from .records import MARK, TIME_PATTERN, parse_time

CLIENT_TIMEOUT_S = 60.0  # s
MAX_PENDING_CONNECTS = 256  # connects under way at the same time
CLIENTS_PER_ADDRESS = 5000  # of 28,000 ports; only `connect` takes those of ended connections again
_HEAD_END = b"\r\n\r\n"
_PING_BYTE = 0x89  # in no value, which are ASCII; as a length it makes a pong that nobody waits for
_PING_PATTERN = re.compile(rb"\x89\x04(.{4})", re.DOTALL)
_PARTIAL_PING_PATTERN = re.compile(rb"\x89(?:\x04.{0,3})?\Z", re.DOTALL)
_MAX_PARTIAL_PING_BYTES = 5  # bytes of a ping whose last is not there yet
_POSITION_PATTERN = re.compile(rb'\nid: (\S+)|"position":"([^"]+)"')
_PONG_HEAD = b"\x8a\x84\0\0\0\0"  # to be followed by the payload, masked with zeros


class CountingClient(asyncio.Protocol):
    """One connection. opened_at: its greeting was whole. first_at: its first record came."""

    __slots__ = (
        "first_record_at",
        "greeting",
        "is_timed",
        "is_websocket",
        "last_position_data",
        "opened_at",
        "opened_future",
        "opening_bytes",
        "partial_mark",
        "partial_ping",
        "pool",
        "record_count",
        "request",
        "requested_at",
        "transport",
    )  # fmt: skip

    def __init__(self, pool: ClientPool, request: bytes, greeting: bytes, is_timed: bool) -> None:
        self.pool = pool
        self.request = request
        self.greeting = greeting
        self.is_timed = is_timed
        self.is_websocket = b"Upgrade: websocket" in request
        self.record_count = 0
        self.partial_mark = b""
        self.partial_ping = b""  # the beginning of a ping
        self.opening_bytes: bytes | None = b""
        self.last_position_data = b""  # the last piece with an id, if the pool keeps positions
        self.opened_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requested_at = time.monotonic()
        self.opened_at = self.first_record_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not registered as one
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.is_websocket and (_PING_BYTE in data or self.partial_ping):
            self._send_pongs(self.partial_ping + data)  # one may come before the greeting, too
        if self.opening_bytes is not None and not (data := self._read_opening(data)):
            return
        crowd = self.pool
        count = data.count(MARK)
        if self.partial_mark:
            count += (self.partial_mark + data[:2]).count(MARK)
            self.partial_mark = b""
        if data[-1] in b'"~':
            self.partial_mark = data[-2:]
        crowd.byte_count += len(data)
        if crowd.keeps_positions and (b"\nid: " in data or b'"position"' in data):
            self.last_position_data = data
        if count:
            self.record_count += count
            crowd.record_count += count
            if self.is_timed:
                crowd.record_arrival(self, data)
            if crowd.record_count >= crowd.target_count:
                crowd.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.closed_count += 1
        self.pool.wake()
        if not self.opened_future.done():
            self.opened_future.set_exception(ConnectionError(f"no stream: {self.opening_bytes!r}"))

    def get_position(self) -> bytes:
        """The id of the last event that had one."""
        *_, last = _POSITION_PATTERN.findall(self.last_position_data)
        return b"".join(last)

    def _send_pongs(self, data: bytes) -> None:
        """Send the pong of each ping; one that is cut waits for its rest."""
        for payload in _PING_PATTERN.findall(data):
            self.transport.write(_PONG_HEAD + payload)
        cut = _PARTIAL_PING_PATTERN.search(data[-_MAX_PARTIAL_PING_BYTES:])
        self.partial_ping = cut[0] if cut else b""

    def _read_opening(self, data: bytes) -> bytes:
        """What follows the greeting; records may come in the same piece."""
        assert self.opening_bytes is not None
        self.opening_bytes += data
        head, found, body = self.opening_bytes.partition(_HEAD_END)
        if not found or self.greeting not in body:
            return b""
        if head.split(b" ", 2)[1] not in (b"200", b"101"):
            self.transport.abort()
            return b""
        self.opened_at = time.monotonic()
        self.opening_bytes = None
        if not self.opened_future.done():  # it is cancelled if nobody waits for it any more
            self.opened_future.set_result(None)
        return body[body.index(self.greeting) + len(self.greeting) :]


class ClientPool:
    """got: records that came, at all clients together. lost: connections that ended.

    times: of each piece that came to a client that is timed, when, and when its records were made.
    keeps_positions: each client knows where it stands.
    """

    def __init__(self, *, keeps_positions: bool = False) -> None:
        self.keeps_positions = keeps_positions
        self.clients: list[CountingClient] = []
        self.record_count = self.byte_count = self.closed_count = 0
        self.target_count = 1 << 62
        self.arrivals: list[tuple[float, list[bytes]]] = []
        self._reached_future: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def get_record_count(self) -> int:
        return self.record_count

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.sleep(0)

    async def open_clients(
        self,
        port: int,
        count: int,
        build_request: Callable[[int], bytes],
        greeting: bytes = b"",
        *,
        timed_every: int = 0,
        max_pending: int = MAX_PENDING_CONNECTS,
    ) -> None:
        """So many more, each when its greeting was whole. timed: one of how many; 0 for none.
        Raises ConnectionError with the answer that was none."""
        slots, first = asyncio.Semaphore(max_pending), len(self.clients)

        async def open_one(n: int) -> None:
            async with slots:
                client = CountingClient(
                    self,
                    build_request(n),
                    greeting,
                    bool(timed_every) and (n - first) % timed_every == 0,
                )
                loop = asyncio.get_running_loop()
                block = (n - first) // CLIENTS_PER_ADDRESS
                address = (f"127.0.0.{1 + block}", 0) if block else None
                await loop.create_connection(lambda: client, "127.0.0.1", port, local_addr=address)
                await asyncio.wait_for(client.opened_future, CLIENT_TIMEOUT_S)
                self.clients.append(client)

        await asyncio.gather(*(open_one(first + n) for n in range(count)))

    async def wait_for_records(
        self, record_count: int, timeout_s: float = math.inf, *, silence_s: float = CLIENT_TIMEOUT_S
    ) -> bool:
        """Wait until so many records have come in all.

        False if they will not: a connection ended, or nothing came for `silence` seconds. However
        slow the machine is, what still comes is waited for, but for no longer than `within`.
        """
        ends = time.monotonic() + timeout_s
        while self.record_count < record_count and not self.closed_count:
            before, wait = self.record_count, min(silence_s, ends - time.monotonic())
            self.target_count = record_count
            self._reached_future = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._reached_future, wait)
            except TimeoutError:
                if self.record_count == before or time.monotonic() >= ends:
                    break
        self.target_count = 1 << 62
        return self.record_count >= record_count

    async def wait_for_end(self) -> None:
        """Until no connection is left."""
        await wait_until(lambda: self.closed_count == len(self.clients), timeout_s=CLIENT_TIMEOUT_S)

    def wake(self) -> None:
        """Wake who waits: all has come, or a connection ended."""
        self.target_count = 1 << 62
        if self._reached_future is not None and not self._reached_future.done():
            self._reached_future.set_result(None)

    def record_arrival(self, client: CountingClient, data: bytes) -> None:
        now = time.monotonic()
        client.first_record_at = client.first_record_at or now
        self.arrivals.append((now, TIME_PATTERN.findall(data)))

    def compute_latencies(self) -> list[float]:
        """Seconds from made to received, of all that came to those that are timed."""
        return [now - parse_time(at) for now, found in self.arrivals for at in found]

    def close(self) -> None:
        for client in self.clients:
            client.transport.abort()
