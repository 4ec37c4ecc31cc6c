"""Trace requests, if traces are configured: a span lasts from the request to its response head."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.gateway import Gateway
from gateway.telemetry.logs import redact_url

RESPONSE_START_TYPES = ("http.response.start", "websocket.accept", "websocket.close")
ROUTE_SCOPE_KEY = "gateway.route"
"""The member of an ASGI scope that has the name of the route that was found."""


class TracingMiddleware:
    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tracing = self._gateway.tracing
        if tracing is None or scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method = scope.get("method", "GET")
        with tracing.trace_request(
            method, _get_traceparent(scope), **_build_attributes(scope, method)
        ) as span:
            if span is None:  # this request is not sampled
                await self._app(scope, receive, send)
                return

            async def send_traced(message: Message) -> None:
                if message["type"] in RESPONSE_START_TYPES and span.is_recording():
                    route = scope.get(ROUTE_SCOPE_KEY)
                    if route is not None:
                        span.update_name(f"{method} {route}")
                        span.set_attribute("http.route", route)
                    if "status" in message:
                        span.set_attribute("http.response.status_code", message["status"])
                    # A stream may last for days: the span ends with the response head.
                    span.end()
                await send(message)

            await self._app(scope, receive, send_traced)


def _build_attributes(scope: Scope, method: str) -> dict[str, str]:
    query = scope["query_string"].decode("latin-1")
    target = redact_url(f"{scope['path']}?{query}" if query else scope["path"])
    path, _, query = target.partition("?")
    attributes = {"http.request.method": method, "url.path": path}
    return {**attributes, "url.query": query} if query else attributes


def _get_traceparent(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"traceparent":
            return bytes(value)
    return None
