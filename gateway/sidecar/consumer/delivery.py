"""The answer to a poll: waited for, and given only to a client that is still there.

A client that goes away ends the wait. Records that could not be handed to its connection go back:
the next poll returns them. What the kernel took for a client that is gone by then cannot be told
from what arrived; no HTTP bridge can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.core.log.record import Record

from .instance import Instance

GONE_AT_EOF = "gateway.gone_at_eof"  # as in gateway/web/http/transport.py


class Delivery(Response):
    """A response that is made while it is sent.

    read:    the records, of the seconds that are left, and what is done when the client is gone.
    written: as a response. told: at last, with the records; True if they were written.
    refused: an error, as a response.
    """

    def __init__(
        self,
        instance: Instance,
        wait: float,
        read: Callable[[float, asyncio.Future[Any]], Awaitable[Sequence[Record]]],
        written: Callable[[Sequence[Record]], Awaitable[Response]],
        told: Callable[[Sequence[Record], bool], None],
        refused: Callable[[Exception], Response],
    ) -> None:
        super().__init__()
        self._instance = instance
        self._wait = wait
        self._read, self._written, self._told, self._refused = read, written, told, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[GONE_AT_EOF] = True
        await Request(scope, receive).body()
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            async with self._instance.long(self._wait) as left:
                await self._turn(left, gone, scope, send)
        except Exception as exc:
            if not gone.done():
                await self._refused(exc)(scope, receive, send)
        finally:
            gone.cancel()

    async def _turn(self, left: float, gone: asyncio.Future[Any], scope: Scope, send: Send) -> None:
        records = await self._read(left, gone)
        arrived = False
        try:
            response = await self._written(records)
            arrived = await _sent(response, gone, send)
        finally:
            if arrived:
                self._instance.returned(records)
            else:
                self._instance.give_back(records)
            self._told(records, arrived)


async def _sent(response: Response, gone: asyncio.Future[Any], send: Send) -> bool:
    """Whether it went to the connection whole. The end is sent apart from the rest: where the
    connection takes no more, a server waits before the next piece, and hears of its end."""
    if gone.done():
        return False
    start = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    if gone.done():
        return False
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


async def client_gone(receive: Receive) -> object:
    """Returns when the client has closed its connection. Its request was read before."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
