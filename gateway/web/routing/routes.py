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
from gateway.core.client.slow_client import SlowClientPolicy
from gateway.errors import RequestError, TokenError, TokenTooOld
from gateway.hub.fanout.client import Client, Handover
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.fanout.view import View
from gateway.hub.reads.stream_start import StreamStart
from gateway.hub.wires.websocket import WebSocketWire
from gateway.hub.wires.wire import Wire
from gateway.telemetry.log_context import bind_log_context
from gateway.telemetry.redaction import redact_url
from gateway.web.access import (
    NO_GRANTS,
    REQUESTED_ACTION_SCOPE_KEY,
    Access,
    Granted,
    RequestedAction,
    get_bearer_token,
)
from gateway.web.app.tracing import ROUTE_SCOPE_KEY
from gateway.web.exchange.replies import ReplyReaders
from gateway.web.http.cors import CorsPolicies
from gateway.web.streams.open_streams import StreamRegistry
from gateway.web.websocket.origin import refuse_foreign_origin
from gateway.web.websocket.request import QueryPairs, build_request, merge_query

from . import query
from .limits import Limits
from .paths import PathMatch, Paths
from .views import Views

NOT_STARTED_MESSAGE = (
    "the gateway is mounted, but not started; run its lifespan within that of the application: "
    "FastAPI(lifespan=gateway.lifespan), or `async with gateway.lifespan():` in your own"
)

WRITE_PURPOSE = "writable"  # no method of HTTP
LIFETIME_JITTER = (
    0.1  # of a stream's longest life, more or less: those that came at once leave apart
)

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
    granted: Granted = NO_GRANTS
    path: str = ""
    is_reply: bool = False
    purpose: str | None = None
    settings: Settings | None = None
    method: str = "GET"


