"""The requests of operators, each answered for all workers, in JSON."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import RequestError
from ..access.guards import Guards
from ..bus import Bus
from ..metrics import Metrics
from ..problems import HANDLERS
from ..routes import Routes
from .gate import Gate, Handler, note
from .listing import Listing, Place, Wanted

LIMIT, MOST = 100, 10_000
DISCONNECTED = "disconnected"
UNCACHED = {"Cache-Control": "no-store"}


class Admin:
    """The application of operators (`app`); what it does is done in all processes on a bus."""

    def __init__(self, routes: Routes, guards: Guards, metrics: Metrics, bus: Bus) -> None:
        self._metrics = metrics
        self._listing = Listing(routes, bus)
        self._gate = Gate(guards)
        self.app = Starlette(routes=self._routes(), exception_handlers=HANDLERS)
        self.app.router.redirect_slashes = False

    def _routes(self) -> list[Route]:
        return [
            self._route("/streams", GET=self._list, DELETE=self._end),
            self._route("/streams/{id}", GET=self._one, DELETE=self._end_one),
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
        return JSONResponse(told, headers=headers)

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
