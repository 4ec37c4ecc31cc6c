"""The application: streams, health, pages, and the errors of all of them as problems.

It runs alone or mounted. Servers tell only the outermost application of their start and end
(Starlette's lifespans), so whoever mounts it runs `lifespan` within its own:

    kafka = create_app(load("gateway.yaml"))
    app = FastAPI(lifespan=kafka.lifespan)
    app.mount("/kafka", kafka)

It could start with its first request instead; but nobody would tell it when to close, and
connections to Kafka would outlive the application.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.api.gateway import Gateway
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.web import discovery
from gateway.web.access import Access, allow_anyone
from gateway.web.access.guards import Guards
from gateway.web.admin.app import AdminApi
from gateway.web.exchange.key_locks import KeyLocks
from gateway.web.http.problems import EXCEPTION_HANDLERS
from gateway.web.http.security_headers import NOSNIFF_HEADERS, PAGE_HEADERS
from gateway.web.routing.limits import Limits
from gateway.web.routing.routes import Routes
from gateway.web.streams.middleware import PagePaths, StreamMiddleware
from gateway.web.streams.renewal import TokenRenewer
from gateway.web.workers.bus import Bus
from gateway.web.workers.log_levels import LogLevels

from . import assets, health
from .co_hosted_app import CoHostedApp, CoHostedAppFactory
from .metrics import Metrics
from .reload import Reloader
from .shutdown import drain_on_server_exit
from .tracing import TracingMiddleware

Startup = Callable[[], Coroutine[Any, Any, None]]


class Application(Starlette):
    """The gateway as an ASGI application; made by `create_app`.

    gateway: what it streams from; `gateway.subscribe` shares its reads.
    reload:  `await app.reload(settings)` takes over a configuration that was written anew.
    admin:   what operators ask, for a port of its own.
    """

    def __init__(self, gateway: Gateway, startup: Sequence[Startup] = (), **options: Any) -> None:
        super().__init__(**options, lifespan=self.lifespan)
        self.gateway = gateway
        self.state.hubs = gateway.hubs
        self.key_locks: KeyLocks | None = None
        self.co_hosted_app: CoHostedApp | None = None
        self.reload: Reloader
        self.admin: AdminApi
        self._startup: list[Startup] = [*startup, partial(drain_on_server_exit, gateway.hubs)]

    def add_startup(self, start: Startup) -> None:
        """Run this, too, from the start until the close."""
        self._startup.append(start)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Connect to Kafka, and close again. For the lifespan of an application that mounts
        this one: as it is, or by `async with` in its own. `app` is not looked at.

        Raises GatewayError if it runs already.
        """
        await self.gateway.start()
        for hub in self.gateway.hubs:
            hub.publisher.key_locks = self.key_locks
        tasks = [asyncio.create_task(start()) for start in self._startup]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.gateway.close()


def create_app(
    settings: Settings,
    *,
    access: Access = allow_anyone,
    pages: Mapping[str, Path] | None = None,
    startup: Sequence[Startup] = (),
    bus: Bus | None = None,
    beside: CoHostedAppFactory | None = None,
) -> Application:
    """The gateway as an ASGI application; its lifespan connects to Kafka and closes again.

    access:  asked before every stream, as well as the guards of its route; the application's own,
             where it mounts the gateway.
    pages:   files and folders to serve, by path; a file at `/` takes the place of the list of
             streams. A page that is given as a file loads scripts and styles from here alone, and
             none that stand within it.
    startup: run beside it until it closes.
    bus:     to the other processes of this gateway, where it is one of several.
    beside:  makes another application that is served on the same port.
    Raises ConfigError for settings that this version cannot serve.
    """
    if settings.sidecar is not None and beside is None:
        what = "sidecar: is not part of a mounted gateway; use `gateway run`, or pass `beside`"
        raise ConfigError([what])
    gateway, bus = Gateway(settings), bus or Bus()
    files = dict(pages or {})
    home = files.pop("/", None)
    limits = Limits(settings.listen.limits, bus)
    metrics = Metrics(gateway.hubs, settings, limits, bus)

    def build_routes(settings: Settings) -> list[BaseRoute]:
        scraped = settings.telemetry.metrics.prometheus
        return [
            Route("/health/live", health.report_liveness),
            Route("/health/ready", health.report_readiness),
            *assets.build_routes(),
            *discovery.build_routes(
                settings, home_endpoint=None if home is None else _build_page_endpoint(home)
            ),
            *(_build_page_route(path, file) for path, file in files.items()),
            *([] if scraped is None else [Route(scraped, metrics.scrape)]),
        ]

    routes = build_routes(settings)
    shown = PagePaths(routes)
    guards = Guards(settings, access)
    streams = Routes(gateway.hubs, settings, guards, limits)
    renewals = TokenRenewer(streams, bus)
    traced = (
        [Middleware(TracingMiddleware, gateway=gateway)] if settings.telemetry.traces.otlp else []
    )
    neighbour = None if beside is None else beside(gateway, guards)
    middleware = [
        *traced,
        Middleware(StreamMiddleware, routes=streams, renewer=renewals, pages=shown, co_hosted_app=neighbour)
    ]  # fmt: skip
    app = Application(
        gateway, [
            bus.run, metrics.run, guards.run, streams.stream_registry.run, *startup,
            *([] if neighbour is None else [neighbour.run]),
        ],
        routes=routes, middleware=middleware,
        exception_handlers=EXCEPTION_HANDLERS,
    )  # fmt: skip

    def update_pages(settings: Settings) -> None:
        app.router.routes = build_routes(settings)
        shown.set_routes(app.router.routes)

    app.reload = Reloader(app, streams, guards, update_pages)
    app.state.bus, app.state.limits, app.state.levels = bus, limits, LogLevels(bus)
    app.state.metrics = metrics
    app.admin = AdminApi(streams, guards, metrics, app.state.levels, app.reload, bus)
    app.co_hosted_app = neighbour
    if neighbour is not None:
        gateway.hubs.drain_callbacks.add(neighbour.drain)
        metrics.collectors.append(neighbour.collect_metrics)
    app.key_locks = KeyLocks(bus) if bus.worker_count > 1 else None
    app.router.redirect_slashes = False
    return app


class RevalidatedStaticFiles(StaticFiles):
    """Files as they are by now: browsers ask for every use, and whoever edits sees it."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _build_page_route(path: str, file: Path) -> BaseRoute:
    if file.is_dir():
        return Mount(path, RevalidatedStaticFiles(directory=file, html=True))
    return Route(path, _build_page_endpoint(file))


def _build_page_endpoint(file: Path) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def serve_page(request: Request) -> Response:
        caution = PAGE_HEADERS if file.suffix == ".html" else NOSNIFF_HEADERS
        return FileResponse(file, headers={"Cache-Control": "no-cache", **caution})

    return serve_page
