"""Answer the requests of operators, each for all workers, in JSON.

Operators are authorized by the guards of `admin`, or, without guards, by being on this machine.
Pages of other sites are refused, also on this machine: their requests reach the port. With a host
name that resolves to this machine, their scripts could even read the responses. The page of this
port itself, the console, is admitted by its origin and by a header that a page of another site
cannot send without a preflight request, which nothing here answers.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlencode

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.config.types.address import is_loopback
from gateway.config.types.substitution import safe_repr, suggest
from gateway.core.client.terms import EndReason
from gateway.core.times import parse_time
from gateway.errors import NotGranted, RequestError
from gateway.telemetry import logs
from gateway.web.access import Granted
from gateway.web.access.admission import Guards
from gateway.web.http.browsers import is_foreign_request
from gateway.web.http.limits import Limits, get_client_address
from gateway.web.http.problems import EXCEPTION_HANDLERS, build_problem
from gateway.web.routing.routes import Routes
from gateway.web.workers.bus import Bus
from gateway.wire.host import get_requested_host

from .blocklist import Blocklist, BlocklistEntry
from .configuration import ReloadCoordinator, ReloadRefused
from .health import build_readiness
from .listing import BUS_TIMEOUT_S, ListCursor, StreamFilter, StreamListing, format_time
from .metrics import Metrics
from .reload import Reloader

log = logging.getLogger(__name__)

BodyT = TypeVar("BodyT", bound=BaseModel)


def _parse_time(value: Any) -> Any:
    return parse_time(value) / 1000 if isinstance(value, str) else value


class RequestBody(BaseModel):
    """The base of all bodies: unknown members and other types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RevocationBody(RequestBody):
    """The body that revokes access until a time in seconds since 1970, or for ever."""

    identity: Annotated[str, Field(min_length=1)]
    guard: Annotated[str, Field(min_length=1)] | None = None
    until: Annotated[float, BeforeValidator(_parse_time), Field(gt=0, lt=1e11)] | None = None


class LogLevelsBody(RequestBody):
    """The body that changes log levels; `level` is for loggers that `levels` does not name."""

    level: str = "info"
    levels: dict[str, str] = {}


async def read_body(request: Request, body_type: type[BodyT]) -> BodyT:
    """Parse the body of a request; a 400 names every problem of it."""
    try:
        return body_type.model_validate_json(await request.body())
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
        locations = [".".join(map(str, error["loc"])) or "the body" for error in errors]
        problems = [
            f"{location}: {error['msg']}" for location, error in zip(locations, errors, strict=True)
        ]
        raise RequestError(400, "Bad request", "; ".join(problems)) from None


Handler: TypeAlias = Callable[[Request], Awaitable[ASGIApp]]
"""Answers a request with a response of Starlette, or with another application that answers it."""

PAGE_REFUSED_MESSAGE = "pages of other sites may not use this API; use /console, curl, or a program"
HEADER_REQUIRED_MESSAGE = "pages must send the header Gateway-Console; /console does"
CONSOLE_HEADER = "gateway-console"
"""The header of every request of the console's scripts. Forms and pages of other sites cannot send
it (Fetch 2.2.2: it is no CORS-safelisted request-header)."""
CONSOLE_CHALLENGE = 'Bearer realm="gateway"'
RATE_LIMITED_MESSAGE = "your address asks more often than listen.limits.rate says; come back later"
HOST_REFUSED_MESSAGE = (
    "use an address of this machine, such as http://127.0.0.1; or add admin.guarded"
)


class OperatorAuthorizer:
    """Decides who may use the admin API.

    If there are guards, `listen.limits.rate` applies to operators, too. They are counted apart from
    clients, so that a flood of clients keeps no operator out.
    """

    def __init__(self, guards: Guards, limits: Limits) -> None:
        self._guards = guards
        self._limits = limits

    def require_operator(self, handler: Handler) -> Handler:
        async def handle_authorized(request: Request) -> ASGIApp:
            request.state.operator = await self._authorize(request)
            return await handler(request)

        return handle_authorized

    async def _authorize(self, request: Request) -> Granted:
        """Return what is known of the operator, or raise a `RequestError`: 401, 403, 429 or 503."""
        _refuse_foreign_page(request)
        address = get_client_address(request.scope)
        if self._guards.has_operator_guards and address:
            wait = await self._limits.count_attempt(f"operator {address}")
            if wait is not None:
                raise RequestError(429, "Busy", RATE_LIMITED_MESSAGE, retry_after=wait)
        try:
            granted = await self._guards.admit_operator(request)
        except NotGranted as exc:
            if CONSOLE_HEADER in request.headers:
                # For `Basic`, the browser would ask in a window of its own, before the page knows.
                exc.challenge = CONSOLE_CHALLENGE
            raise
        # Without guards, a request for any other host name may come from a page by DNS rebinding.
        if not granted and not is_loopback(get_requested_host(request.scope)):
            raise RequestError(403, "Forbidden", HOST_REFUSED_MESSAGE)
        return granted


