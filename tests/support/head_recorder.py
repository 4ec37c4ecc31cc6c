"""A proxy that keeps how requests and answers begin, of clients that do not tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from support.tcp_proxy import ProxyConnection, TcpProxy


class HeadRecorder(TcpProxy):
    """asked, heads: the first piece of each connection's request, and of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.request_heads: list[bytes] = []
        self.response_heads: list[bytes] = []

    async def iter_requests(
        self, reader: asyncio.StreamReader, connection: ProxyConnection
    ) -> AsyncIterator[bytes]:
        async for piece in _record_first(
            super().iter_requests(reader, connection), self.request_heads
        ):
            yield piece

    async def iter_responses(
        self, reader: asyncio.StreamReader, connection: ProxyConnection
    ) -> AsyncIterator[bytes]:
        async for piece in _record_first(
            super().iter_responses(reader, connection), self.response_heads
        ):
            yield piece

    @property
    def are_all_compressed(self) -> bool:
        """Was every stream agreed to be, and one of them at least?"""
        marks = (b"\r\ncontent-encoding: gzip", b"\r\nsec-websocket-extensions: permessage-deflate")
        return bool(self.response_heads) and all(
            any(mark in head.lower() for mark in marks) for head in self.response_heads
        )


async def _record_first(
    pieces: AsyncIterator[bytes], first_pieces: list[bytes]
) -> AsyncIterator[bytes]:
    first = True
    async for piece in pieces:
        if first:
            first_pieces.append(piece)
        first = False
        yield piece
