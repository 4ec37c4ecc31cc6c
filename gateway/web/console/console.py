"""Serve the console: a page, the events that feed it, and what the admin API does not have.

The files of the page are served to everyone who reaches the port, since a browser sends no token
when it opens a page. They hold no data: whatever the page shows, it asks for with the operator's
token, and the `OperatorAuthorizer` of the admin API decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from gateway.config import Settings
from gateway.errors import RequestError
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry.process import LoopLag
from gateway.version import __version__
from gateway.web.access import Granted
from gateway.web.admin.app import AdminApi, Handler
from gateway.web.http.document import StaticDocument
from gateway.web.http.security_headers import PAGE_HEADERS
from gateway.web.routing.routes import Routes
from gateway.web.workers.bus import Bus

from .configuration import build_report, fetch_file_settings
from .feed import Feed
from .groups import GroupEndpoints, KafkaLookup
from .jobs import JobEndpoints
from .sidecar_calls import PassedResponse, build_routes, build_scope, describe_sidecar
from .worker_report import WorkerReport

PAGE_DIRECTORY = Path(__file__).parent / "page"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
NO_STORE_HEADERS = {"Cache-Control": "no-store"}
MAX_FEED_S = 300.0  # seconds until the page connects again, and its operator is authorized again
FEED_HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would wait for a buffer to fill
}


class Console:
    """The console of one process, whose `routes` are added to the admin application."""

    def __init__(
        self,
        app: ASGIApp,
        hubs: Hubs,
        routes: Routes,
        admin: AdminApi,
        loop_lag: LoopLag,
        bus: Bus,
    ) -> None:
        self._app = app
        self._stream_routes = routes
        self._admin = admin
        self._bus = bus
        self._report = WorkerReport(hubs, loop_lag, bus)
        self._feed = Feed(bus)
        hubs.drain_callbacks.add(self._feed.close)
        lookup = KafkaLookup(hubs)
        groups, jobs = GroupEndpoints(lookup), JobEndpoints(lambda: self._settings, lookup)
        self._documents = _load_documents()
        self.routes: list[BaseRoute] = [
            Route("/", self._redirect),
            Route("/console", self._serve_page),
            self._build_route("/console/events", self._stream_events),
            self._build_route("/console/about", self._describe),
            self._build_route("/console/config", self._compare_configuration),
            self._build_route("/console/try", self._try_stream),
            self._build_route("/console/groups", groups.list_groups),
            self._build_route("/console/group", groups.describe_group),
            self._build_route("/console/jobs", jobs.list_jobs),
            *build_routes(app, self._settings, admin.authorizer),
            # Last: the name of a file is whatever the others are not.
            Route("/console/{name}", self._serve_file),
        ]

    async def run(self) -> None:
        await self._report.run()

    @property
    def _settings(self) -> Settings:
        return self._stream_routes.settings

    def _build_route(self, path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(path, self._admin.authorizer.require_operator(handler), methods=[method])

    async def _redirect(self, request: Request) -> Response:
        return RedirectResponse("console", 307)

    async def _serve_page(self, request: Request) -> Response:
        return self._documents["index.html"].respond(request)

    async def _serve_file(self, request: Request) -> Response:
        document = self._documents.get(request.path_params["name"])
        return Response(status_code=404) if document is None else document.respond(request)

    async def _describe(self, request: Request) -> Response:
        granted: Granted = request.state.operator
        sidecar = describe_sidecar(self._settings)
        about = {
            "name": self._settings.name,
            "version": __version__,
            "operator": granted.identities,
            "listen": {
                "host": self._settings.listen.host,
                "port": self._settings.listen.port,
                "tls": self._settings.listen.tls is not None,
            },
            # Sections that are shown only if there is something to show.
            "sections": {
                "jobs": self._settings.pipelines is not None,
                "dead-letters": sidecar["deadLetters"] or sidecar["replays"],
            },
            "sidecar": sidecar,
            "routes": [when.path for route in self._settings.routes for when in route.when],
        }
        return Response(
            orjson.dumps(about), headers=NO_STORE_HEADERS, media_type="application/json"
        )

    async def _stream_events(self, request: Request) -> Response:
        """Answer the events of the feed, for as long as the operator's token is valid."""
        granted: Granted = request.state.operator
        lifetime_s = MAX_FEED_S
        if granted.expires is not None:
            lifetime_s = min(lifetime_s, max(0.0, granted.expires - time.time()))
        return StreamingResponse(
            self._feed.watch(lifetime_s), headers=FEED_HEADERS, media_type="text/event-stream"
        )

    async def _compare_configuration(self, request: Request) -> Response:
        running = self._settings
        file = await fetch_file_settings(self._admin.reload_coordinator, running, self._bus)
        return _build_json(build_report(running, file))

    async def _try_stream(self, request: Request) -> PassedResponse:
        """Answer as a client would be, with the guards of the route."""
        return open_stream(self._app, request, self._stream_routes)


PASSED_HEADERS = (b"accept", b"host", b"last-event-id", b"user-agent")


def open_stream(app: ASGIApp, request: Request, routes: Routes) -> PassedResponse:
    """Return the response of the stream of `url`, as a client would get it.

    The same application answers, with the same guards.
    """
    url = request.query_params.get("url", "")
    parts = urlsplit(url)
    if not parts.path.startswith("/") or parts.scheme or parts.netloc or not url.isascii():
        detail = "?url= is the path of a stream with its query, such as /events/orders?from=-5m"
        raise RequestError(400, "Bad request", detail)
    routes.match(parts.path)
    return PassedResponse(app, build_scope(request, parts.path, parts.query, PASSED_HEADERS))


def _build_json(content: Any) -> Response:
    return Response(
        orjson.dumps(content, default=list),
        headers=NO_STORE_HEADERS,
        media_type="application/json",
    )


def _load_documents() -> Mapping[str, StaticDocument]:
    return {
        file.name: StaticDocument(
            file.read_bytes(),
            MEDIA_TYPES[file.suffix],
            PAGE_HEADERS if file.suffix == ".html" else None,
        )
        for file in sorted(PAGE_DIRECTORY.iterdir())
        if file.suffix in MEDIA_TYPES
    }
