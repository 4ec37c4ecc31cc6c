"""Answer requests that have not finished when the sidecar's time to end is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .status import StatusError, build_error_response

RETRY_AFTER_S = 1.0


class DrainMiddleware:
    """Answer requests that the server cancels because it ends: it would answer a bare 500.

    A client may take a 500 for a refusal, where Kafka may have the records.
    """

    def __init__(self, app: ASGIApp, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_wrapper(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_wrapper)
        except asyncio.CancelledError:
            if scope["type"] != "http" or has_started or not self._is_draining():
                raise
            await build_error_response(_build_error(scope["method"]))(scope, receive, send)


def _build_error(method: str) -> StatusError:
    problem = "the sidecar ends, and the request was not finished in time"
    if method in ("GET", "HEAD"):
        return StatusError(503, f"{problem}; try again", retry_after=RETRY_AFTER_S)
    detail = f"{problem}; it may have been done, and a repeat without an Idempotency-Key may do it"
    return StatusError(504, f"{detail} twice", retry_after=RETRY_AFTER_S)
