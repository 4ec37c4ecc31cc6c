"""A request that lasts: records a line each, and what became of each, while it goes on. httpx would
send all of it before it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx


@asynccontextmanager
async def open_ndjson_request(http: httpx.AsyncClient, topic: str) -> AsyncIterator[Any]:
    """Reader and writer of a request that has begun; cut off at the end."""
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    head = f"POST /producers/{topic}?valueFormat=string HTTP/1.1\r\nHost: localhost\r\n"
    kind = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(f"{head}{kind}".encode())
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.transport.abort()


def build_chunk(data: bytes) -> bytes:
    """A chunk; the last one if it is empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def read_json_line(reader: asyncio.StreamReader) -> bytes:
    """Of the answer's body, past its head and the sizes of its pieces."""
    while not (line := await reader.readline()).startswith(b"{"):
        assert line
    return line
