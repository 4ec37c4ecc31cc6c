"""Answer a long poll, and return records only to a client that is still connected.

A client that disconnects ends the wait. The next poll returns records that could not be handed to
its connection. No HTTP bridge can know whether data that the kernel accepted has reached the
client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.core.log.record import Record
from gateway.sidecar.http.disconnect import wait_for_disconnect

from .instance import ConsumerInstance


class PollResponse(Response):
    """Poll while the response is sent, so that the outcome of sending decides about the records.

    Starlette calls a response after its endpoint has returned. This one does the work in that call.
    The consumer component creates it for one request.

    Args:
        timeout_s: How long to wait for the instance and for records, in seconds.
        poll: Returns records; it gets the seconds that are left, and a future that is done when the
            client has disconnected.
        build_response: Returns an answer, and the first of the records, which are in it.
        on_finished: Is called at the end with the records, and whether they were sent.
    """

    def __init__(
        self,
        instance: ConsumerInstance,
        timeout_s: float,
        poll: Callable[[float, asyncio.Future[Any]], Awaitable[Sequence[Record]]],
        build_response: Callable[[Sequence[Record]], Awaitable[tuple[Response, Sequence[Record]]]],
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
        gone = asyncio.ensure_future(wait_for_disconnect(scope, receive))
        try:
            async with self._instance.lock_for_poll(self._timeout_s) as remaining_s:
                await self._deliver(remaining_s, gone, scope, send)
        except Exception as exc:
            if not gone.done():
                await self._build_error_response(exc)(scope, receive, send)
        finally:
            gone.cancel()

    async def _deliver(
        self, remaining_s: float, gone: asyncio.Future[Any], scope: Scope, send: Send
    ) -> None:
        records = await self._poll(remaining_s, gone)
        is_sent, shown = False, records
        try:
            response, shown = await self._build_response(records)
            is_sent = await _send_response(response, gone, send)
        finally:
            if is_sent:
                self._instance.mark_returned(shown)
            if rest := records[len(shown) if is_sent else 0 :]:
                self._instance.restore_records(rest)
            self._on_finished(shown, is_sent)


async def _send_response(response: Response, gone: asyncio.Future[Any], send: Send) -> bool:
    """Send a response, and return whether all of it was handed to the connection.

    The end is sent separately from the rest: if the connection takes no more data, the server waits
    before it accepts the next message, and notices meanwhile that the client has disconnected.
    """
    if gone.done():
        return False
    start = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    # The server waits here until its write buffer has drained, or the connection is lost.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    if gone.done():
        return False
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True
