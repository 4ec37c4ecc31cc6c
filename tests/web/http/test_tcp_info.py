"""What the kernel knows of a connection."""

from __future__ import annotations

import asyncio

import pytest
from support.waiting import wait_until

from gateway.web.admin.listing import get_acknowledged_bytes


async def test_it_is_what_the_other_side_has_taken():
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await wait_until(lambda: taken)
        ours = taken[0]
        if get_acknowledged_bytes(ours.transport) is None:
            pytest.skip("this kernel does not tell")
        assert get_acknowledged_bytes(ours.transport) == 0
        ours.write(b"x" * 5000)
        assert len(await reader.readexactly(5000)) == 5000
        await wait_until(lambda: get_acknowledged_bytes(ours.transport) == 5000)
        writer.close()
        ours.transport.abort()
        await wait_until(lambda: get_acknowledged_bytes(ours.transport) is None)


async def test_of_no_connection_nothing_is_known():
    assert get_acknowledged_bytes(None) is None
    assert get_acknowledged_bytes(asyncio.BaseTransport()) is None
