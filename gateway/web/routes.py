"""From a path to a client of its stream, whatever the wire."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from ..config import Route, Settings
from ..core.slow import SlowClient
from ..errors import RequestError, TokenError
from ..hub.client import Client
from ..hub.hub import Hub
from ..hub.messages import WebSocket
from ..hub.resume import Start
from ..hub.view import View
from ..hub.wire import Wire
from ..telemetry.about import note
from ..telemetry.redact import redacted
from . import query
from .access import NOBODY, Access, Granted, bearer
from .limits import Limits
from .traced import ROUTE
from .views import Views

NOT_STARTED = (
    "the gateway is mounted, but not started; run its lifespan within that of the application: "
    "FastAPI(lifespan=gateway.lifespan), or `async with gateway.lifespan():` in your own"
)

SPREAD = 0.1  # of a stream's longest life, more or less: those that came at once leave apart

log = logging.getLogger(__name__)


class Match(NamedTuple):
    """A route, what its path pattern's parameters are in this path, and who asks."""

    route: Route
    params: Mapping[str, str]
    granted: Granted = NOBODY


class Routes:
    """The configured routes of one gateway."""

    def __init__(self, hub: Hub, settings: Settings, access: Access, limits: Limits) -> None:
        self.hub = hub
        self.settings = settings
        self.limits = limits
        self._access = access
        self._views = Views(hub, settings)
        self._told = False
        self._routes = [(when.pattern, route) for route in settings.routes for when in route.when]

    def match(self, path: str) -> Match:
        """The route of a path, percent-encoded as it came.

        Raises HTTPException 404, and RequestError 503 where nobody started the gateway.
        """
        for pattern, route in self._routes:
            params = pattern.match(path)
            if params is not None:
                self.must_run()
                return Match(route, params)
        raise HTTPException(404)

    def must_run(self) -> None:
        """Raises RequestError 503 where nobody started the gateway."""
        if not self.hub.started:
            if not self._told:
                log.error(NOT_STARTED)
                self._told = True
            raise RequestError(503, "The gateway is not started", NOT_STARTED)

    async def admit(
        self, match: Match, connection: HTTPConnection, token: str | None = None
    ) -> Match:
        """The same with what is known of the client. Raises RequestError where access is denied.

        token: beats what the connection has.
        """
        token = token or bearer(connection)
        granted = await self._access(match.route, match.params, connection, token)
        return match._replace(granted=granted or NOBODY)

    async def open(
        self, match: Match, request: HTTPConnection, wire: Wire, *, page: int | None = None
    ) -> Client:
        """A client of what the query and `Last-Event-ID` of a request ask for.

        page: records of a page, for one that only wants the next; `?until=COUNT` beats it.
        It counts as a connection, but for those of a WebSocket, which is one.
        Raises Busy, RequestError, TokenError and KafkaError.
        """
        if isinstance(wire, WebSocket):
            return await self._open(match, request, wire, page)
        leave = await self.limits.enter(request.scope, match.granted)
        try:
            client = await self._open(match, request, wire, page)
        except BaseException:
            leave()
            raise
        self.hub.after(client, leave)
        return client

    async def _open(
        self, match: Match, request: HTTPConnection, wire: Wire, page: int | None
    ) -> Client:
        name = request.scope[ROUTE] = name_of(match.route)
        note(route=name)
        route, view = match.route, await self.view(match, request)
        asked = query.asked(request, default=self._default(view), history=route.with_.history)
        if asked.start.credit is not None and not isinstance(wire, WebSocket):
            detail = "?credit= is granted by messages; leave it out, or use a WebSocket"
            raise RequestError(400, "Bad request", detail)
        start, refused = asked.start, asked.refused is not None
        if route.with_.mode == "snapshot" and not request.query_params.get("from"):
            start = replace(start, snapshot=True)
        if page is not None:
            start = replace(start, count=None, credit=start.count or page)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("stream asked wire=%s url=%s", wire.name, redacted(str(request.url)))
        try:
            return await self._subscribe(match, view, start, wire, refused=refused)
        except TokenError:
            header = request.headers.get("last-event-id")
            if not (query.is_event_source(request) and header):
                raise
            start = replace(start, token=None)
            return await self._subscribe(match, view, start, wire, refused=True)

    async def view(self, match: Match, request: HTTPConnection) -> View:
        """What a request looks at. Raises RequestError and UnknownTopic; KafkaError where its
        path has a pattern and no broker says which topics there are."""
        return await self._views.of(
            match.route, match.params, query.pairs(request), granted=match.granted
        )

    async def _subscribe(
        self, match: Match, view: View, start: Start, wire: Wire, *, refused: bool
    ) -> Client:
        with_ = match.route.with_
        client = await self.hub.subscribe(
            view,
            start,
            wire,
            heartbeat=with_.heartbeat,
            slow=SlowClient(with_.slow_client),
            lifetime=spread(with_.max_lifetime),
            expires=match.granted.expires,
            refused=refused,
            route=name_of(match.route),
        )
        note(stream=client.number)
        return client

    def _default(self, view: View) -> Literal["live", "earliest"]:
        """`defaultOffset`: historical only if every topic of the view is."""
        for name in view.topics:
            if self.hub.topics.settings(name).default_offset != "historical":
                return "live"
        return "earliest"


def name_of(route: Route) -> str:
    """As metrics, logs and traces call it: its first path as configured."""
    return route.when[0].path


def spread(lifetime: float | None) -> float | None:
    """A bit more or less than that."""
    return None if lifetime is None else lifetime * random.uniform(1 - SPREAD, 1 + SPREAD)
