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

from .instance import ConsumerInstance

GONE_AT_EOF = "gateway.gone_at_eof"  # as in gateway/web/http/transport.py


class PollResponse(Response):
    """A response that is made while it is sent.

    read:    the records, of the seconds that are left, and what is done when the client is gone.
    written: as a response. told: at last, with the records; True if they were written.
    refused: an error, as a response.
    """

    def __init__(
        self,
        instance: ConsumerInstance,
        timeout_s: float,
        poll: Callable[[float, asyncio.Future[Any]], Awaitable[Sequence[Record]]],
        build_response: Callable[[Sequence[Record]], Awaitable[Response]],
        on_finished: Callable[[Sequence[Record], bool], None],
        build_error_response: Callable[[Exception], Response],
    ) -> None:
        super().__init__()
        self._instance = instance
        self._timeout_s = timeout_s
        self._poll, self._build_response, self._on_finished, self._build_error_response = (
            poll,
            build_response,
            on_finished,
            build_error_response,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[GONE_AT_EOF] = True
        await Request(scope, receive).body()
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            async with self._instance.lock_for_poll(self._timeout_s) as left:
                await self._deliver(left, gone, scope, send)
        except Exception as exc:
            if not gone.done():
                await self._build_error_response(exc)(scope, receive, send)
        finally:
            gone.cancel()

    async def _deliver(
        self, left: float, gone: asyncio.Future[Any], scope: Scope, send: Send
    ) -> None:
        records = await self._poll(left, gone)
        arrived = False
        try:
            response = await self._build_response(records)
            arrived = await _send_response(response, gone, send)
        finally:
            if arrived:
                self._instance.mark_returned(records)
            else:
                self._instance.restore_records(records)
            self._on_finished(records, arrived)


async def _send_response(response: Response, gone: asyncio.Future[Any], send: Send) -> bool:
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


async def wait_for_disconnect(receive: Receive) -> object:
    """Returns when the client has closed its connection. Its request was read before."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