def _refuse_foreign_page(request: Request) -> None:
    """Refuse requests of pages, except those of the console.

    Browsers send Origin with every request except plain GETs to the same site and GETs whose
    responses a page of another site cannot read. Of the latter, most say so by Sec-Fetch-Site.
    """
    headers = request.headers
    origin = headers.get("origin")
    sites = set(headers.getlist("sec-fetch-site"))
    is_foreign = not sites <= {"same-origin", "none"} or (
        origin is not None and is_foreign_request(origin, request.scope)
    )
    if is_foreign:
        raise RequestError(403, "Forbidden", PAGE_REFUSED_MESSAGE)
    if origin is not None and CONSOLE_HEADER not in headers:
        raise RequestError(403, "Forbidden", HEADER_REQUIRED_MESSAGE)


def log_action(request: Request, action: str, **details: Any) -> None:
    text = " ".join(f"{key}={value!r}" for key, value in details.items() if value is not None)
    address = request.client.host if request.client else ""
    log.info("admin: %s %s by=%s address=%s", action, text, format_operator(request), address)


def format_operator(request: Request) -> str:
    operator: Granted = request.state.operator
    return " ".join(f"{guard}:{name}" for guard, name in operator.identities.items()) or "anyone"


DEFAULT_LIMIT, MAX_LIMIT = 100, 10_000  # streams of one page of the list
NO_STORE_HEADERS = {"Cache-Control": "no-store"}


