"""Run clients that read every byte, and check chunks, frames, events, values and ids.

They count what was received, and how often. Values are those of `records`; anything else with their
mark counts as damaged. A client that was cut reconnects with the last id that it read, as a browser
would.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Callable, Iterable
from typing import cast

from support.zstd import FrameDecoder

from .client_pool import CLIENT_TIMEOUT_S, MAX_PENDING_CONNECTS
from .feed import Wire
from .records import MARK

_VALUE_PATTERN = rb'\{"m":"~","at":\d{16},"n":(\d+),"pad":"[a-z ]*"\}'
_EVENT_PATTERN = re.compile(rb"data: ?" + _VALUE_PATTERN + rb"\n(?:id: ?\S+\n)?\n")
_RECORD_PATTERN = re.compile(_VALUE_PATTERN)
_ID_PATTERN = re.compile(rb"^id: ?(\S+)$", re.MULTILINE)
_POSITION_PATTERN = re.compile(rb'"position":"([^"]+)"')
_HEAD_END = b"\r\n\r\n"
_PING_OPCODE = 9


class ExactClient:
    """What one client has, over all of its connections.

    token: of the last event. ids: how many events had one. bytes: behind the answer's head.
    twice: records that came again. damaged: those that were not whole.
    `expect` says which records make it whole, and live: `done_at` is when it was both.
    dictionary: what it decodes `dcz` with.
    """

    def __init__(self, wire: Wire, dictionary: bytes = b"") -> None:
        self.wire = wire
        self.dictionary = dictionary
        self.token = b""
        self.seen_numbers = bytearray()
        self.record_count = self.duplicate_count = self.damaged_count = self.id_count = (
            self.byte_count
        ) = 0
        self.is_compressed = False  # something came so
        self.close_reason = ""  # why the connection ended that was not cut
        self.completed_at = 0.0
        self._expected_first = self._expected_end = 1 << 62
        self._missing_count = 0
        self.connection: ExactConnection | None = None

    def expect_records(self, first: int, end: int) -> None:
        """Whole with all of these, live with any after them."""
        self._expected_first, self._expected_end, self._missing_count = first, end, end - first
        self.completed_at = 0.0

    def count_lost(self, first: int, end: int) -> int:
        return end - first - sum(self.seen_numbers[first:end])

    @property
    def missing_count(self) -> int:
        return self._missing_count

    def record_numbers(self, numbers: list[bytes]) -> None:
        if not numbers:
            return
        self.record_count += len(numbers)
        seen, first, end, live = self.seen_numbers, self._expected_first, self._expected_end, False
        for n in map(int, numbers):
            if n >= len(seen):
                seen.extend(bytes(n + 10_000 - len(seen)))
            if seen[n]:
                self.duplicate_count += 1
                continue
            seen[n] = 1
            if n >= end:
                live = True
            elif n >= first:
                self._missing_count -= 1
        if live and not self._missing_count and not self.completed_at:
            self.completed_at = time.monotonic()

    def has_received(self, count: int) -> bool:
        """Raises ConnectionError if no more will come."""
        if self.record_count < count and self.close_reason:
            raise ConnectionError(self.close_reason)
        return self.record_count >= count

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.transport.abort()
            self.connection.client = None
            self.connection = None


def count_received(clients: Iterable[ExactClient]) -> int:
    return sum(client.record_count for client in clients)


class ExactConnection(asyncio.Protocol):
    def __init__(self, client: ExactClient, request: bytes) -> None:
        self.client: ExactClient | None = client
        self.request = request
        self.opened_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.head = b""
        self.unparsed = b""
        self.unparsed_text = b""
        self.is_chunked = False
        self.decompress: Callable[[bytes], bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened_future.done():
            self.opened_future.set_exception(ConnectionError(f"no stream: {self.head!r}"))
        if self.client is not None:
            self.client.close_reason = f"the server closed, {exc!r}"

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            return
        if not self.opened_future.done():
            head, found, data = (self.head + data).partition(_HEAD_END)
            self.head = head
            if not found:
                return
            if head.split(b" ", 2)[1] not in (b"200", b"101"):
                self.transport.abort()
                return
            self.is_chunked = b"chunked" in head.lower()
            if b"\r\ncontent-encoding: gzip" in head.lower():
                self.decompress = zlib.decompressobj(31).decompress
            elif b"\r\ncontent-encoding: dcz" in head.lower():
                self.decompress = FrameDecoder(client.dictionary).feed
            self.opened_future.set_result(None)
        client.byte_count += len(data)
        if client.wire is Wire.WS:
            self._read_frames(client, self.unparsed + data)
            return
        if self.is_chunked:
            data = self._decode_chunks(self.unparsed + data)
        if self.decompress is not None and data:
            client.is_compressed = True
            data = self.decompress(data)
        self._read_events(client, data)

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

    def _read_events(self, client: ExactClient, data: bytes) -> None:
        text = (self.unparsed_text + data).replace(b"\r\n", b"\n")
        end = text.rfind(b"\n\n") + 2
        if end < 2:
            self.unparsed_text = text
            return
        whole, self.unparsed_text = text[:end], text[end:]
        numbers = _EVENT_PATTERN.findall(whole)
        client.damaged_count += whole.count(MARK) - len(numbers)
        client.id_count += whole.count(b"\nid:")
        if last := _ID_PATTERN.search(whole, max(0, whole.rfind(b"\nid:"))):
            client.token = last[1]
        client.record_numbers(numbers)

    def _read_frames(self, client: ExactClient, data: bytes) -> None:
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
                client.is_compressed = True
                payload = zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")
            self._read_message(client, first & 15, payload)
            at = body + size
        self.unparsed = data[at:]

    def _read_message(self, client: ExactClient, opcode: int, payload: bytes) -> None:
        if opcode == _PING_OPCODE:
            # Masked with zeros; one with another payload counts as none (RFC 6455 5.5.3).
            self.transport.write(b"\x8a%c\0\0\0\0%b" % (0x80 | len(payload), payload))
            return
        numbers = _RECORD_PATTERN.findall(payload)
        client.damaged_count += payload.count(MARK) - len(numbers)
        if position := _POSITION_PATTERN.search(payload, max(0, payload.rfind(b'"position":'))):
            client.token = position[1]
            client.id_count += 1
        client.record_numbers(numbers)


async def connect_clients(
    clients: list[ExactClient],
    port: int,
    build_request: Callable[[int, bytes], bytes],
    timeout_s: float | None = CLIENT_TIMEOUT_S,
) -> None:
    """All at once, each from where it stood. within: s for each to be answered."""
    slots = asyncio.Semaphore(MAX_PENDING_CONNECTS)

    async def connect_one(n: int, client: ExactClient) -> None:
        async with slots:
            connection = ExactConnection(client, build_request(n, client.token))
            client.connection = connection
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, "127.0.0.1", port)
            await asyncio.wait_for(connection.opened_future, timeout_s)

    await asyncio.gather(*(connect_one(n, client) for n, client in enumerate(clients)))
