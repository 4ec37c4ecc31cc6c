"""Run the clients of all works in one loop: one for SSE, one for WebSocket.

They count records by their mark: uvloop delivers each read as one bytes object, and all records in
it are counted at once. WebSocket frames are not parsed either: pings are found by their first
bytes, wherever they are in a read. The gateway closes a connection whose pings are not answered
with their own payload, after 20 to 40 s.

A client with a `Ledger` reads every byte instead: it checks chunks, frames, events, values and ids.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Self, cast

from support.waiting import wait_until
from support.zstd import FrameDecoder

from .ledger import Ledger
from .records import ARRIVAL_PATTERN, MARK, parse_time

CLIENT_TIMEOUT_S = 60.0  # s
MAX_PENDING_CONNECTS = 256  # connects under way at the same time
CLIENTS_PER_ADDRESS = 5000  # of 28,000 ports; only `connect` takes those of ended connections again
_HEAD_END = b"\r\n\r\n"
_PING_BYTE = 0x89  # in no value, which are ASCII; as a length it makes a pong that nobody waits for
_PING_OPCODE = 9
_PING_PATTERN = re.compile(rb"\x89\x04(.{4})", re.DOTALL)
_PARTIAL_PING_PATTERN = re.compile(rb"\x89(?:\x04.{0,3})?\Z", re.DOTALL)
_MAX_PARTIAL_PING_BYTES = 5  # bytes of a ping whose last is not there yet
_POSITION_PATTERN = re.compile(rb'\nid: (\S+)|"position":"([^"]+)"')


class Client(asyncio.Protocol):
    """One connection. opened_at: its greeting was whole. first_record_at: its first record came."""

    __slots__ = (
        "first_record_at", "greeting", "is_timed", "last_position_data", "ledger", "opened_at",
        "opened_future", "opening_bytes", "partial_mark", "pool", "record_count", "request",
        "requested_at", "transport", "unparsed",
    )  # fmt: skip

    def __init__(
        self,
        pool: ClientPool,
        request: bytes,
        greeting: bytes = b"",
        *,
        is_timed: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        self.pool = pool
        self.request = request
        self.greeting = greeting
        self.is_timed = is_timed
        self.ledger = ledger
        self.record_count = 0
        self.partial_mark = b""
        self.unparsed = b""
        self.opening_bytes = b""
        self.last_position_data = b""  # the last piece with an id, if the pool keeps positions
        self.opened_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requested_at = time.monotonic()
        self.opened_at = self.first_record_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not registered as one
        if self.ledger is not None:
            self.ledger.client = self
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not self.opened_at and not (data := self._read_opening(data)):
            return
        if self.ledger is not None:
            if self.ledger.client is self:
                self.ledger.byte_count += len(data)
                self._check_bytes(self.ledger, data)
            return
        pool = self.pool
        count = data.count(MARK)
        if self.partial_mark:
            count += (self.partial_mark + data[:2]).count(MARK)
            self.partial_mark = b""
        if data[-1] in b'"~':
            self.partial_mark = data[-2:]
        pool.byte_count += len(data)
        if pool.keeps_positions and (b"\nid: " in data or b'"position"' in data):
            self.last_position_data = data
        if count:
            self.record_count += count
            pool.record_count += count
            if self.is_timed:
                now = time.monotonic()
                self.first_record_at = self.first_record_at or now
                pool.arrivals.append((now, ARRIVAL_PATTERN.findall(data)))
            if pool.record_count >= pool.target_count:
                pool.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.closed_count += 1
        self.pool.wake()
        if not self.opened_future.done():
            self.opened_future.set_exception(ConnectionError(f"no stream: {self.opening_bytes!r}"))
        if self.ledger is not None and self.ledger.client is self:
            self.ledger.close_reason = f"the server closed, {exc!r}"

    def get_position(self) -> bytes:
        """The id of the last event that had one."""
        *_, last = _POSITION_PATTERN.findall(self.last_position_data)
        return b"".join(last)

    def _read_opening(self, data: bytes) -> bytes:
        """What follows the greeting; records may come in the same piece."""
        self.opening_bytes += data
        head, found, body = self.opening_bytes.partition(_HEAD_END)
        if found and head.split(b" ", 2)[1] not in (b"200", b"101"):
            self.transport.abort()
            return b""
        if not found or self.greeting not in body:
            return b""
        self.opened_at = time.monotonic()
        self.opening_bytes = head[:12]  # to the status; the rest is not kept of every client
        self._read_head(head.lower())
        if not self.opened_future.done():  # it is cancelled if nobody waits for it any more
            self.opened_future.set_result(None)
        return body[body.index(self.greeting) + len(self.greeting) :]

    def _read_head(self, head: bytes) -> None:
        """Look at the answer, in lower case."""

    def _check_bytes(self, ledger: Ledger, data: bytes) -> None:
        raise NotImplementedError


class SseClient(Client):
    """A client over HTTP."""

    __slots__ = ("_decompress", "_is_chunked", "_text")

    def _read_head(self, head: bytes) -> None:
        self._text = b""
        self._is_chunked = b"chunked" in head
        self._decompress: Callable[[bytes], bytes] | None = None
        if b"\r\ncontent-encoding: gzip" in head:
            self._decompress = zlib.decompressobj(31).decompress
        elif b"\r\ncontent-encoding: dcz" in head and self.ledger is not None:
            self._decompress = FrameDecoder(self.ledger.dictionary).feed

    def _check_bytes(self, ledger: Ledger, data: bytes) -> None:
        if self._is_chunked:
            data = self._decode_chunks(self.unparsed + data)
        if self._decompress is not None and data:
            ledger.is_compressed = True
            data = self._decompress(data)
        text = (self._text + data).replace(b"\r\n", b"\n")
        end = text.rfind(b"\n\n") + 2
        if end < 2:
            self._text = text
            return
        self._text = text[end:]
        ledger.read_events(text[:end])

    def _decode_chunks(self, data: bytes) -> bytes:
        """What is whole of chunked data; the rest is kept (RFC 9112 7.1)."""
        out, at = [], 0
        while (line := data.find(b"\r\n", at)) >= 0:
            end = line + 2 + int(data[at:line], 16)
            if len(data) < end + 2:
                break
            out.append(data[line + 2 : end])
            at = end + 2
        self.unparsed = data[at:]
        return b"".join(out)


class WebSocketClient(Client):
    """A client over WebSocket."""

    __slots__ = ("_partial_ping",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._partial_ping = b""
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.ledger is None and (_PING_BYTE in data or self._partial_ping):
            self._answer_pings(self._partial_ping + data)  # one may come before the greeting, too
        super().data_received(data)

    def _answer_pings(self, data: bytes) -> None:
        """Send the pong of each ping; one that is cut waits for its rest."""
        for payload in _PING_PATTERN.findall(data):
            self._send_pong(payload)
        cut = _PARTIAL_PING_PATTERN.search(data[-_MAX_PARTIAL_PING_BYTES:])
        self._partial_ping = cut[0] if cut else b""

    def _send_pong(self, payload: bytes) -> None:
        """Masked with zeros; one with another payload counts as none (RFC 6455 5.5.3)."""
        self.transport.write(b"\x8a%c\0\0\0\0%b" % (0x80 | len(payload), payload))

    def _check_bytes(self, ledger: Ledger, data: bytes) -> None:
        """RFC 6455 5.2; messages are one frame each here."""
        data, at = self.unparsed + data, 0
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
                ledger.is_compressed = True
                payload = zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")
            if first & 15 == _PING_OPCODE:
                self._send_pong(payload)
            else:
                ledger.read_message(payload)
            at = body + size
        self.unparsed = data[at:]


class ClientPool:
    """record_count: records that came, at all clients together. closed_count: ended connections.

    arrivals: of each piece that came to a client that is timed, when, and of its records when they
    were made and their numbers. keeps_positions: each client knows where it stands.
    """

    def __init__(self, *, keeps_positions: bool = False) -> None:
        self.keeps_positions = keeps_positions
        self.clients: list[Client] = []
        self.record_count = self.byte_count = self.closed_count = 0
        self.target_count = 1 << 62
        self.arrivals: list[tuple[float, list[tuple[bytes, bytes]]]] = []
        self._reached_future: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def get_record_count(self) -> int:
        return self.record_count

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.transport.abort()
        await asyncio.sleep(0)

    async def open_clients(
        self,
        port: int,
        count: int,
        build_request: Callable[[int], bytes],
        greeting: bytes = b"",
        *,
        timed_every: int = 0,
    ) -> None:
        """So many more, each when its greeting was whole. timed: one of how many; 0 for none.
        Raises ConnectionError with the answer that was none."""
        slots, first = asyncio.Semaphore(MAX_PENDING_CONNECTS), len(self.clients)

        async def open_one(n: int) -> None:
            async with slots:
                is_timed = bool(timed_every) and n % timed_every == 0
                client = self.create_client(build_request(first + n), greeting, is_timed=is_timed)
                await connect_client(client, port, n // CLIENTS_PER_ADDRESS)
                self.clients.append(client)

        await asyncio.gather(*(open_one(n) for n in range(count)))

    def create_client(
        self,
        request: bytes,
        greeting: bytes = b"",
        *,
        is_timed: bool = False,
        ledger: Ledger | None = None,
    ) -> Client:
        kind = WebSocketClient if b"Upgrade: websocket" in request else SseClient
        return kind(self, request, greeting, is_timed=is_timed, ledger=ledger)

    async def wait_for_records(
        self, record_count: int, timeout_s: float = math.inf, *, silence_s: float = CLIENT_TIMEOUT_S
    ) -> bool:
        """Wait until so many records have come in all.

        False if they will not: a connection ended, or nothing came for `silence_s`. However slow
        the machine is, what still comes is waited for, but for no longer than `timeout_s`.
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

    def compute_latencies(self) -> list[float]:
        """Seconds from made to received, of all that came to those that are timed."""
        return [now - parse_time(at) for now, found in self.arrivals for at, _ in found]


async def connect_client(
    client: Client, port: int, address: int = 0, timeout_s: float | None = CLIENT_TIMEOUT_S
) -> None:
    """Return when it is open. address: a number, of one of the loopback's."""
    local = (f"127.0.0.{1 + address}", 0) if address else None
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: client, "127.0.0.1", port, local_addr=local)
    await asyncio.wait_for(client.opened_future, timeout_s)


async def connect_ledgers(
    ledgers: Sequence[Ledger],
    port: int,
    build_request: Callable[[int, bytes], bytes],
    timeout_s: float | None = CLIENT_TIMEOUT_S,
) -> None:
    """All at once, each from where it stood. timeout_s: for each to be answered."""
    slots, pool = asyncio.Semaphore(MAX_PENDING_CONNECTS), ClientPool()

    async def connect_one(n: int, ledger: Ledger) -> None:
        async with slots:
            client = pool.create_client(build_request(n, ledger.token), ledger=ledger)
            await connect_client(client, port, timeout_s=timeout_s)

    await asyncio.gather(*(connect_one(n, ledger) for n, ledger in enumerate(ledgers)))
