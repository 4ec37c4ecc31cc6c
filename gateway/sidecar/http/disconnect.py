"""Notice that a client has left, and end what waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

T = TypeVar("T")

# Asks our own server to report the end of the client's input as a disconnect; the name is that of
# gateway/web/http/transport.py.
DISCONNECT_AT_EOF = "gateway.gone_at_eof"


async def wait_for_disconnect(scope: Scope, receive: Receive) -> None:
    """Drop the body of a request that was not read, and return when its client has disconnected."""
    scope.setdefault("extensions", {})[DISCONNECT_AT_EOF] = True
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_for_client(
    request: Request, draining: asyncio.Event, work: Coroutine[Any, Any, T]
) -> T | None:
    """Return the result of work; None if the client leaves or the sidecar ends before there is one.

    The work is cancelled then, and has ended when this returns.
    """
    working = asyncio.ensure_future(work)
    ends = [
        asyncio.ensure_future(draining.wait()),
        asyncio.ensure_future(wait_for_disconnect(request.scope, request.receive)),
    ]
    try:
        await asyncio.wait([working, *ends], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, *ends):
            task.cancel()
        await asyncio.gather(working, return_exceptions=True)
