"""Clients that begin a TLS handshake and never finish it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager


def client_hello() -> bytes:
    """Return the first message of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


class HalfClient:
    """One connection; `is_closed` once the server has closed it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.received = b""
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def is_closed(self) -> bool:
        return self._reading.done()

    async def closed(self) -> bytes:
        """Wait until the server closes, and return what came before."""
        await asyncio.shield(self._reading)
        return self.received

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self.writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                self.received += data


@asynccontextmanager
async def half_clients(
    port: int, count: int, source: str = "127.0.0.1", data: bytes | None = None
) -> AsyncIterator[Sequence[HalfClient]]:
    """Connect so many from one address, and send each `data`, by default a ClientHello."""
    data = client_hello() if data is None else data
    clients: list[HalfClient] = []

    async def connect() -> None:
        with contextlib.suppress(OSError):  # closed at once, before or while it sends
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(source, 0)
            )
            clients.append(HalfClient(reader, writer))
            writer.write(data)

    try:
        for begin in range(0, count, 100):
            await asyncio.gather(*(connect() for _ in range(min(100, count - begin))))
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def held(clients: Sequence[HalfClient]) -> int:
    """Return how many the server has not closed."""
    return sum(not client.is_closed for client in clients)