class AdminApi:
    """The admin API, whose actions affect all processes on a bus; one per process."""

    def __init__(
        self, routes: Routes, guards: Guards, metrics: Metrics, reloader: Reloader, bus: Bus
    ) -> None:
        self._metrics = metrics
        self._guards = guards
        self.reload_coordinator = ReloadCoordinator(reloader, bus)
        self._listing = StreamListing(routes, bus)
        self.blocklist = Blocklist(routes.stream_registry, bus)
        self._stream_routes = routes
        self._bus = bus
        bus.add_handler("admin-routes", self._count_streams_by_route)
        bus.add_handler("log-levels", self._handle_levels)
        self.authorizer = OperatorAuthorizer(guards, routes.limits)
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
            self._build_route("/health", GET=self._report_health),
            self._build_route("/metrics", GET=self._metrics.scrape),
        ]

    def _build_route(self, path: str, **handlers: Handler) -> Route:
        async def handle(request: Request) -> ASGIApp:
            # Starlette adds HEAD to each route with GET, and sends no body for it.
            method = "GET" if request.method == "HEAD" else request.method
            return await handlers[method](request)

        return Route(path, self.authorizer.require_operator(handle), methods=list(handlers))

    async def _list_streams(self, request: Request) -> Response:
        params = request.query_params
        stream_filter, limit = (
            self._parse_stream_filter(request, "limit", "after"),
            _parse_limit(params.get("limit")),
        )
        cursor = ListCursor.parse(params["after"]) if "after" in params else ListCursor()
        page = await self._listing.list_streams(stream_filter, cursor, limit)
        body = {"streams": page.streams, "missing": page.missing, "next": None}
        headers = dict(NO_STORE_HEADERS)
        if page.next_cursor is not None:
            query = urlencode({**params, "after": str(page.next_cursor)})
            body["next"] = f"/streams?{query}"
            headers["Link"] = f'<{body["next"]}>; rel="next"'
        # 10,000 streams are 2 MB: orjson encodes them in 3 ms, the standard library in 21 ms.
        return Response(orjson.dumps(body), headers=headers, media_type="application/json")

    async def _get_stream(self, request: Request) -> Response:
        stream = await self._listing.get_stream(request.path_params["id"])
        return JSONResponse(stream, headers=NO_STORE_HEADERS)

    async def _end_streams(self, request: Request) -> Response:
        stream_filter = self._parse_stream_filter(request)
        if stream_filter == StreamFilter():
            # An empty filter would end all streams by a mistake.
            detail = "say which: ?route=, ?identity= (?guard=) or ?address="
            raise RequestError(400, "Bad request", detail)
        ended, missing = await self._listing.end_streams(stream_filter, EndReason.DISCONNECTED)
        log_action(request, "disconnect", **stream_filter._asdict(), ended=ended)
        return JSONResponse({"ended": ended, "missing": missing}, headers=NO_STORE_HEADERS)

    async def _end_stream(self, request: Request) -> Response:
        id = request.path_params["id"]
        await self._listing.end_stream(id, EndReason.DISCONNECTED)
        log_action(request, "disconnect", id=id)
        return Response(status_code=204, headers=NO_STORE_HEADERS)

    # the blocklist

    async def _list_revocations(self, request: Request) -> Response:
        entries = [_format_entry(entry) for entry in self.blocklist.entries if entry.identity]
        return JSONResponse({"revocations": entries}, headers=NO_STORE_HEADERS)

    async def _create_revocation(self, request: Request) -> Response:
        body = await read_body(request, RevocationBody)
        self._check_guard_name(body.guard)
        entry = BlocklistEntry(
            body.guard or "", body.identity, "", body.until, time.time(), format_operator(request)
        )
        result = await self.blocklist.add_entry(entry)
        log_action(request, "revoke", **body.model_dump(), ended=result.ended)
        return JSONResponse(_format_entry(entry) | asdict(result), headers=NO_STORE_HEADERS)

    async def _delete_revocation(self, request: Request) -> Response:
        stream_filter = parse_stream_filter(request)
        if stream_filter.identity is None or stream_filter.route or stream_filter.address:
            raise RequestError(
                400, "Bad request", "say which: ?identity=, and ?guard= if it had one"
            )
        result = await self.blocklist.remove_entry(
            (stream_filter.guard or "", stream_filter.identity, "")
        )
        log_action(request, "allow", identity=stream_filter.identity, guard=stream_filter.guard)
        return JSONResponse({"missing": result.missing}, headers=NO_STORE_HEADERS)

    def _check_guard_name(self, guard: str | None) -> None:
        """Refuse an unknown guard with 400: a misspelt one would revoke nobody."""
        guards = self._stream_routes.settings.guards
        if guard is not None and guard not in guards:
            hint = suggest(guard, guards, "leave it out for any")
            raise RequestError(400, "Bad request", f"no guard is called {guard!r}; {hint}")

    async def _list_routes(self, request: Request) -> Response:
        responses = await self._bus.request("admin-routes", timeout_s=BUS_TIMEOUT_S)
        streams: Counter[str] = Counter()
        for worker_streams in responses.by_worker.values():
            streams.update(worker_streams)
        routes = []
        for route in self._stream_routes.settings.routes:
            pause = self.blocklist.find_pause(route.name)
            routes.append(
                {
                    "route": route.name,
                    "paths": [when.path for when in route.when],
                    "capability": route.with_.capability,
                    "topics": [str(template) for template in route.with_.topic_templates],
                    "filtered": bool(route.with_.filters),
                    "guarded": list(route.guarded),
                    "streams": streams[route.name],
                    "paused": None if pause is None else _format_entry(pause),
                }
            )
        missing = sorted(responses.missing)
        return JSONResponse({"routes": routes, "missing": missing}, headers=NO_STORE_HEADERS)

    def _count_streams_by_route(self, worker: int, data: Any) -> dict[str, int]:
        return Counter(stream.match.route.name for stream in self._stream_routes.stream_registry)

    async def _pause_route(self, request: Request) -> Response:
        route = self._find_route_name(request.path_params["path"])
        entry = BlocklistEntry("", "", route, None, time.time(), format_operator(request))
        result = await self.blocklist.add_entry(entry)
        log_action(request, "pause", route=route, ended=result.ended)
        return JSONResponse(_format_entry(entry) | asdict(result), headers=NO_STORE_HEADERS)

    async def _resume_route(self, request: Request) -> Response:
        """Resume a route; also one that a reload removed or renamed while it was paused."""
        path = request.path_params["path"]
        names = (path, f"/{path.lstrip('/')}")
        paused = [name for name in names if self.blocklist.find_pause(name) is not None]
        route = paused[0] if paused else self._find_route_name(path)
        result = await self.blocklist.remove_entry(("", "", route))
        log_action(request, "resume", route=route)
        return JSONResponse({"route": route, "missing": result.missing}, headers=NO_STORE_HEADERS)

    def _parse_stream_filter(self, request: Request, *other_names: str) -> StreamFilter:
        """Return the filter of a query, with the name of the route for its path."""
        stream_filter = parse_stream_filter(request, *other_names)
        if stream_filter.route is None:
            return stream_filter
        return stream_filter._replace(route=self._find_route_name(stream_filter.route))

    def _find_route_name(self, path: str) -> str:
        """Return the first route with this name or path, whose first slash may be missing."""
        if any(route.name == path for route in self._stream_routes.settings.routes):
            return path
        path = f"/{path.lstrip('/')}"
        for route in self._stream_routes.settings.routes:
            if path in [when.path for when in route.when]:
                return route.name
        paths = [when.path for route in self._stream_routes.settings.routes for when in route.when]
        hint = suggest(path, paths, "see /routes")
        raise RequestError(404, "Unknown route", f"no route has the path {path!r}; {hint}")

    async def _report_health(self, request: Request) -> Response:
        """Answer what /health/ready of the clients' port does, of the worker that is asked."""
        body = build_readiness(self._stream_routes.hubs, self._guards, self._stream_routes.limits)
        return JSONResponse(body, headers=NO_STORE_HEADERS)

    # configuration and log levels

    async def _reload_settings(self, request: Request) -> Response:
        """Reload the configuration, and answer what changed; with ?dryRun=true, what would."""
        is_dry_run = parse_dry_run(request)
        try:
            outcome = await self.reload_coordinator(is_dry_run=is_dry_run)
        except ReloadRefused as exc:
            if not is_dry_run:
                log_action(request, "reload", problems=exc.problems)
            error = RequestError(422, "Configuration refused", "all stays as it was")
            response = build_problem(error, request.url.path)
            body = {**json.loads(bytes(response.body)), "problems": exc.problems}
            return JSONResponse(body, 422, NO_STORE_HEADERS, "application/problem+json")
        if not is_dry_run:
            missing = outcome["missing"] or None
            log_action(request, "reload", routes=outcome["routes"], missing=missing)
        return JSONResponse(outcome, headers=NO_STORE_HEADERS)

    def _handle_levels(self, worker: int, data: Any) -> None:
        level, levels = data
        logs.set_levels(level, levels)

    async def _list_levels(self, request: Request) -> Response:
        current = dict(logs.get_levels())
        return JSONResponse(
            {"level": current.pop("", None), "levels": current}, headers=NO_STORE_HEADERS
        )

    async def _set_levels(self, request: Request) -> Response:
        body = await read_body(request, LogLevelsBody)
        try:
            set_log_levels(body.level, body.levels)
        except ValueError as exc:
            raise RequestError(400, "Bad request", str(exc)) from None
        self._bus.broadcast("log-levels", [body.level, body.levels])
        log_action(request, "levels", **body.model_dump())
        return await self._list_levels(request)


