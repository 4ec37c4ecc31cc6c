"""A proxy that keeps how requests and answers begin, of clients that do not tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from support.tcp_proxy import Link, TcpProxy


class Heads(TcpProxy):
    """asked, heads: the first piece of each connection's request, and of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []
        self.heads: list[bytes] = []

    async def requests(self, reader: asyncio.StreamReader, link: Link) -> AsyncIterator[bytes]:
        async for piece in _keeping_first(super().requests(reader, link), self.asked):
            yield piece

    async def responses(self, reader: asyncio.StreamReader, link: Link) -> AsyncIterator[bytes]:
        async for piece in _keeping_first(super().responses(reader, link), self.heads):
            yield piece

    @property
    def all_compressed(self) -> bool:
        """Was every stream agreed to be, and one of them at least?"""
        marks = (b"\r\ncontent-encoding: gzip", b"\r\nsec-websocket-extensions: permessage-deflate")
        return bool(self.heads) and all(
            any(mark in head.lower() for mark in marks) for head in self.heads
        )


async def _keeping_first(pieces: AsyncIterator[bytes], kept: list[bytes]) -> AsyncIterator[bytes]:
    first = True
    async for piece in pieces:
        if first:
            kept.append(piece)
        first = False
        yield piece
