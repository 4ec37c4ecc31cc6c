"""From a path to a client of its stream, whatever the wire."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from gateway.config import AccessControl, Route, Settings
from gateway.core.client.slow_client import SlowClient
from gateway.errors import RequestError, TokenError, TokenTooOld
from gateway.hub.fanout.client import Client, Handover
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.fanout.view import View
from gateway.hub.reads.resume import Start
from gateway.hub.wires.websocket import WebSocket
from gateway.hub.wires.wire import Wire
from gateway.telemetry.about import note
from gateway.telemetry.redact import redacted
from gateway.web.access import NOBODY, WANTED, Access, Granted, Wanted, bearer
from gateway.web.app.traced import ROUTE
from gateway.web.exchange.replies import Replying
from gateway.web.http.cors import Cors
from gateway.web.streams.open_streams import Openings
from gateway.web.websocket.origin import refuse_foreign
from gateway.web.websocket.request import Query, over, request_of

from . import query
from .limits import Limits
from .paths import Found, Paths
from .views import Views

NOT_STARTED = (
    "the gateway is mounted, but not started; run its lifespan within that of the application: "
    "FastAPI(lifespan=gateway.lifespan), or `async with gateway.lifespan():` in your own"
)

WRITABLE = "writable"  # no method of HTTP
SPREAD = 0.1  # of a stream's longest life, more or less: those that came at once leave apart

log = logging.getLogger(__name__)


class Match(NamedTuple):
    """A route, what its path pattern's parameters are in this path, and who asks.

    reply: it is where the reply of a request is asked for.
    wanted: what its path was looked up for: a method, a stream (None), or WRITABLE.
    since: what was configured then; None where nobody looked it up.
    method: what guards are told that the client wants to do; HTTP's word for it on any wire.
    """

    route: Route
    params: Mapping[str, str]
    granted: Granted = NOBODY
    path: str = ""
    reply: bool = False
    wanted: str | None = None
    since: Settings | None = None
    method: str = "GET"


class Routes:
    """The configured routes of one gateway."""

    def __init__(self, hubs: Hubs, settings: Settings, access: Access, limits: Limits) -> None:
        self.hubs = hubs
        self.settings = settings
        self.limits = limits
        self.openings = Openings()
        self._access = access
        self._views = Views(hubs, settings)
        self._told = False
        self.paths = Paths(settings.routes)
        self.cors = Cors.of(settings)
        self.replying = Replying()

    def match(self, path: str, method: str | None = None) -> Match:
        """The route of a path, percent-encoded as it came. method: None for a stream.

        Raises HTTPException 404 and 405, and RequestError 503 where nobody started the gateway.
        """
        return self._matched(self._find(path, method), path, method)

    def writable(self, path: str) -> Match:
        """The route that takes records by a path; another, where none does. Raises as `match`."""
        return self._matched(self._find(path, WRITABLE), path, WRITABLE)

    def _find(self, path: str, wanted: str | None) -> Found:
        return self.paths.writable(path) if wanted is WRITABLE else self.paths.find(path, wanted)

    def _matched(self, found: Found, path: str, wanted: str | None) -> Match:
        self.must_run()
        return Match(
            found.route,
            found.params,
            NOBODY,
            path,
            found.reply,
            wanted=wanted,
            since=self.settings,
            method=found.method,
        )

    def is_current(self, match: Match) -> bool:
        """Return whether nothing was configured anew since the match was looked up."""
        return match.since is self.settings or match.since is None

    def is_unchanged(self, match: Match) -> bool:
        """Return whether the match would be the same by now, admitted by the same guards."""
        if match.since is None or match.since is self.settings:
            return True
        try:
            found = self._find(match.path, match.wanted)
        except HTTPException:
            return False
        before, guards = match.since.guards, self.settings.guards
        same = all(before.get(name) == guards.get(name) for name in match.route.guarded)
        return same and found.route == match.route

    async def refresh(
        self, match: Match, connection: HTTPConnection, token: str | None = None
    ) -> Match:
        """Return an admitted match as it is; looked up and admitted again if what is configured was
        changed since. Do so just before the effect, without waiting for anything in between.
        Raises as `match` and `admit`."""
        return match if self.is_current(match) else await self.admit(match, connection, token)

    def _looked_up_again(self, match: Match) -> Match:
        found = self._find(match.path, match.wanted)
        of_route = match.wanted is WRITABLE and match.method != "DELETE"
        return match._replace(
            route=found.route,
            params=found.params,
            reply=found.reply,
            since=self.settings,
            method=found.method if of_route else match.method,
        )

    def adopt(self, settings: Settings) -> None:
        """Go by these settings from now on, for who comes and for streams that go on."""
        self.settings = settings
        self.paths = Paths(settings.routes)
        self.cors = Cors.of(settings)
        self._views = Views(self.hubs, settings)

    def must_run(self) -> None:
        """Raises RequestError 503 where nobody started the gateway."""
        if not self.hubs.started:
            if not self._told:
                log.error(NOT_STARTED)
                self._told = True
            raise RequestError(503, "The gateway is not started", NOT_STARTED)

    def access_control(self, route: Route) -> AccessControl:
        """What pages of other sites may do: of a route, or of all."""
        return route.access_control or self.settings.listen.access_control

    async def admit(
        self, match: Match, connection: HTTPConnection, token: str | None = None
    ) -> Match:
        """The same with what is known of the client; looked up again if what is configured was
        changed while the guards were asked. Raises RequestError where access is denied, and then
        also HTTPException 404 and 405.

        token: beats what the connection has.
        """
        while True:
            if not self.is_current(match):
                match = self._looked_up_again(match)
            match = await self._admit(match, connection, token)
            if self.is_current(match):
                return match

    async def _admit(self, match: Match, connection: HTTPConnection, token: str | None) -> Match:
        if match.route.guarded:
            connection.scope[WANTED] = Wanted(match.method, match.path)
        if connection.scope["type"] == "websocket":
            refuse_foreign([self.access_control(match.route)], connection)
            connection.scope["method"] = match.method
        token = token or bearer(connection)
        granted = await self._access(match.route, match.params, connection, token)
        match = match._replace(granted=granted or NOBODY)
        self.mind_orders(match)
        return match

    def mind_orders(self, match: Match) -> None:
        """Raises RequestError 503 for a route that is paused, 403 for who was revoked."""
        refused = self.openings.refusal(match)
        if refused is not None:
            raise refused

    async def open(
        self, match: Match, request: HTTPConnection, wire: Wire, *, page: int | None = None
    ) -> Client:
        """A client of what the query and `Last-Event-ID` of a request ask for.

        page: records of a page, for one that only wants the next; `?until=COUNT` beats it.
        Raises RequestError, TokenError and KafkaError.
        """
        name = request.scope[ROUTE] = name_of(match.route)
        note(route=name)
        view = await self.view(match, query.pairs(request))
        start, refused = self._start(match.route, view, request)
        if start.credit is not None and not isinstance(wire, WebSocket):
            detail = "?credit= is granted by messages; leave it out, or use a WebSocket"
            raise RequestError(400, "Bad request", detail)
        if page is not None:
            start = replace(start, count=None, credit=start.count or page)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("stream asked wire=%s url=%s", wire.name, redacted(str(request.url)))
        try:
            return await self._subscribe(match, view, start, wire, refused=refused)
        except TokenError as exc:
            header = request.headers.get("last-event-id")
            if not (query.is_event_source(request) and header):
                raise
            start = replace(start, token=None)
            if isinstance(exc, TokenTooOld):
                start = replace(start, origin=query.limit(match.route.with_.history))
            return await self._subscribe(match, view, start, wire, refused=True)

    async def go_on(self, match: Match, asked: Query, wire: Wire, after: Handover) -> Client:
        """A client in the place of another: from where that one stood; among topics of which it
        read none, from where the query says. Raises as `open`."""
        view, told = await self.view(match, asked), {"lastEventId": ""}
        if after.cluster != view.cluster:
            after = after._replace(topics=frozenset(), until=None)
        if not after.topics.isdisjoint(view.topics):
            told["lastEventId"] = after.position.decode()
        start, _ = self._start(match.route, view, request_of("/", over(asked, told)))
        start = replace(start, count=after.records, credit=after.credit)
        return await self._subscribe(match, view, start, wire, refused=False, after=after)

    def _start(self, route: Route, view: View, request: HTTPConnection) -> tuple[Start, bool]:
        """Where a request wants to begin and end; did it bring a token that could not be read?"""
        asked = query.asked(request, default=self._default(view), history=route.with_.history)
        start = asked.start
        if route.with_.mode == "snapshot" and not request.query_params.get("from"):
            start = replace(start, snapshot=True)
        return start, asked.refused is not None

    async def view(self, match: Match, asked: Query) -> View:
        """What a request with this query looks at. Raises RequestError and UnknownTopic;
        KafkaError where its path has a pattern and no broker says which topics there are."""
        return await self._views.of(match.route, match.params, asked, granted=match.granted)

    async def _subscribe(
        self,
        match: Match,
        view: View,
        start: Start,
        wire: Wire,
        *,
        refused: bool,
        after: Handover | None = None,
    ) -> Client:
        with_ = match.route.with_
        client = await self.hubs.of(view.cluster).subscribe(
            view,
            start,
            wire,
            heartbeat=with_.heartbeat,
            slow=SlowClient(with_.slow_client),
            lifetime=spread(with_.max_lifetime),
            expires=match.granted.expires,
            refused=refused,
            after=after,
            route=name_of(match.route),
            rate=with_.max_rate,
        )
        note(stream=client.number)
        return client

    def hub_of(self, route: Route) -> Hub:
        return self.hubs.of(self._views.cluster_of(route))

    def challenge(self, guard: str) -> float | None:
        """Seconds before its grants are over that a guard wants a new token; None if it takes
        none."""
        return getattr(self.settings.guards.get(guard), "challenge", None)

    def _default(self, view: View) -> Literal["live", "earliest"]:
        """`defaultOffset`: historical only if every topic of the view is."""
        topics = self.hubs.of(view.cluster).topics
        for name in view.topics:
            if topics.settings(name).default_offset != "historical":
                return "live"
        return "earliest"


def name_of(route: Route) -> str:
    """As metrics, logs and traces call it: its first path as configured."""
    return route.when[0].path


def spread(lifetime: float | None) -> float | None:
    """A bit more or less than that."""
    return None if lifetime is None else lifetime * random.uniform(1 - SPREAD, 1 + SPREAD)
