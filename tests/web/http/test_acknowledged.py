"""What the kernel knows of a connection."""

from __future__ import annotations

import asyncio

import pytest
from support.until import until

from gateway.web.http.acknowledged import acknowledged


async def test_it_is_what_the_other_side_has_taken():
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await until(lambda: taken)
        ours = taken[0]
        if acknowledged(ours.transport) is None:
            pytest.skip("this kernel does not tell")
        assert acknowledged(ours.transport) == 0
        ours.write(b"x" * 5000)
        assert len(await reader.readexactly(5000)) == 5000
        await until(lambda: acknowledged(ours.transport) == 5000)
        writer.close()
        ours.transport.abort()
        await until(lambda: acknowledged(ours.transport) is None)


async def test_of_no_connection_nothing_is_known():
    assert acknowledged(None) is None
    assert acknowledged(asyncio.BaseTransport()) is None
