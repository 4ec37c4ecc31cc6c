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
from gateway.web.admin.blocklist import RoutePaused
from gateway.web.app import assets
from gateway.web.app.co_hosted_app import CoHostedApp
from gateway.web.exchange import exchange
from gateway.web.http.cors import (
    CorsPolicies,
    CorsPolicy,
    CorsRequest,
    add_cors_headers,
    parse_cors_request,
)
from gateway.web.http.problems import build_problem
from gateway.web.http.security_headers import add_security_headers
from gateway.web.routing import query
from gateway.web.routing.routes import Match, Routes
from gateway.web.websocket import endpoint as websocket

from . import ndjson, sse
from .direct_response import AsgiResponse
from .renewal import TokenRenewer, parse_renewal_path


class PagePaths:
    """Which paths are pages. routes: none with parameters in its path."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.set_routes(routes)

    def set_routes(self, routes: Sequence[BaseRoute]) -> None:
        self.paths = frozenset(page.path for page in routes if isinstance(page, Route))
        self.prefixes = tuple(f"{page.path}/" for page in routes if isinstance(page, Mount))


class StreamMiddleware:
    """Every configured route; 404 for what is none, and is no page either.

    Middleware in front of the pages: on their way, through Starlette's router and what it does
    about errors, a connect took 17 us more.

    app: serves the pages. neighbour: what else is served on this port.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Routes,
        renewer: TokenRenewer,
        pages: PagePaths,
        co_hosted_app: CoHostedApp | None = None,
    ) -> None:
        self._app = app
        self._routes = routes
        self._renewer = renewer
        self._pages = pages
        self._co_hosted_app = co_hosted_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = get_encoded_path(scope)
        plain = unquote(path) if "%" in path else path
        beside = self._co_hosted_app
        if beside is not None and scope["type"] == "http" and beside.owns_path(plain):
            await self._limit_co_hosted(beside, plain)(
                scope, receive, add_security_headers(send, varies_by_origin=False)
            )
            return
        page = plain in self._pages.paths or plain.startswith(self._pages.prefixes)
        if self._routes.cors is not None and scope["type"] == "http":
            asked = parse_cors_request(scope)
            if asked is not None:
                policy = self._get_cors_policy(self._routes.cors, asked, path, page)
                if asked.header_names is not None and policy.allows_cross_origin:
                    answer = await self._respond_preflight(
                        policy, asked, scope, None if page else path
                    )
                    await answer(scope, receive, send)
                    return
                if policy.allows_origin(asked.origin):
                    send = add_cors_headers(send, policy.build_headers(asked.origin))
        if page:
            await self._app(
                scope,
                receive,
                add_security_headers(send, varies_by_origin=self._routes.cors is not None),
            )
        elif scope["type"] == "websocket":
            await websocket.serve_websocket(self._routes, path, scope, receive, send)
        else:
            respond = await self._dispatch_request(Request(scope, receive), path)
            await respond(scope, receive, send)

    def _limit_co_hosted(self, co_hosted_app: CoHostedApp, path: str) -> ASGIApp:
        """Within the limits of all that is asked for on this port, as exchanges are."""
        if co_hosted_app.is_unlimited(path):
            return co_hosted_app.app
        limits = self._routes.limits

        async def serve_limited(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await limits.check_rate(scope)
                leave = await limits.acquire_slot(scope)
            except Busy as exc:
                kind, body = co_hosted_app.format_error(exc)
                again = {"Retry-After": str(ceil(exc.retry_after or 1.0))}
                await Response(body, exc.status, again, kind)(scope, receive, send)
                return
            try:
                await co_hosted_app.app(scope, receive, send)
            finally:
                leave()

        return serve_limited

    def _get_cors_policy(
        self, cors: CorsPolicies, cors_request: CorsRequest, path: str, is_page: bool
    ) -> CorsPolicy:
        if path in assets.ASSET_PATHS or parse_renewal_path(path) is not None:
            return cors.get_shared_policy(cors_request.origin)
        method = "GET" if cors_request.method == "HEAD" else cors_request.method
        return cors.get_policy(None if is_page else self._routes.paths.find_nearest(path, method))

    async def _respond_preflight(
        self, policy: CorsPolicy, cors_request: CorsRequest, scope: Scope, path: str | None
    ) -> Response:
        """path: None for a page, which is not counted."""
        try:
            if path is not None:
                await self._routes.limits.check_rate(scope)
            return policy.respond_preflight(
                cors_request.origin, cors_request.method, cors_request.header_names or ""
            )
        except (GatewayError, HTTPException) as exc:
            return build_problem(exc, unquote(path or scope["path"]))

    async def _dispatch_request(self, request: Request, path: str) -> AsgiResponse:
        try:
            arrive = self._routes.limits.check_rate
            name = parse_renewal_path(path) if request.method == "POST" else None
            if name is not None:
                await arrive(request.scope)
                return await self._renewer.renew(name, request)
            if request.method == "OPTIONS":
                allow = self._routes.paths.format_allow(path)
                await arrive(request.scope)
                return Response(status_code=204, headers={"Allow": allow})
            asked = "GET" if request.method == "HEAD" else request.method
            match = self._routes.match(path, asked)._replace(method=request.method)
            await arrive(request.scope)
            if match.route.with_.capability == "stream":
                return await self._respond_stream(request, match)
            response = await exchange.respond(self._routes, match, request)
            if self._routes.cors is not None:
                response.headers.add_vary_header("Origin")
            return response
        except Busy as exc:
            if query.is_event_source(request):
                return sse.build_unavailable_response("busy", exc.retry_after)
            return build_problem(exc, request.url.path)
        except (GatewayError, HTTPException) as exc:
            return build_problem(exc, request.url.path)

    async def _respond_stream(self, request: Request, match: Match) -> AsgiResponse:
        try:
            match = await self._routes.admit(match, request)
            if ndjson.prefers_ndjson(request):
                return await ndjson.respond(self._routes, match, request)
            return await sse.respond(self._routes, match, request)
        except RoutePaused as exc:
            if query.is_event_source(request):
                return sse.build_unavailable_response(exc.reason, exc.retry_after)
            raise
        except GuardUnavailable:
            if query.is_event_source(request):
                return sse.build_unavailable_response("guard-unavailable")
            raise


def get_encoded_path(scope: Scope) -> str:
    """The path, percent-encoded as it came, below the mount point if there is one. That one is
    decoded in the scope, so its segments are compared."""
    path: str = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
    root: str = scope.get("root_path", "").rstrip("/")
    segments, depth = path.split("/"), root.count("/") + 1
    if root and len(segments) > depth and unquote("/".join(segments[:depth])) == root:
        return "/" + "/".join(segments[depth:])
    return path
