"""Open a stream for the page: the same application answers, with the same guards.

The page cannot ask the gateway's own port: its address is of another origin. What the operator
asks for is therefore passed to the application within the process, as the request of a client
without a connection of its own. Whoever may use the admin port may not read everything: the guards
of the route decide by the credentials that the operator enters, or else by the operator's own.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import RequestError
from gateway.web.routing.routes import Routes

CREDENTIALS_HEADER = "gateway-stream-authorization"
"""The header with the value of `Authorization` that the stream gets."""
PASSED_HEADERS = (b"accept", b"host", b"last-event-id", b"user-agent")


class StreamTrial:
    """A response that is what another application answers. Created for each request."""

    def __init__(self, app: ASGIApp, request: Request, routes: Routes) -> None:
        """Build the request of the stream.

        Args:
            app: The application of the gateway's own port.
            request: The request of the page, with the path and the query of the stream in `url`.
            routes: The routes of the streams.

        Raises:
            RequestError: 400 if `url` is no path.
            HTTPException: 404 or 405 if the path is that of no stream.
        """
        url = request.query_params.get("url", "")
        parts = urlsplit(url)
        if not parts.path.startswith("/") or parts.scheme or parts.netloc or not url.isascii():
            detail = "?url= is the path of a stream with its query, such as /events/orders?from=-5m"
            raise RequestError(400, "Bad request", detail)
        routes.match(parts.path)
        self._app = app
        self._scope = _build_scope(request, parts.path, parts.query)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in place of Starlette's response."""

        async def send_without_challenge(message: Message) -> None:
            if message["type"] == "http.response.start":
                # For a challenge of `Basic`, the browser would ask in a window of its own.
                kept = [each for each in message["headers"] if each[0] != b"www-authenticate"]
                message = {**message, "headers": kept}
            await send(message)

        await self._app(self._scope, receive, send_without_challenge)


def _build_scope(request: Request, path: str, query: str) -> Scope:
    """Return the scope of the stream's request: no headers but those that it needs."""
    scope = request.scope
    headers = [(name, value) for name, value in scope["headers"] if name in PASSED_HEADERS]
    authorization = request.headers.get(CREDENTIALS_HEADER, request.headers.get("authorization"))
    if authorization:
        headers.append((b"authorization", authorization.encode("latin-1")))
    return {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope["http_version"],
        "method": "GET",
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
    }
