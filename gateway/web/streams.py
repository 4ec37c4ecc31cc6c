"""Routes to streams: which topics, filters and format a request is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from ..config import Route, Settings
from ..core.subscription import SlowClient
from ..errors import AccessDenied, KafkaError, TokenError, UnknownTopic
from ..hub.client import Client
from ..hub.encoder import Sse
from ..hub.hub import Hub
from ..hub.resume import Start
from ..hub.view import View
from . import query
from .sse import HEADERS, StreamResponse, unavailable
from .views import view_of

ALLOW = {"Allow": "GET, HEAD, OPTIONS"}


class Streams:
    """An ASGI application: every configured route, 404 for what is none."""

    def __init__(self, hub: Hub, settings: Settings) -> None:
        self._hub = hub
        self._settings = settings
        self._routes = [(when.pattern, route) for route in settings.routes for when in route.when]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        request = Request(scope, receive)
        route, params = self._match(scope)
        if request.method == "OPTIONS":
            response = Response(status_code=204, headers=ALLOW)
        elif request.method in ("GET", "HEAD"):
            response = await self._respond(request, route, params)
        else:
            raise HTTPException(405, headers=ALLOW)
        await response(scope, receive, send)

    def _match(self, scope: Scope) -> tuple[Route, Mapping[str, str]]:
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        for pattern, route in self._routes:
            params = pattern.match(path)
            if params is not None:
                return route, params
        raise HTTPException(404)

    async def _respond(self, request: Request, route: Route, params: Mapping[str, str]) -> Response:
        view = view_of(route, params, dict(request.query_params))
        self._only_configured(view)
        asked = query.asked(request, default=self._default(view), history=route.with_.history)
        try:
            client = await self._subscribe(request, route, view, asked)
        except (UnknownTopic, AccessDenied):
            raise
        except KafkaError:
            if query.is_event_source(request):
                return unavailable("kafka-unavailable")
            raise
        if request.method == "HEAD":
            client.close()
            return Response(headers=HEADERS, media_type="text/event-stream")
        try:
            await client.ready()
        except BaseException:
            client.close()
            raise
        return StreamResponse(client.stream(), client.close)

    async def _subscribe(
        self, request: Request, route: Route, view: View, asked: query.Asked
    ) -> Client:
        try:
            return await self._open(route, view, asked.start, refused=asked.refused is not None)
        except TokenError:
            if not (query.is_event_source(request) and request.headers.get("last-event-id")):
                raise
            return await self._open(route, view, _without_token(asked.start), refused=True)

    async def _open(self, route: Route, view: View, start: Start, *, refused: bool) -> Client:
        with_ = route.with_
        return await self._hub.subscribe(
            view,
            start,
            Sse(),
            heartbeat=with_.heartbeat,
            slow=SlowClient(with_.slow_client),
            lifetime=with_.max_lifetime,
            refused=refused,
        )

    def _only_configured(self, view: View) -> None:
        """Raises UnknownTopic for what a template came to and `kafka.topics` does not list: who
        fills in a path must not choose among all topics that the gateway could read."""
        for name in view.topics:
            if self._settings.kafka.topic(name) is None:
                raise UnknownTopic(f"no topic '{name}' is served here", topic=name)

    def _default(self, view: View) -> Literal["live", "earliest"]:
        """`defaultOffset`: historical only if every topic of the view is."""
        topics = [self._hub.topics.settings(name) for name in view.topics]
        return "earliest" if all(t.default_offset == "historical" for t in topics) else "live"


def _without_token(start: Start) -> Start:
    return Start(None, start.origin, start.until, start.count)
