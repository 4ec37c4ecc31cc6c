"""Clients that begin a TLS handshake and never finish it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager


def build_client_hello() -> bytes:
    """Return the first message of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


class UnfinishedClient:
    """One connection; `is_closed` once the server has closed it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.received = b""
        self._read_task = asyncio.create_task(self._read_until_closed(reader))

    @property
    def is_closed(self) -> bool:
        return self._read_task.done()

    async def wait_closed(self) -> bytes:
        """Wait until the server closes, and return what came before."""
        await asyncio.shield(self._read_task)
        return self.received

    async def close(self) -> None:
        self._read_task.cancel()
        await asyncio.gather(self._read_task, return_exceptions=True)
        self.writer.transport.abort()

    async def _read_until_closed(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                self.received += data


@asynccontextmanager
async def open_unfinished_clients(
    port: int, count: int, source_address: str = "127.0.0.1", data: bytes | None = None
) -> AsyncIterator[Sequence[UnfinishedClient]]:
    """Connect so many from one address, and send each `data`, by default a ClientHello."""
    data = build_client_hello() if data is None else data
    clients: list[UnfinishedClient] = []

    async def connect() -> None:
        with contextlib.suppress(OSError):  # closed at once, before or while it sends
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(source_address, 0)
            )
            clients.append(UnfinishedClient(reader, writer))
            writer.write(data)

    try:
        for begin in range(0, count, 100):
            await asyncio.gather(*(connect() for _ in range(min(100, count - begin))))
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def count_open(clients: Sequence[UnfinishedClient]) -> int:
    """Return how many the server has not closed."""
    return sum(not client.is_closed for client in clients)
