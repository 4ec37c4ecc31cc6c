"""Notice that a client has left, and end what waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

from gateway.background_tasks import Interrupted, run_unless

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
    disconnect = wait_for_disconnect(request.scope, request.receive)
    try:
        return await run_unless(work, draining.wait(), disconnect)
    except Interrupted:
        return None
