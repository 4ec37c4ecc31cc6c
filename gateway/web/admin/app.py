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

from gateway.config.source.expression import nearest
from gateway.errors import RequestError
from gateway.web.access.guards import Guards
from gateway.web.app.metrics import Metrics
from gateway.web.app.reload import Reload
from gateway.web.http.problems import HANDLERS, problem
from gateway.web.routing.routes import Routes, name_of
from gateway.web.workers.bus import Bus
from gateway.web.workers.log_levels import Levels

from .gate import Gate, Handler, name_of_who, note
from .listing import WITHIN, Listing, Place, moment
from .orders import Order, Orders
from .reloading import Reloading, Unfit
from .said import LevelsSaid, Revocation, read
from .wanted import Wanted

LIMIT, MOST = 100, 10_000
DISCONNECTED = "disconnected"
UNCACHED = {"Cache-Control": "no-store"}


class Admin:
    """The application of operators (`app`); what it does is done in all processes on a bus."""

    def __init__(
        self,
        routes: Routes,
        guards: Guards,
        metrics: Metrics,
        levels: Levels,
        reload: Reload,
        bus: Bus,
    ) -> None:
        self._metrics = metrics
        self._levels = levels
        self.reloading = Reloading(reload, bus)
        self._listing = Listing(routes, bus)
        self.orders = Orders(routes.openings, bus)
        self._streamed = routes
        self._bus = bus
        bus.on("admin-routes", self._streams_of_routes)
        self._gate = Gate(guards, routes.limits)
        self.app = Starlette(routes=self._routes(), exception_handlers=HANDLERS)
        self.app.router.redirect_slashes = False

    def _routes(self) -> list[Route]:
        return [
            self._route("/streams", GET=self._list, DELETE=self._end),
            self._route("/streams/{id}", GET=self._one, DELETE=self._end_one),
            self._route("/revocations", GET=self._revoked, POST=self._revoke, DELETE=self._allow),
            self._route("/routes", GET=self._list_routes),
            self._route("/routes/{path:path}/pause", POST=self._pause),
            self._route("/routes/{path:path}/resume", POST=self._resume),
            self._route("/reload", POST=self._reload),
            self._route("/levels", GET=self._list_levels, PUT=self._set_levels),
            self._route("/metrics", GET=self._metrics.scrape),
        ]

    def _route(self, path: str, **handlers: Handler) -> Route:
        """By method."""

        async def handle(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await handlers[method](request)

        return Route(path, self._gate.guarded(handle), methods=list(handlers))

    async def _list(self, request: Request) -> Response:
        asked = request.query_params
        wanted, limit = wanted_of(request, "limit", "after"), _limit(asked.get("limit"))
        after = Place.of(asked["after"]) if "after" in asked else Place()
        listed = await self._listing.list(wanted, after, limit)
        told = {"streams": listed.streams, "missing": listed.missing, "next": None}
        headers = dict(UNCACHED)
        if listed.next is not None:
            query = urlencode({**asked, "after": str(listed.next)})
            told["next"] = f"/streams?{query}"
            headers["Link"] = f'<{told["next"]}>; rel="next"'
        # 10,000 are 2 MB: 3 ms, and 21 by the standard library
        return Response(orjson.dumps(told), headers=headers, media_type="application/json")

    async def _one(self, request: Request) -> Response:
        told = await self._listing.one(request.path_params["id"])
        return JSONResponse(told, headers=UNCACHED)

    async def _end(self, request: Request) -> Response:
        wanted = wanted_of(request)
        if wanted == Wanted():
            what = "say which: ?route=, ?identity= (?guard=) or ?address="
            raise RequestError(400, "Bad request", what)
        ended, missing = await self._listing.end(wanted, DISCONNECTED)
        note(request, "disconnect", **wanted._asdict(), ended=ended)
        return JSONResponse({"ended": ended, "missing": missing}, headers=UNCACHED)

    async def _end_one(self, request: Request) -> Response:
        id = request.path_params["id"]
        await self._listing.end_one(id, DISCONNECTED)
        note(request, "disconnect", id=id)
        return Response(status_code=204, headers=UNCACHED)

    # what is forbidden

    async def _revoked(self, request: Request) -> Response:
        held = [_told(order) for order in self.orders.held if order.identity]
        return JSONResponse({"revocations": held}, headers=UNCACHED)

    async def _revoke(self, request: Request) -> Response:
        said = await read(request, Revocation)
        self._must_know(said.guard)
        order = Order(
            said.guard or "", said.identity, "", said.until, time.time(), name_of_who(request)
        )
        done = await self.orders.give(order)
        note(request, "revoke", **said.model_dump(), ended=done.ended)
        return JSONResponse(_told(order) | asdict(done), headers=UNCACHED)

    async def _allow(self, request: Request) -> Response:
        wanted = wanted_of(request)
        if wanted.identity is None or wanted.route or wanted.address:
            raise RequestError(
                400, "Bad request", "say which: ?identity=, and ?guard= if it had one"
            )
        done = await self.orders.lift((wanted.guard or "", wanted.identity, ""))
        note(request, "allow", identity=wanted.identity, guard=wanted.guard)
        return JSONResponse({"missing": done.missing}, headers=UNCACHED)

    def _must_know(self, guard: str | None) -> None:
        """One that is misspelt would revoke nobody. Raises RequestError 400."""
        guards = self._streamed.settings.guards
        if guard is not None and guard not in guards:
            near = nearest(guard, guards, "leave it out for any")
            raise RequestError(400, "Bad request", f"no guard is called {guard!r}; {near}")

    async def _list_routes(self, request: Request) -> Response:
        answers = await self._bus.ask("admin-routes", within=WITHIN)
        streams: Counter[str] = Counter()
        for said in answers.said.values():
            streams.update(said)
        told = []
        for route in self._streamed.settings.routes:
            paused = self.orders.paused(name_of(route))
            told.append(
                {
                    "route": name_of(route),
                    "paths": [when.path for when in route.when],
                    "capability": route.with_.capability,
                    "guarded": list(route.guarded),
                    "streams": streams[name_of(route)],
                    "paused": None if paused is None else _told(paused),
                }
            )
        missing = sorted(answers.missing)
        return JSONResponse({"routes": told, "missing": missing}, headers=UNCACHED)

    def _streams_of_routes(self, worker: int, data: Any) -> dict[str, int]:
        return Counter(name_of(stream.match.route) for stream in self._streamed.openings)

    async def _pause(self, request: Request) -> Response:
        route = self._route_of(request)
        order = Order("", "", route, None, time.time(), name_of_who(request))
        done = await self.orders.give(order)
        note(request, "pause", route=route, ended=done.ended)
        return JSONResponse(_told(order) | asdict(done), headers=UNCACHED)

    async def _resume(self, request: Request) -> Response:
        """Also one that a reload removed, or renamed."""
        path = f"/{request.path_params['path'].lstrip('/')}"
        route = path if self.orders.paused(path) is not None else self._route_of(request)
        done = await self.orders.lift(("", "", route))
        note(request, "resume", route=route)
        return JSONResponse({"route": route, "missing": done.missing}, headers=UNCACHED)

    def _route_of(self, request: Request) -> str:
        """The name of the route with this path. Raises RequestError 404."""
        path = f"/{request.path_params['path'].lstrip('/')}"
        for route in self._streamed.settings.routes:
            if path in [when.path for when in route.when]:
                return name_of(route)
        paths = [when.path for route in self._streamed.settings.routes for when in route.when]
        near = nearest(path, paths, "see /routes")
        raise RequestError(404, "Unknown route", f"no route has the path {path!r}; {near}")

    # what is configured, and logged

    async def _reload(self, request: Request) -> Response:
        try:
            told = await self.reloading()
        except Unfit as exc:
            note(request, "reload", problems=exc.problems)
            refused = RequestError(422, "Configuration refused", "all stays as it was")
            response = problem(refused, request.url.path)
            body = {**json.loads(bytes(response.body)), "problems": exc.problems}
            return JSONResponse(body, 422, UNCACHED, "application/problem+json")
        note(request, "reload", routes=told["routes"], missing=told["missing"] or None)
        return JSONResponse(told, headers=UNCACHED)

    async def _list_levels(self, request: Request) -> Response:
        current = dict(self._levels.current)
        return JSONResponse({"level": current.pop("", None), "levels": current}, headers=UNCACHED)

    async def _set_levels(self, request: Request) -> Response:
        said = await read(request, LevelsSaid)
        try:
            self._levels.set(said.level, said.levels)
        except ValueError as exc:
            raise RequestError(400, "Bad request", str(exc)) from None
        note(request, "levels", **said.model_dump())
        return await self._list_levels(request)


def _told(order: Order) -> dict[str, Any]:
    """As JSON; times as RFC 3339 has them."""
    who = {"route": order.route} if order.route else {"identity": order.identity}
    if order.guard:
        who["guard"] = order.guard
    until = {} if order.route else {"until": order.until and moment(order.until)}
    return {**who, **until, "since": moment(order.since), "by": order.by}


def wanted_of(request: Request, *others: str) -> Wanted:
    """Which streams a query is about. Raises RequestError: what is misspelt would be all of
    them."""
    asked = dict(request.query_params)
    unknown = asked.keys() - set(Wanted._fields) - set(others)
    if unknown:
        what = f"?{min(unknown)}= is unknown; use {', '.join((*Wanted._fields, *others))}"
        raise RequestError(400, "Bad request", what)
    return Wanted(**{name: asked[name] for name in Wanted._fields if name in asked})


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST):
        raise RequestError(400, "Bad request", f"?limit= is 1 to {MOST}")
    return int(text)
