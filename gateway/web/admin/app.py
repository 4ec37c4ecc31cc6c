"""The requests of operators, each answered for all workers, in JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.config.source.expression import suggest
from gateway.errors import RequestError
from gateway.web.access.guards import Guards
from gateway.web.app.metrics import Metrics
from gateway.web.app.reload import Reloader
from gateway.web.http.problems import EXCEPTION_HANDLERS, build_problem
from gateway.web.routing.routes import Routes, get_route_name
from gateway.web.workers.bus import Bus
from gateway.web.workers.log_levels import LogLevels

from .authorization import Handler, OperatorAuthorizer, format_operator, log_action
from .blocklist import Blocklist, BlocklistEntry
from .bodies import LogLevelsBody, RevocationBody, read_body
from .listing import BUS_TIMEOUT_S, ListCursor, StreamListing, format_time
from .reload_coordinator import ReloadCoordinator, ReloadRefused
from .stream_filter import StreamFilter

DEFAULT_LIMIT, MAX_LIMIT = 100, 10_000
DISCONNECT_REASON = "disconnected"
NO_STORE_HEADERS = {"Cache-Control": "no-store"}


class AdminApi:
    """The application of operators (`app`); what it does is done in all processes on a bus."""

    def __init__(
        self,
        routes: Routes,
        guards: Guards,
        metrics: Metrics,
        log_levels: LogLevels,
        reloader: Reloader,
        bus: Bus,
    ) -> None:
        self._metrics = metrics
        self._log_levels = log_levels
        self.reload_coordinator = ReloadCoordinator(reloader, bus)
        self._listing = StreamListing(routes, bus)
        self.blocklist = Blocklist(routes.stream_registry, bus)
        self._stream_routes = routes
        self._bus = bus
        bus.add_handler("admin-routes", self._count_streams_by_route)
        self._authorizer = OperatorAuthorizer(guards, routes.limits)
        self.app = Starlette(routes=self._build_routes(), exception_handlers=EXCEPTION_HANDLERS)
        self.app.router.redirect_slashes = False

    def _build_routes(self) -> list[Route]:
        return [
            self._build_route("/streams", GET=self._list_streams, DELETE=self._end_streams),
            self._build_route("/streams/{id}", GET=self._get_stream, DELETE=self._end_stream),
            self._build_route(
                "/revocations",
                GET=self._list_revocations,
                POST=self._create_revocation,
                DELETE=self._delete_revocation,
            ),
            self._build_route("/routes", GET=self._list_routes),
            self._build_route("/routes/{path:path}/pause", POST=self._pause_route),
            self._build_route("/routes/{path:path}/resume", POST=self._resume_route),
            self._build_route("/reload", POST=self._reload_settings),
            self._build_route("/levels", GET=self._list_levels, PUT=self._set_levels),
            self._build_route("/metrics", GET=self._metrics.scrape),
        ]

    def _build_route(self, path: str, **handlers: Handler) -> Route:
        """By method."""

        async def handle(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await handlers[method](request)

        return Route(path, self._authorizer.require_operator(handle), methods=list(handlers))

    async def _list_streams(self, request: Request) -> Response:
        asked = request.query_params
        wanted, limit = (
            parse_stream_filter(request, "limit", "after"),
            _parse_limit(asked.get("limit")),
        )
        after = ListCursor.parse(asked["after"]) if "after" in asked else ListCursor()
        listed = await self._listing.list_streams(wanted, after, limit)
        told = {"streams": listed.streams, "missing": listed.missing, "next": None}
        headers = dict(NO_STORE_HEADERS)
        if listed.next_cursor is not None:
            query = urlencode({**asked, "after": str(listed.next_cursor)})
            told["next"] = f"/streams?{query}"
            headers["Link"] = f'<{told["next"]}>; rel="next"'
        # 10,000 are 2 MB: 3 ms, and 21 by the standard library
        return Response(orjson.dumps(told), headers=headers, media_type="application/json")

    async def _get_stream(self, request: Request) -> Response:
        told = await self._listing.get_stream(request.path_params["id"])
        return JSONResponse(told, headers=NO_STORE_HEADERS)

    async def _end_streams(self, request: Request) -> Response:
        wanted = parse_stream_filter(request)
        if wanted == StreamFilter():
            what = "say which: ?route=, ?identity= (?guard=) or ?address="
            raise RequestError(400, "Bad request", what)
        ended, missing = await self._listing.end_streams(wanted, DISCONNECT_REASON)
        log_action(request, "disconnect", **wanted._asdict(), ended=ended)
        return JSONResponse({"ended": ended, "missing": missing}, headers=NO_STORE_HEADERS)

    async def _end_stream(self, request: Request) -> Response:
        id = request.path_params["id"]
        await self._listing.end_stream(id, DISCONNECT_REASON)
        log_action(request, "disconnect", id=id)
        return Response(status_code=204, headers=NO_STORE_HEADERS)

    # what is forbidden

    async def _list_revocations(self, request: Request) -> Response:
        held = [_format_entry(order) for order in self.blocklist.entries if order.identity]
        return JSONResponse({"revocations": held}, headers=NO_STORE_HEADERS)

    async def _create_revocation(self, request: Request) -> Response:
        said = await read_body(request, RevocationBody)
        self._check_guard_name(said.guard)
        order = BlocklistEntry(
            said.guard or "", said.identity, "", said.until, time.time(), format_operator(request)
        )
        done = await self.blocklist.add_entry(order)
        log_action(request, "revoke", **said.model_dump(), ended=done.ended)
        return JSONResponse(_format_entry(order) | asdict(done), headers=NO_STORE_HEADERS)

    async def _delete_revocation(self, request: Request) -> Response:
        wanted = parse_stream_filter(request)
        if wanted.identity is None or wanted.route or wanted.address:
            raise RequestError(
                400, "Bad request", "say which: ?identity=, and ?guard= if it had one"
            )
        done = await self.blocklist.remove_entry((wanted.guard or "", wanted.identity, ""))
        log_action(request, "allow", identity=wanted.identity, guard=wanted.guard)
        return JSONResponse({"missing": done.missing}, headers=NO_STORE_HEADERS)

    def _check_guard_name(self, guard: str | None) -> None:
        """One that is misspelt would revoke nobody. Raises RequestError 400."""
        guards = self._stream_routes.settings.guards
        if guard is not None and guard not in guards:
            near = suggest(guard, guards, "leave it out for any")
            raise RequestError(400, "Bad request", f"no guard is called {guard!r}; {near}")

    async def _list_routes(self, request: Request) -> Response:
        answers = await self._bus.request("admin-routes", timeout_s=BUS_TIMEOUT_S)
        streams: Counter[str] = Counter()
        for said in answers.by_worker.values():
            streams.update(said)
        told = []
        for route in self._stream_routes.settings.routes:
            paused = self.blocklist.find_pause(get_route_name(route))
            told.append(
                {
                    "route": get_route_name(route),
                    "paths": [when.path for when in route.when],
                    "capability": route.with_.capability,
                    "guarded": list(route.guarded),
                    "streams": streams[get_route_name(route)],
                    "paused": None if paused is None else _format_entry(paused),
                }
            )
        missing = sorted(answers.missing)
        return JSONResponse({"routes": told, "missing": missing}, headers=NO_STORE_HEADERS)

    def _count_streams_by_route(self, worker: int, data: Any) -> dict[str, int]:
        return Counter(
            get_route_name(stream.match.route) for stream in self._stream_routes.stream_registry
        )

    async def _pause_route(self, request: Request) -> Response:
        route = self._find_route_name(request)
        order = BlocklistEntry("", "", route, None, time.time(), format_operator(request))
        done = await self.blocklist.add_entry(order)
        log_action(request, "pause", route=route, ended=done.ended)
        return JSONResponse(_format_entry(order) | asdict(done), headers=NO_STORE_HEADERS)

    async def _resume_route(self, request: Request) -> Response:
        """Also one that a reload removed, or renamed."""
        path = f"/{request.path_params['path'].lstrip('/')}"
        route = (
            path if self.blocklist.find_pause(path) is not None else self._find_route_name(request)
        )
        done = await self.blocklist.remove_entry(("", "", route))
        log_action(request, "resume", route=route)
        return JSONResponse({"route": route, "missing": done.missing}, headers=NO_STORE_HEADERS)

    def _find_route_name(self, request: Request) -> str:
        """The name of the route with this path. Raises RequestError 404."""
        path = f"/{request.path_params['path'].lstrip('/')}"
        for route in self._stream_routes.settings.routes:
            if path in [when.path for when in route.when]:
                return get_route_name(route)
        paths = [when.path for route in self._stream_routes.settings.routes for when in route.when]
        near = suggest(path, paths, "see /routes")
        raise RequestError(404, "Unknown route", f"no route has the path {path!r}; {near}")

    # what is configured, and logged

    async def _reload_settings(self, request: Request) -> Response:
        try:
            told = await self.reload_coordinator()
        except ReloadRefused as exc:
            log_action(request, "reload", problems=exc.problems)
            refused = RequestError(422, "Configuration refused", "all stays as it was")
            response = build_problem(refused, request.url.path)
            body = {**json.loads(bytes(response.body)), "problems": exc.problems}
            return JSONResponse(body, 422, NO_STORE_HEADERS, "application/problem+json")
        log_action(request, "reload", routes=told["routes"], missing=told["missing"] or None)
        return JSONResponse(told, headers=NO_STORE_HEADERS)

    async def _list_levels(self, request: Request) -> Response:
        current = dict(self._log_levels.current_levels)
        return JSONResponse(
            {"level": current.pop("", None), "levels": current}, headers=NO_STORE_HEADERS
        )

    async def _set_levels(self, request: Request) -> Response:
        said = await read_body(request, LogLevelsBody)
        try:
            self._log_levels.set_levels(said.level, said.levels)
        except ValueError as exc:
            raise RequestError(400, "Bad request", str(exc)) from None
        log_action(request, "levels", **said.model_dump())
        return await self._list_levels(request)


def _format_entry(entry: BlocklistEntry) -> dict[str, Any]:
    """As JSON; times as RFC 3339 has them."""
    who = {"route": entry.route} if entry.route else {"identity": entry.identity}
    if entry.guard:
        who["guard"] = entry.guard
    until = {} if entry.route else {"until": entry.until and format_time(entry.until)}
    return {**who, **until, "since": format_time(entry.since), "by": entry.by}


def parse_stream_filter(request: Request, *other_names: str) -> StreamFilter:
    """Which streams a query is about. Raises RequestError: what is misspelt would be all of
    them."""
    asked = dict(request.query_params)
    unknown = asked.keys() - set(StreamFilter._fields) - set(other_names)
    if unknown:
        what = (
            f"?{min(unknown)}= is unknown; use {', '.join((*StreamFilter._fields, *other_names))}"
        )
        raise RequestError(400, "Bad request", what)
    return StreamFilter(**{name: asked[name] for name in StreamFilter._fields if name in asked})


def _parse_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LIMIT):
        raise RequestError(400, "Bad request", f"?limit= is 1 to {MAX_LIMIT}")
    return int(text)