def set_log_levels(level: str, levels: Mapping[str, str]) -> None:
    """Set the levels of this process; a wrong one is a `ValueError` and changes nothing."""
    for name in levels:
        if not logs.is_logger(name):
            # Log lines show the names of loggers, which have this prefix.
            near = suggest(name.removeprefix("gateway."), (*logs.COMPONENTS, *logs.LIBRARIES))
            raise ValueError(f"no component or library logs as {safe_repr(name)}; {near}")
    logs.set_levels(level, levels)


def _format_entry(entry: BlocklistEntry) -> dict[str, Any]:
    target = {"route": entry.route} if entry.route else {"identity": entry.identity}
    if entry.guard:
        target["guard"] = entry.guard
    until = {} if entry.route else {"until": entry.until and format_time(entry.until)}
    return {**target, **until, "since": format_time(entry.since), "by": entry.by}


def parse_stream_filter(request: Request, *other_names: str) -> StreamFilter:
    """Return the filter of a query; a misspelt name is a 400, as it would mean all streams."""
    params = dict(request.query_params)
    unknown = params.keys() - set(StreamFilter._fields) - set(other_names)
    if unknown:
        known = ", ".join((*StreamFilter._fields, *other_names))
        raise RequestError(400, "Bad request", f"?{min(unknown)}= is unknown; use {known}")
    return StreamFilter(**{name: params[name] for name in StreamFilter._fields if name in params})


def parse_dry_run(request: Request) -> bool:
    """Return `?dryRun=`; anything else is a 400, as ignoring it would reload."""
    params = dict(request.query_params)
    value = params.pop("dryRun", "false")
    if params or value not in ("true", "false"):
        wrong = f"?{min(params)}= is unknown" if params else f"?dryRun={value} is wrong"
        raise RequestError(400, "Bad request", f"{wrong}; use ?dryRun=true, or nothing")
    return value == "true"


def _parse_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (re.fullmatch("[1-9][0-9]{0,8}", text) and int(text) <= MAX_LIMIT):
        raise RequestError(400, "Bad request", f"?limit= is 1 to {MAX_LIMIT}")
    return int(text)
