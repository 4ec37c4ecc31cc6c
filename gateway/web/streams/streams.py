"""Streams over HTTP and WebSocket: which wire a request is about."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Busy, GatewayError, GuardUnavailable
from gateway.web.admin.orders import Paused
from gateway.web.app import assets
from gateway.web.app.beside import Neighbour
from gateway.web.exchange import exchange
from gateway.web.http.cors import Cors, Foreign, Policy, foreign, readable
from gateway.web.http.problems import problem
from gateway.web.http.security_headers import cautious
from gateway.web.routing import query
from gateway.web.routing.routes import Match, Routes
from gateway.web.websocket import endpoint as websocket

from . import ndjson, sse
from .direct import Answer
from .renewal import Renewals, name_in


class Pages:
    """Which paths are pages. routes: none with parameters in its path."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.adopt(routes)

    def adopt(self, routes: Sequence[BaseRoute]) -> None:
        self.paths = frozenset(page.path for page in routes if isinstance(page, Route))
        self.folders = tuple(f"{page.path}/" for page in routes if isinstance(page, Mount))


class Streams:
    """Every configured route; 404 for what is none, and is no page either.

    Middleware in front of the pages: on their way, through Starlette's router and what it does
    about errors, a connect took 17 us more.

    app: serves the pages. neighbour: what else is served on this port.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Routes,
        renewals: Renewals,
        pages: Pages,
        neighbour: Neighbour | None = None,
    ) -> None:
        self._app = app
        self._routes = routes
        self._renewals = renewals
        self._pages = pages
        self._neighbour = neighbour

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = path_of(scope)
        plain = unquote(path) if "%" in path else path
        beside = self._neighbour
        if beside is not None and scope["type"] == "http" and beside.takes(plain):
            await self._next_door(beside, plain)(scope, receive, cautious(send, varies=False))
            return
        page = plain in self._pages.paths or plain.startswith(self._pages.folders)
        if self._routes.cors is not None and scope["type"] == "http":
            asked = foreign(scope)
            if asked is not None:
                policy = self._policy(self._routes.cors, asked, path, page)
                if asked.names is not None and policy.open:
                    answer = await self._preflight(policy, asked, scope, None if page else path)
                    await answer(scope, receive, send)
                    return
                if policy.allows(asked.origin):
                    send = readable(send, policy.headers(asked.origin))
        if page:
            await self._app(scope, receive, cautious(send, varies=self._routes.cors is not None))
        elif scope["type"] == "websocket":
            await websocket.serve(self._routes, path, scope, receive, send)
        else:
            respond = await self._answer(Request(scope, receive), path)
            await respond(scope, receive, send)

    def _next_door(self, beside: Neighbour, path: str) -> ASGIApp:
        """Within the limits of all that is asked for on this port, as exchanges are."""
        if beside.free(path):
            return beside.app
        limits = self._routes.limits

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await limits.arrive(scope)
                leave = await limits.enter(scope)
            except Busy as exc:
                kind, body = beside.refusal(exc)
                again = {"Retry-After": str(ceil(exc.retry_after or 1.0))}
                await Response(body, exc.status, again, kind)(scope, receive, send)
                return
            try:
                await beside.app(scope, receive, send)
            finally:
                leave()

        return limited

    def _policy(self, cors: Cors, asked: Foreign, path: str, page: bool) -> Policy:
        if path in assets.PATHS or name_in(path) is not None:
            return cors.shared(asked.origin)
        method = "GET" if asked.method == "HEAD" else asked.method
        return cors.policy(None if page else self._routes.paths.nearest(path, method))

    async def _preflight(
        self, policy: Policy, asked: Foreign, scope: Scope, path: str | None
    ) -> Response:
        """path: None for a page, which is not counted."""
        try:
            if path is not None:
                await self._routes.limits.arrive(scope)
            return policy.preflight(asked.origin, asked.method, asked.names or "")
        except (GatewayError, HTTPException) as exc:
            return problem(exc, unquote(path or scope["path"]))

    async def _answer(self, request: Request, path: str) -> Answer:
        try:
            arrive = self._routes.limits.arrive
            name = name_in(path) if request.method == "POST" else None
            if name is not None:
                await arrive(request.scope)
                return await self._renewals.renew(name, request)
            if request.method == "OPTIONS":
                allow = self._routes.paths.allow(path)
                await arrive(request.scope)
                return Response(status_code=204, headers={"Allow": allow})
            asked = "GET" if request.method == "HEAD" else request.method
            match = self._routes.match(path, asked)._replace(method=request.method)
            await arrive(request.scope)
            if match.route.with_.capability == "stream":
                return await self._respond(request, match)
            response = await exchange.respond(self._routes, match, request)
            if self._routes.cors is not None:
                response.headers.add_vary_header("Origin")
            return response
        except Busy as exc:
            if query.is_event_source(request):
                return sse.unavailable("busy", exc.retry_after)
            return problem(exc, request.url.path)
        except (GatewayError, HTTPException) as exc:
            return problem(exc, request.url.path)

    async def _respond(self, request: Request, match: Match) -> Answer:
        try:
            match = await self._routes.admit(match, request)
            if ndjson.is_asked(request):
                return await ndjson.respond(self._routes, match, request)
            return await sse.respond(self._routes, match, request)
        except Paused as exc:
            if query.is_event_source(request):
                return sse.unavailable(exc.reason, exc.retry_after)
            raise
        except GuardUnavailable:
            if query.is_event_source(request):
                return sse.unavailable("guard-unavailable")
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
