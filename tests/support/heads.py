"""A proxy that keeps how each answer begins: what was agreed on, with clients that do not tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from support.tcp_proxy import Link, TcpProxy


class Heads(TcpProxy):
    """heads: the first piece of each connection's answer."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[bytes] = []

    async def responses(self, reader: asyncio.StreamReader, link: Link) -> AsyncIterator[bytes]:
        first = True
        async for piece in super().responses(reader, link):
            if first:
                self.heads.append(piece)
            first = False
            yield piece

    @property
    def all_compressed(self) -> bool:
        """Was every stream agreed to be, and one of them at least?"""
        marks = (b"\r\ncontent-encoding: gzip", b"\r\nsec-websocket-extensions: permessage-deflate")
        return bool(self.heads) and all(
            any(mark in head.lower() for mark in marks) for head in self.heads
        )
