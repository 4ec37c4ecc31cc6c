"""Cancel work for a client that disconnects while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client has disconnected, so that nobody waits for the response."""


async def run_while_connected(request: Request, coro: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, or cancel it and raise if the client disconnects.

    The body of the request must have been read.
    """
    work = asyncio.create_task(coro)
    disconnect = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnected
        return work.result()
    finally:
        work.cancel()
        disconnect.cancel()
        await asyncio.gather(work, disconnect, return_exceptions=True)
        del work  # its exception refers to this frame: it would be a cycle


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