class Routes:
    """The configured routes of one gateway."""

    def __init__(self, hubs: Hubs, settings: Settings, access: Access, limits: Limits) -> None:
        self.hubs = hubs
        self.settings = settings
        self.limits = limits
        self.stream_registry = StreamRegistry()
        self._access = access
        self._views = Views(hubs, settings)
        self._has_reported_not_started = False
        self.paths = Paths(settings.routes)
        self.cors = CorsPolicies.from_settings(settings)
        self.reply_readers = ReplyReaders()

    def match(self, path: str, method: str | None = None) -> Match:
        """The route of a path, percent-encoded as it came. method: None for a stream.

        Raises HTTPException 404 and 405, and RequestError 503 where nobody started the gateway.
        """
        return self._build_match(self._find_path(path, method), path, method)

    def match_writable(self, path: str) -> Match:
        """The route that takes records by a path; another, where none does. Raises as `match`."""
        return self._build_match(self._find_path(path, WRITE_PURPOSE), path, WRITE_PURPOSE)

    def _find_path(self, path: str, purpose: str | None) -> PathMatch:
        return (
            self.paths.find_writable(path)
            if purpose is WRITE_PURPOSE
            else self.paths.find_route(path, purpose)
        )

    def _build_match(self, path_match: PathMatch, path: str, purpose: str | None) -> Match:
        self.require_started()
        return Match(
            path_match.route,
            path_match.params,
            NO_GRANTS,
            path,
            path_match.is_reply,
            purpose=purpose,
            settings=self.settings,
            method=path_match.method,
        )

    def is_current(self, match: Match) -> bool:
        """Return whether nothing was configured anew since the match was looked up."""
        return match.settings is self.settings or match.settings is None

    def is_unchanged(self, match: Match) -> bool:
        """Return whether the match would be the same by now, admitted by the same guards."""
        if match.settings is None or match.settings is self.settings:
            return True
        try:
            found = self._find_path(match.path, match.purpose)
        except HTTPException:
            return False
        before, guards = match.settings.guards, self.settings.guards
        same = all(before.get(name) == guards.get(name) for name in match.route.guarded)
        return same and found.route == match.route

    async def refresh(
        self, match: Match, connection: HTTPConnection, token: str | None = None
    ) -> Match:
        """Return an admitted match as it is; looked up and admitted again if what is configured was
        changed since. Do so just before the effect, without waiting for anything in between.
        Raises as `match` and `admit`."""
        return match if self.is_current(match) else await self.admit(match, connection, token)

    def _look_up_again(self, match: Match) -> Match:
        found = self._find_path(match.path, match.purpose)
        of_route = match.purpose is WRITE_PURPOSE and match.method != "DELETE"
        return match._replace(
            route=found.route,
            params=found.params,
            is_reply=found.is_reply,
            settings=self.settings,
            method=found.method if of_route else match.method,
        )

    def apply_settings(self, settings: Settings) -> None:
        """Go by these settings from now on, for who comes and for streams that go on."""
        self.settings = settings
        self.paths = Paths(settings.routes)
        self.cors = CorsPolicies.from_settings(settings)
        self._views = Views(self.hubs, settings)

    def require_started(self) -> None:
        """Raises RequestError 503 where nobody started the gateway."""
        if not self.hubs.started:
            if not self._has_reported_not_started:
                log.error(NOT_STARTED_MESSAGE)
                self._has_reported_not_started = True
            raise RequestError(503, "The gateway is not started", NOT_STARTED_MESSAGE)

    def get_access_control(self, route: Route) -> AccessControl:
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
                match = self._look_up_again(match)
            match = await self._admit_once(match, connection, token)
            if self.is_current(match):
                return match

    async def _admit_once(
        self, match: Match, connection: HTTPConnection, token: str | None
    ) -> Match:
        if match.route.guarded:
            connection.scope[REQUESTED_ACTION_SCOPE_KEY] = RequestedAction(match.method, match.path)
        if connection.scope["type"] == "websocket":
            refuse_foreign_origin([self.get_access_control(match.route)], connection)
            connection.scope["method"] = match.method
        token = token or get_bearer_token(connection)
        granted = await self._access(match.route, match.params, connection, token)
        match = match._replace(granted=granted or NO_GRANTS)
        self.check_blocklist(match)
        return match

    def check_blocklist(self, match: Match) -> None:
        """Raises RequestError 503 for a route that is paused, 403 for who was revoked."""
        refused = self.stream_registry.find_error(match)
        if refused is not None:
            raise refused

    async def open_client(
        self, match: Match, request: HTTPConnection, wire: Wire, *, page_records: int | None = None
    ) -> Client:
        """A client of what the query and `Last-Event-ID` of a request ask for.

        page: records of a page, for one that only wants the next; `?until=COUNT` beats it.
        Raises RequestError, TokenError and KafkaError.
        """
        name = request.scope[ROUTE_SCOPE_KEY] = get_route_name(match.route)
        bind_log_context(route=name)
        view = await self.get_view(match, query.get_query_pairs(request))
        start, refused = self._resolve_start(match.route, view, request)
        if start.credit is not None and not isinstance(wire, WebSocketWire):
            detail = "?credit= is granted by messages; leave it out, or use a WebSocket"
            raise RequestError(400, "Bad request", detail)
        if page_records is not None:
            start = replace(start, max_records=None, credit=start.max_records or page_records)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("stream asked wire=%s url=%s", wire.name, redact_url(str(request.url)))
        try:
            return await self._subscribe(match, view, start, wire, position_refused=refused)
        except TokenError as exc:
            header = request.headers.get("last-event-id")
            if not (query.is_event_source(request) and header):
                raise
            start = replace(start, token=None)
            if isinstance(exc, TokenTooOld):
                start = replace(start, origin=query.get_oldest_origin(match.route.with_.history))
            return await self._subscribe(match, view, start, wire, position_refused=True)

    async def resume_client(
        self, match: Match, query_pairs: QueryPairs, wire: Wire, handover: Handover
    ) -> Client:
        """A client in the place of another: from where that one stood; among topics of which it
        read none, from where the query says. Raises as `open`."""
        view, told = await self.get_view(match, query_pairs), {"lastEventId": ""}
        if handover.cluster != view.cluster:
            handover = handover._replace(topics=frozenset(), until=None)
        if not handover.topics.isdisjoint(view.topics):
            told["lastEventId"] = handover.position.decode()
        start, _ = self._resolve_start(
            match.route, view, build_request("/", merge_query(query_pairs, told))
        )
        start = replace(start, max_records=handover.records_left, credit=handover.credit)
        return await self._subscribe(
            match, view, start, wire, position_refused=False, handover=handover
        )

    def _resolve_start(
        self, route: Route, view: View, request: HTTPConnection
    ) -> tuple[StreamStart, bool]:
        """Where a request wants to begin and end; did it bring a token that could not be read?"""
        asked = query.parse_start_request(
            request, default=self._get_default_origin(view), history=route.with_.history
        )
        start = asked.start
        if route.with_.mode == "snapshot" and not request.query_params.get("from"):
            start = replace(start, snapshot=True)
        return start, asked.token_error is not None

    async def get_view(self, match: Match, query_pairs: QueryPairs) -> View:
        """What a request with this query looks at. Raises RequestError and UnknownTopic;
        KafkaError where its path has a pattern and no broker says which topics there are."""
        return await self._views.get_view(
            match.route, match.params, query_pairs, granted=match.granted
        )

    async def _subscribe(
        self,
        match: Match,
        view: View,
        start: StreamStart,
        wire: Wire,
        *,
        position_refused: bool,
        handover: Handover | None = None,
    ) -> Client:
        with_ = match.route.with_
        client = await self.hubs.get_hub(view.cluster).subscribe(
            view,
            start,
            wire,
            heartbeat=with_.heartbeat,
            slow=SlowClientPolicy(with_.slow_client),
            lifetime=jitter_lifetime(with_.max_lifetime),
            expires_at=match.granted.expires,
            position_refused=position_refused,
            handover=handover,
            route=get_route_name(match.route),
            rate=with_.max_rate,
        )
        bind_log_context(stream=client.number)
        return client

    def get_hub(self, route: Route) -> Hub:
        return self.hubs.get_hub(self._views.get_cluster_name(route))

    def get_challenge_lead(self, guard: str) -> float | None:
        """Seconds before its grants are over that a guard wants a new token; None if it takes
        none."""
        return getattr(self.settings.guards.get(guard), "challenge", None)

    def _get_default_origin(self, view: View) -> Literal["live", "earliest"]:
        """`defaultOffset`: historical only if every topic of the view is."""
        topics = self.hubs.get_hub(view.cluster).topics
        for name in view.topics:
            if topics.get_settings(name).default_offset != "historical":
                return "live"
        return "earliest"


def get_route_name(route: Route) -> str:
    """As metrics, logs and traces call it: its first path as configured."""
    return route.when[0].path


def jitter_lifetime(lifetime: float | None) -> float | None:
    """A bit more or less than that."""
    return (
        None
        if lifetime is None
        else lifetime * random.uniform(1 - LIFETIME_JITTER, 1 + LIFETIME_JITTER)
    )
