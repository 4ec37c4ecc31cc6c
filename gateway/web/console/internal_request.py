"""Pass a request of the page on to the application of the clients' port, within the process.

The page cannot ask that port itself: its address is of another origin. The request gets no headers
but those that it needs, and the credentials with which the operator wants to make it. Whoever may
use the admin port may not do everything there, so its own guards decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CREDENTIALS_HEADER = "gateway-stream-authorization"
"""The header with the value of `Authorization` that the passed request gets."""


class PassedResponse:
    """A response that is another application's answer to another request."""

    def __init__(
        self, app: ASGIApp, scope: Scope, on_start: Callable[[int], None] | None = None
    ) -> None:
        """Prepare the request of `scope`, whose body is that of the page's request."""
        self._app = app
        self._scope = scope
        self._on_start = on_start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_challenge(message: Message) -> None:
            if message["type"] == "http.response.start":
                # For a challenge of `Basic`, the browser would ask in a window of its own.
                kept = [each for each in message["headers"] if each[0] != b"www-authenticate"]
                message = {**message, "headers": kept}
                if self._on_start is not None:
                    self._on_start(message["status"])
            await send(message)

        await self._app(self._scope, receive, send_without_challenge)


def build_scope(
    request: Request,
    path: str,
    query: str,
    passed_headers: Iterable[bytes],
    *,
    method: str = "GET",
    **fields: Any,
) -> Scope:
    """Return the scope of a request to the clients' port; the path is percent-encoded."""
    scope, passed = request.scope, frozenset(passed_headers)
    headers = [(name, value) for name, value in scope["headers"] if name in passed]
    authorization = request.headers.get(CREDENTIALS_HEADER, request.headers.get("authorization"))
    if authorization:
        headers.append((b"authorization", authorization.encode("latin-1")))
    return {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope["http_version"],
        "method": method,
        "scheme": scope["scheme"],
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": headers,
        "client": scope["client"],
        "server": scope["server"],
        # Without extensions, a stream does not take the connection over.
        "extensions": {},
        "state": {},
        **fields,
    }
