"""Streams over HTTP and WebSocket: which wire a request is about."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from . import ndjson, query, sse, websocket
from .direct import Answer
from .limits import Busy
from .routes import Match, Routes

ALLOW = {"Allow": "GET, HEAD, OPTIONS"}


class Streams:
    """An ASGI application: every configured route, 404 for what is none."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await websocket.serve(self._routes, path_of(scope), scope, receive, send)
            return
        request = Request(scope, receive)
        match = self._routes.match(path_of(scope))
        response: Answer
        if request.method == "OPTIONS":
            response = Response(status_code=204, headers=ALLOW)
        elif request.method in ("GET", "HEAD"):
            response = await self._respond(request, match)
        else:
            raise HTTPException(405, headers=ALLOW)
        await response(scope, receive, send)

    async def _respond(self, request: Request, match: Match) -> Answer:
        await self._routes.check(match, request)
        try:
            if ndjson.is_asked(request):
                return await ndjson.respond(self._routes, match, request)
            return await sse.respond(self._routes, match, request)
        except Busy:
            if query.is_event_source(request):
                return sse.unavailable("busy")
            raise


def path_of(scope: Scope) -> str:
    """The path, percent-encoded as it came, below the mount point if there is one. That one is
    decoded in the scope, so its segments are compared."""
    path: str = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
    root: str = scope.get("root_path", "").rstrip("/")
    segments, depth = path.split("/"), root.count("/") + 1
    if root and len(segments) > depth and unquote("/".join(segments[:depth])) == root:
        return "/" + "/".join(segments[depth:])
    return path
