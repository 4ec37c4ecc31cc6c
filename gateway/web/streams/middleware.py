"""Dispatch a request to a stream, a WebSocket, an exchange, a page or the co-hosted app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.background_tasks import Interrupted
from gateway.config import Route as StreamRoute
from gateway.errors import Busy, GatewayError
from gateway.web.exchange import dispatch
from gateway.web.http import assets, query
from gateway.web.http.assets import CoHostedApp
from gateway.web.http.browsers import (
    CorsPolicy,
    CorsRequest,
    add_cors_headers,
    add_security_headers,
    is_foreign_request,
    parse_cors_request,
)
from gateway.web.http.problems import build_problem
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes
from gateway.web.websocket import endpoint as websocket

from . import responses
from .http_stream import AsgiResponse, TokenRenewer, parse_renewal_path


class PagePaths:
    """The paths of the pages, which Starlette serves and a reload may change."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.set_routes(routes)

    def set_routes(self, routes: Sequence[BaseRoute]) -> None:
        """Replace all paths by those of Starlette's routes, which must have no parameters."""
        self.paths = frozenset(page.path for page in routes if isinstance(page, Route))
        self.prefixes = tuple(f"{page.path}/" for page in routes if isinstance(page, Mount))


@dataclass(eq=False)
class StreamMiddleware:
    """ASGI middleware that serves every configured route, and leaves the pages to Starlette.

    It responds with 404 to a path that is neither. It stands in front of Starlette, because a
    connect took 17 us more through Starlette's router and error handling.
    """

    app: ASGIApp
    routes: Routes
    renewer: TokenRenewer
    pages: PagePaths
    co_hosted_app: CoHostedApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        # Routes match the encoded path, so that a parameter may hold an encoded slash. Pages and
        # the co-hosted app match the decoded one.
        path = get_encoded_path(scope)
        decoded_path = unquote(path) if "%" in path else path
        co_hosted_app = self.co_hosted_app
        if (
            co_hosted_app is not None
            and scope["type"] == "http"
            and co_hosted_app.owns_path(decoded_path)
        ):
            await self._limit_co_hosted(co_hosted_app, decoded_path)(
                scope, receive, add_security_headers(send, varies_by_origin=False)
            )
            return
        is_page = (
            decoded_path in self.pages.paths
            or decoded_path.startswith(self.pages.prefixes)
            or assets.is_versioned_path(decoded_path)
        )
        # CORS does not apply to WebSockets (see `websocket.handshake`).
        cors = self.routes.cors
        cors_request = parse_cors_request(scope) if scope["type"] == "http" else None
        if cors_request is not None and cors is None:
            self._report_foreign_origin(cors_request, scope, path, is_page)
        elif cors_request is not None and cors is not None:
            policy = (
                cors.get_shared_policy(cors_request.origin)
                if _is_shared_path(path)
                else cors.get_policy(self._find_nearest_route(cors_request, path, is_page))
            )
            if not policy.allows_origin(cors_request.origin):
                self._report_foreign_origin(cors_request, scope, path, is_page)
            # Under `same-origin` a preflight is an OPTIONS request like any other.
            if cors_request.header_names is not None and policy.allows_cross_origin:
                response = await self._respond_preflight(policy, cors_request, scope, path)
                await response(scope, receive, send)
                return
            if policy.allows_origin(cors_request.origin):
                send = add_cors_headers(send, policy.build_headers(cors_request.origin))
        if is_page:
            send = add_security_headers(send, varies_by_origin=self.routes.cors is not None)
            page: ASGIApp = self.app
            try:
                # A health check must not fail for what others of its address ask.
                if not decoded_path.startswith("/health/"):
                    await self.routes.limits.check_rate(scope)
            except Busy as exc:
                page = build_problem(exc, decoded_path)
            await page(scope, receive, send)
        elif scope["type"] == "websocket":
            await websocket.serve_websocket(self.routes, path, scope, receive, send)
        else:
            asgi_response = await self._dispatch_request(Request(scope, receive), path)
            await asgi_response(scope, receive, send)

    def _limit_co_hosted(self, co_hosted_app: CoHostedApp, path: str) -> ASGIApp:
        """Return the co-hosted app within the limits of this port, which exchanges have too."""
        if co_hosted_app.is_unlimited(path):
            return co_hosted_app.app
        limits = self.routes.limits

        async def serve_limited(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await limits.check_rate(scope)
                release_slot = await limits.acquire_slot(scope)
            except Busy as exc:
                media_type, body = co_hosted_app.format_error(exc)
                headers = {"Retry-After": str(ceil(exc.retry_after or 1.0))}
                await Response(body, exc.status, headers, media_type)(scope, receive, send)
                return
            try:
                await co_hosted_app.app(scope, receive, send)
            finally:
                release_slot()

        return serve_limited

    def _find_nearest_route(
        self, cors_request: CorsRequest, path: str, is_page: bool
    ) -> StreamRoute | None:
        if is_page or _is_shared_path(path):
            return None
        method = "GET" if cors_request.method == "HEAD" else cors_request.method
        return self.routes.paths.find_nearest(path, method)

    def _report_foreign_origin(
        self, cors_request: CorsRequest, scope: Scope, path: str, is_page: bool
    ) -> None:
        """Log a page of another site that may not read the response.

        Requests to the page's own origin have an `Origin`, too, if they may write.
        """
        origin = cors_request.origin
        if is_foreign_request(origin, scope):
            route = self._find_nearest_route(cors_request, path, is_page)
            self.routes.report_foreign_origin(origin, path, route)

    async def _respond_preflight(
        self, policy: CorsPolicy, cors_request: CorsRequest, scope: Scope, path: str
    ) -> Response:
        """Return the response to a preflight; `path` is percent-encoded."""
        try:
            await self.routes.limits.check_rate(scope)
            return policy.respond_preflight(
                cors_request.origin, cors_request.method, cors_request.header_names or ""
            )
        except (GatewayError, HTTPException) as exc:
            return build_problem(exc, unquote(path))

    async def _dispatch_request(self, request: Request, path: str) -> AsgiResponse:
        """Return the response to a request that is for no page.

        It counts towards the rate of its address first, also if no route has the path.
        """
        try:
            await self.routes.limits.check_rate(request.scope)
            name = parse_renewal_path(path) if request.method == "POST" else None
            if name is not None:
                return await self.renewer.renew(name, request)
            if request.method == "OPTIONS":
                allow = self.routes.paths.format_allow(path)
                return Response(status_code=204, headers={"Allow": allow})
            method = "GET" if request.method == "HEAD" else request.method
            match = self.routes.match(path, method)._replace(method=request.method)
            if match.route.is_stream:
                return await self._respond_stream(request, match)
            response = await dispatch.respond(self.routes, match, request)
            if self.routes.cors is not None:
                response.headers.add_vary_header("Origin")
            return response
        except Interrupted:
            return Response(status_code=204)  # the client does not receive it
        except Exception as exc:
            if query.is_event_source(request):
                answer = responses.build_error_response(exc)
                if answer is not None:
                    return answer
            if isinstance(exc, (GatewayError, HTTPException)):
                return build_problem(exc, request.url.path)
            raise

    async def _respond_stream(self, request: Request, match: Match) -> AsgiResponse:
        match = await self.routes.admit(match, request)
        if responses.wants_dictionary(request):
            return await responses.respond_with_dictionary(self.routes, match, request)
        if responses.prefers_lines(request):
            return await responses.respond_with_lines(self.routes, match, request)
        return await responses.respond_with_events(self.routes, match, request)


def _is_shared_path(path: str) -> bool:
    """Return whether a path is for pages of all routes: the module, or a renewal of tokens."""
    return assets.is_asset_path(path) or parse_renewal_path(path) is not None


def get_encoded_path(scope: Scope) -> str:
    """Return the path, percent-encoded as it came, below the mount point if there is one.

    The mount point is decoded in the scope, so that the path is compared segment by segment.
    """
    path: str = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
    root: str = scope.get("root_path", "").rstrip("/")
    depth = root.count("/") + 1
    segments = path.split("/", depth)
    if root and len(segments) > depth and unquote("/".join(segments[:depth])) == root:
        return "/" + "/".join(segments[depth:])
    return path
