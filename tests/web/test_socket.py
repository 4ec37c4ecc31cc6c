"""What several streams send over one socket."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.web.socket import Disconnected, Socket
from gateway.web.upgraded import FRAMES


def socket(send: Any) -> Socket:
    scope = {"type": "websocket", "headers": [], "extensions": {FRAMES: {"deflate": False}}}

    async def receive() -> Any:
        return {"type": "websocket.disconnect", "code": 1001}

    return Socket(scope, receive, send)


async def test_streams_take_turns_and_only_one_piece_waits_for_the_client():
    """Every stream handed its own 64 KB to a client that took nothing."""
    sent: list[bytes] = []
    waiting, room = 0, asyncio.Semaphore(0)

    async def send(message: Any) -> None:
        nonlocal waiting
        waiting += 1
        assert waiting == 1
        await room.acquire()
        waiting -= 1
        sent.append(message["data"])

    to = socket(send)

    async def stream(name: bytes) -> None:
        for _ in range(3):
            await to.send(name)

    async with asyncio.TaskGroup() as group:
        for name in (b"a", b"b", b"c"):
            group.create_task(stream(name))
        for _ in range(9):
            await asyncio.sleep(0)
            room.release()
    assert sent == [b"a", b"b", b"c"] * 3


async def test_who_waits_for_a_turn_when_the_client_goes_is_told():
    gone = asyncio.Event()

    async def send(message: Any) -> None:
        await gone.wait()
        raise OSError

    to = socket(send)
    sending = [asyncio.create_task(to.send(b"x")) for _ in range(3)]
    await asyncio.sleep(0)
    gone.set()
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Disconnected] * 3
