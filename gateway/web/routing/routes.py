"""Find the route of a request, admit its client, and subscribe it, whatever the wire."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from gateway.config import AccessControl, GuardSection, Route, Settings
from gateway.core.client.terms import ClientKey, SlowClientPolicy
from gateway.errors import RequestError, TokenError, TokenTooOld
from gateway.hub.fanout.client import Client, ClientOptions, Handover
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.view import View
from gateway.hub.wires.websocket import WebSocketWire
from gateway.hub.wires.wire import Wire
from gateway.telemetry.logs import bind_log_context, redact_url
from gateway.web.access import (
    NO_GRANTS,
    REQUESTED_ACTION_SCOPE_KEY,
    Access,
    RequestedAction,
    get_bearer_token,
)
from gateway.web.http import query
from gateway.web.http.asgi_middleware import ROUTE_SCOPE_KEY
from gateway.web.http.browsers import (
    LISTEN_OPTION,
    CorsPolicies,
    ForeignOriginLog,
    OriginRefusal,
    is_listed_origin,
    refuse_foreign_origin,
)
from gateway.web.http.limits import Limits

from .messages import QueryPairs, build_request, merge_query
from .open_streams import StreamRegistry
from .paths import Match, Parameters, PathMatch, Paths
from .replies import ReplyReaders
from .views import Views

NOT_STARTED_MESSAGE = (
    "the gateway is mounted, but not started; run its lifespan within that of the application: "
    "FastAPI(lifespan=gateway.lifespan), or `async with gateway.lifespan():` in your own"
)

WRITE_PURPOSE = "writable"
"""What a path is looked up for if records are to be written; not an HTTP method."""
LIFETIME_JITTER = 0.1
"""Fraction by which the longest life of a stream varies, so that clients that came at the same time
leave at different times."""

log = logging.getLogger(__name__)


class Routes:
    """The configured routes of one gateway.

    Created by `create_app`, one per process. `Reloader` replaces the settings while streams run, so
    a match may be out of date after every `await`; `refresh` brings it up to date.
    """

    def __init__(
        self,
        hubs: Hubs,
        settings: Settings,
        access: Access,
        limits: Limits,
        *,
        has_own_access: bool = False,
    ) -> None:
        """Create the routes; `has_own_access` if an application checks access, too."""
        self.hubs = hubs
        self.settings = settings
        self.limits = limits
        self.stream_registry = StreamRegistry(hubs.client_memory)
        self._foreign_origins = ForeignOriginLog()
        self._access = access
        self._views = Views(hubs, settings)
        self._has_own_access = has_own_access
        self._parameters = Parameters(settings, is_open=has_own_access)
        self._has_reported_not_started = False
        self.paths = Paths(settings.routes)
        self.cors = CorsPolicies.from_settings(settings)
        self.reply_readers = ReplyReaders()

    def match(self, path: str, method: str | None = None) -> Match:
        """Return the route of a percent-encoded path; a method of None is for a stream.

        It raises a 404 or 405 as `Paths.find_route`, and a 503 if the gateway was not started.
        """
        return self._build_match(self._find_path(path, method), path, method)

    def match_writable(self, path: str) -> Match:
        """Return the route that takes records by a path; the first with the path if none does.

        It raises as `match`.
        """
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
            path_match.pattern,
            path_match.values,
            NO_GRANTS,
            path,
            path_match.is_reply,
            purpose=purpose,
            settings=self.settings,
            method=path_match.method,
        )

    def is_current(self, match: Match) -> bool:
        """Return whether the configuration is still the one that the match was looked up in."""
        return match.settings is self.settings or match.settings is None

    def is_unchanged(self, match: Match) -> bool:
        """Return whether the match would be the same by now, admitted by the same guards."""
        if match.settings is None or match.settings is self.settings:
            return True
        try:
            path_match = self._find_path(match.path, match.purpose)
        except HTTPException:
            return False
        old_guards, new_guards = match.settings.guards, self.settings.guards
        has_same_guards = all(
            old_guards.get(name) == new_guards.get(name) for name in match.route.guarded
        )
        return has_same_guards and path_match.route == match.route

    async def refresh(
        self, match: Match, connection: HTTPConnection, token: str | None = None
    ) -> Match:
        """Return a match that is up to date, admitted again if the configuration changed.

        Call it just before the effect, and await nothing in between. It raises as `admit`.
        """
        if not self.is_current(match):
            return await self.admit(match, connection, token)
        self.check_blocklist(match)
        return match

    async def respond_as_configured(
        self,
        match: Match,
        connection: HTTPConnection,
        respond: Callable[[Match], Awaitable[Response]],
    ) -> Response:
        """Return the response to a read, which may wait; it raises as `admit`.

        What was configured or blocked meanwhile counts: it is read again if the match has changed.
        """
        while True:
            match = await self.refresh(match, connection)
            response = await respond(match)
            self.check_blocklist(match)
            if self.is_unchanged(match):
                return response

    def _look_up_again(self, match: Match) -> Match:
        path_match = self._find_path(match.path, match.purpose)
        # To delete a record, the client's own method counts and not that of the route.
        has_route_method = match.purpose is WRITE_PURPOSE and match.method != "DELETE"
        return match._replace(
            route=path_match.route,
            pattern=path_match.pattern,
            values=path_match.values,
            is_reply=path_match.is_reply,
            settings=self.settings,
            method=path_match.method if has_route_method else match.method,
        )

    def apply_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.paths = Paths(settings.routes)
        self.cors = CorsPolicies.from_settings(settings)
        self._views = Views(self.hubs, settings)
        self._parameters = Parameters(settings, is_open=self._has_own_access)

    def with_settings(self, settings: Settings) -> Routes:
        """Return routes of the same hubs by other settings, to see what a reload would change."""
        return Routes(
            self.hubs, settings, self._access, self.limits, has_own_access=self._has_own_access
        )

    def require_started(self) -> None:
        """Raise a 503 if the gateway was not started. The log says so once."""
        if not self.hubs.started:
            if not self._has_reported_not_started:
                log.error(NOT_STARTED_MESSAGE)
                self._has_reported_not_started = True
            raise RequestError(503, "The gateway is not started", NOT_STARTED_MESSAGE)

    def get_access_control(self, route: Route) -> AccessControl:
        """Return what pages of other sites may do: the route's own section, or that of `listen`."""
        return route.access_control or self.settings.listen.access_control

    def refuse_foreign_origin(
        self, connection: HTTPConnection, path: str, route: Route | None
    ) -> None:
        """Check the origin of a WebSocket's handshake; log one that is refused, and raise a 403.

        A route of None is for a socket of many, where any of them may allow the page.
        """
        routes = self.settings.routes if route is None else [route]
        access_controls = [self.get_access_control(each) for each in routes]
        if route is None:
            access_controls.insert(0, self.settings.listen.access_control)
        try:
            refuse_foreign_origin(access_controls, connection, self.list_guards(route))
        except RequestError:
            self.report_foreign_origin(connection.headers["origin"], path, route)
            raise

    def report_foreign_origin(self, origin: str, path: str, route: Route | None) -> None:
        """Log that a page of another site was refused, with the option that decided.

        `route` is None for paths that belong to no single route.
        """
        access, option = self.settings.listen.access_control, LISTEN_OPTION
        if route is not None and route.access_control is not None:
            access = route.access_control
            option = f"access-control of the route {route.name}"
        is_listed = access.policy == "cross-origin" and is_listed_origin(access, origin)
        self._foreign_origins.report(OriginRefusal(origin, path, option, is_listed))

    def list_credential_headers(self, route: Route) -> list[str]:
        """Return the headers by which clients of a route differ; `*` if that is not known."""
        if self._has_own_access:
            return ["*"]
        return [name for guard in self.list_guards(route) for name in guard.credential_headers]

    def list_guards(self, route: Route | None) -> list[GuardSection]:
        return [self.settings.guards[name] for name in (route.guarded if route else ())]

    async def admit(
        self, match: Match, connection: HTTPConnection, token: str | None = None
    ) -> Match:
        """Return the match with what guards grant to the client, or raise a `RequestError`.

        It is looked up again if the configuration changes while guards are asked, which may be a
        404 or 405. `token`, which the client sent later, overrides the one of the connection.
        """
        # Asking guards may take seconds: the result counts only if the settings are still the same.
        while True:
            if not self.is_current(match):
                match = self._look_up_again(match)
            match = await self._admit_once(match, connection, token)
            if self.is_current(match):
                return match

    async def _admit_once(
        self, match: Match, connection: HTTPConnection, token: str | None
    ) -> Match:
        """Ask the guards, and then the blocklist; return the match with what is granted."""
        if match.route.guarded:
            connection.scope[REQUESTED_ACTION_SCOPE_KEY] = RequestedAction(match.method, match.path)
        if connection.scope["type"] == "websocket":
            self.refuse_foreign_origin(connection, match.path, match.route)
            # For the check of a host application, which finds the method there on every wire
            # (`Access`).
            connection.scope["method"] = match.method
        token = token or get_bearer_token(connection)
        granted = await self._access(match.route, match.params, connection, token)
        match = match._replace(granted=granted or NO_GRANTS)
        self.check_blocklist(match)
        return match

    def check_blocklist(self, match: Match) -> None:
        """Raise a 503 if operators paused the route, or a 403 if they revoked the identity."""
        error = self.stream_registry.find_refusal(match)
        if error is not None:
            raise error

    async def open_client(
        self, match: Match, request: HTTPConnection, wire: Wire, *, page_records: int | None = None
    ) -> Client:
        """Subscribe a client to what the query and `Last-Event-ID` of a request ask for.

        `page_records` is the size of a page, which `?until=COUNT` overrides. The hub owns the
        client.

        Raises:
            RequestError: The request asks for something wrong, or something it may not see.
            TokenError: The resume token cannot be used, and the client can read the error.
            KafkaError: No broker could be asked.
        """
        name = request.scope[ROUTE_SCOPE_KEY] = match.route.name
        bind_log_context(route=name)
        query_pairs = query.get_query_pairs(request)
        self.check_parameters(match, query_pairs)
        view = await self.get_view(match, query_pairs)
        start, has_unreadable_token = self._resolve_start(match.route, view, request)
        client_key = match.get_client_key(request.scope)
        if start.credit is not None and not isinstance(wire, WebSocketWire):
            detail = "?credit= is granted by messages; leave it out, or use a WebSocket"
            raise RequestError(400, "Bad request", detail)
        if page_records is not None:
            # A page is a stream with credit for that many records: it stops without an end.
            start = replace(start, max_records=None, credit=start.max_records or page_records)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("stream asked wire=%s url=%s", wire.name, redact_url(str(request.url)))
        try:
            return await self._subscribe(
                match, view, start, wire, client_key, position_refused=has_unreadable_token
            )
        except TokenError as exc:
            if not query.is_event_source(request):
                raise
            # An EventSource would end for good at an error: it starts without the token, and its
            # stream says so by a gap.
            start = replace(start, token=None)
            if isinstance(exc, TokenTooOld):
                start = replace(start, origin=query.get_oldest_origin(match.route.stream.history))
            return await self._subscribe(
                match, view, start, wire, client_key, position_refused=True
            )

    async def resume_client(
        self, match: Match, query_pairs: QueryPairs, wire: Wire, handover: Handover
    ) -> Client:
        """Subscribe a client that continues another one, from the position of that one.

        If the other client read none of the topics, the query says where the new one starts and
        ends. It raises as `open_client`.
        """
        view, overrides = await self.get_view(match, query_pairs), {"lastEventId": ""}
        if handover.cluster != view.cluster:
            # A position in another cluster means nothing in this one.
            handover = handover._replace(topics=frozenset())
        if handover.topics.isdisjoint(view.topics):
            handover = handover._replace(until=None)
        else:
            overrides["lastEventId"] = handover.position.decode()
        start, _ = self._resolve_start(
            match.route, view, build_request("/", merge_query(query_pairs, overrides))
        )
        start = replace(start, max_records=handover.records_left, credit=handover.credit)
        client_key = match.granted.client_key or handover.client_key
        return await self._subscribe(
            match, view, start, wire, client_key, position_refused=False, handover=handover
        )

    def _resolve_start(
        self, route: Route, view: View, request: HTTPConnection
    ) -> tuple[StreamStart, bool]:
        """Return where a request starts and ends, and whether its token could not be parsed."""
        start_request = query.parse_start_request(
            request, default=self._get_default_origin(view), history=route.stream.history
        )
        start = start_request.start
        if route.stream.mode == "snapshot" and not request.query_params.get("from"):
            start = replace(start, snapshot=True)
        return start, start_request.token_error is not None

    def check_parameters(self, match: Match, query_pairs: QueryPairs) -> None:
        """Refuse parameters of the query that nothing reads by 400.

        A stream that continues is not checked again: after a reload, its route may read others.
        """
        self._parameters.check(match.route, query_pairs)

    async def get_view(self, match: Match, query_pairs: QueryPairs) -> View:
        """Return the view of a request with this query; raises as `Views.get_view`."""
        return await self._views.get_view(
            match.route, match.params, query_pairs, granted=match.granted
        )

    async def _subscribe(
        self,
        match: Match,
        view: View,
        start: StreamStart,
        wire: Wire,
        client_key: ClientKey,
        *,
        position_refused: bool,
        handover: Handover | None = None,
    ) -> Client:
        with_ = match.route.stream
        client = await self.hubs.get_hub(view.cluster).subscribe(
            view,
            start,
            wire,
            ClientOptions(
                heartbeat=with_.heartbeat,
                slow=SlowClientPolicy(with_.slow_client),
                lifetime=jitter_lifetime(with_.max_lifetime),
                expires_at=match.granted.expires,
                position_refused=position_refused,
                handover=handover,
                route=match.route.name,
                rate=with_.max_rate,
                client_key=client_key,
            ),
        )
        bind_log_context(stream=client.number)
        return client

    def get_hub(self, route: Route) -> Hub:
        return self.hubs.get_hub(self._views.get_cluster_name(route))

    def get_challenge_lead(self, guard: str) -> float | None:
        """Return how many seconds before expiry a guard asks for a new token, if it does."""
        section = self.settings.guards.get(guard)
        return None if section is None else section.challenge_lead

    def _get_default_origin(self, view: View) -> Literal["live", "earliest"]:
        """Return `defaultOffset`: "earliest" only if every topic of the view is historical."""
        topics = self.hubs.get_hub(view.cluster).topics
        for name in view.topics:
            if topics.get_settings(name).default_offset != "historical":
                return "live"
        return "earliest"


def jitter_lifetime(lifetime: float | None) -> float | None:
    """Return a lifetime, in seconds, that is up to LIFETIME_JITTER longer or shorter."""
    return (
        None
        if lifetime is None
        else lifetime * random.uniform(1 - LIFETIME_JITTER, 1 + LIFETIME_JITTER)
    )
