"""Put streams, health and pages together as one ASGI application.

All errors are answered as problem details. The application runs alone or mounted. Servers report
their start and end only to the outermost application (Starlette's lifespans), so an application
that mounts the gateway runs `lifespan` within its own:

    kafka = create_app(load("gateway.yaml"))
    app = FastAPI(lifespan=kafka.lifespan)
    app.mount("/kafka", kafka)

The gateway could start with its first request instead, but then it would not learn when to close,
and connections to Kafka would outlive the application.

uvicorn ends its connections before it ends lifespans, and waits for streams as long as
`timeout_graceful_shutdown` says: for ever by default. `gateway.web.app.server` ends streams itself.
Under any other server, such as `uvicorn app:app`, they are ended here with an `end` event and a
retry time.

Nearly all that the gateway creates is freed by its reference count: streams that come and go over
HTTP/1.1 and WebSockets leave nothing. Requests that are answered by ASGI alone may leave cycles of
tasks and exceptions, such as streams of HTTP/1.0 (17 KB each). A full collection frees them, and
takes time in proportion to all that exists: 50 ms for 10,000 clients, seconds for a million. So it
is done when much may be garbage, and not whenever clients are many.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
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
from gateway.hub.fanout.hubs import Hubs
from gateway.web import discovery
from gateway.web.access import Access, allow_anyone
from gateway.web.access.admission import Guards
from gateway.web.admin import health
from gateway.web.admin.app import AdminApi
from gateway.web.admin.metrics import Metrics
from gateway.web.admin.reload import Reloader
from gateway.web.console.console import Console
from gateway.web.http import assets
from gateway.web.http.asgi_middleware import TracingMiddleware
from gateway.web.http.assets import CoHostedApp, CoHostedAppFactory
from gateway.web.http.browsers import NOSNIFF_HEADERS, PAGE_HEADERS
from gateway.web.http.limits import Limits
from gateway.web.http.problems import EXCEPTION_HANDLERS
from gateway.web.http.shared_counts import KeyLocks
from gateway.web.routing.routes import Routes
from gateway.web.streams.http_stream import TokenRenewer
from gateway.web.streams.middleware import PagePaths, StreamMiddleware
from gateway.web.workers.bus import Bus
from gateway.web.workers.outage_log import forward_outages

Startup = Callable[[], Coroutine[Any, Any, None]]
"""Runs from the start of the application until it is cancelled at the close."""


class Application(Starlette):
    """The gateway as an ASGI application. Created by `create_app`, which sets its attributes.

    Attributes:
        gateway: The source of its streams; `gateway.subscribe` shares its reads.
        reload: `await app.reload(settings)` applies a changed configuration.
        admin: The API of operators, to be served on a port of its own.
    """

    def __init__(self, gateway: Gateway, startup: Sequence[Startup] = (), **options: Any) -> None:
        super().__init__(**options, lifespan=self.lifespan)
        self.gateway = gateway
        self.state.hubs = gateway.hubs
        self.key_locks: KeyLocks | None = None
        self.co_hosted_app: CoHostedApp | None = None
        self.reload: Reloader
        self.admin: AdminApi
        self.console: Console | None = None
        self._startup: list[Startup] = [*startup, partial(drain_on_server_exit, gateway.hubs)]

    def add_startup(self, start: Startup) -> None:
        self._startup.append(start)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Connect to Kafka, and close the connections in the end.

        An application that mounts this one passes it as its lifespan, or enters it in its own.
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
    co_hosted_app_factory: CoHostedAppFactory | None = None,
) -> Application:
    """Create the gateway as an ASGI application; its lifespan connects to Kafka.

    Args:
        access: Asked before every stream, in addition to the guards of its route.
        pages: Files and folders to serve, by path; a file at `/` replaces the list of streams. A
            page that is given as a file loads scripts and styles only from this origin, and none
            that are inline.
        startup: Functions that run until the application closes.
        bus: The connection to the other processes of this gateway, if it is one of several.

    Raises:
        ConfigError: This version cannot serve the settings.
    """
    if settings.sidecar is not None and co_hosted_app_factory is None:
        problem = (
            "sidecar: is not part of a mounted gateway; "
            "use `gateway run`, or pass `co_hosted_app_factory`"
        )
        raise ConfigError([problem])
    gateway, bus = Gateway(settings), bus or Bus()
    if bus.worker_count > 1:
        forward_outages(gateway.clusters, bus)
    files = dict(pages or {})
    home = files.pop("/", None)
    limits = Limits(settings.listen.limits, bus)
    metrics = Metrics(gateway.hubs, settings, limits, bus)
    probe = health.FrontProbe()

    def build_routes(settings: Settings) -> list[BaseRoute]:
        metrics_path = settings.telemetry.metrics.prometheus
        return [
            Route("/health/live", health.report_liveness),
            Route("/health/ready", health.report_readiness),
            *([Route(health.FRONT_PATH, probe.respond)] if settings.listen.probe else []),
            *assets.build_routes(),
            *discovery.build_routes(
                settings, home_endpoint=None if home is None else _build_page_endpoint(home)
            ),
            *(_build_page_route(path, file) for path, file in files.items()),
            *([] if metrics_path is None else [Route(metrics_path, metrics.scrape)]),
        ]

    page_routes = build_routes(settings)
    page_paths = PagePaths(page_routes)
    guards = Guards(settings, access)
    has_own_access = access is not allow_anyone
    routes = Routes(gateway.hubs, settings, guards, limits, has_own_access=has_own_access)
    renewer = TokenRenewer(routes, bus)
    tracing_middleware = (
        [Middleware(TracingMiddleware, gateway=gateway)] if settings.telemetry.traces.otlp else []
    )
    co_hosted_app = (
        None if co_hosted_app_factory is None else co_hosted_app_factory(gateway, guards)
    )
    middleware = [
        *tracing_middleware,
        Middleware(
            StreamMiddleware,
            routes=routes, renewer=renewer, pages=page_paths, co_hosted_app=co_hosted_app,
        )
    ]  # fmt: skip
    app = Application(
        gateway, [
            bus.run, metrics.run, guards.run, routes.stream_registry.run, *startup,
            *([] if co_hosted_app is None else [co_hosted_app.run]),
        ],
        routes=page_routes, middleware=middleware,
        exception_handlers=EXCEPTION_HANDLERS,
    )  # fmt: skip

    def update_pages(settings: Settings) -> None:
        # Streams are routed by `StreamMiddleware`; Starlette's router has only the pages.
        app.router.routes = build_routes(settings)
        page_paths.set_routes(app.router.routes)

    app.reload = reloader = Reloader(gateway, routes, guards, update_pages)
    metrics.collectors += [
        guards.collect_metrics,
        partial(reloader.counts.collect_metrics, is_one_of_several=bus.worker_count > 1),
    ]
    app.state.bus, app.state.limits = bus, limits
    app.state.metrics, app.state.guards = metrics, guards
    app.admin = AdminApi(routes, guards, metrics, app.reload, bus)
    if settings.admin is not None:
        app.console = Console(app, gateway.hubs, routes, app.admin, metrics.loop_lag, bus)
        app.admin.app.router.routes.extend(app.console.routes)
        app.add_startup(app.console.run)
    app.co_hosted_app = co_hosted_app
    if co_hosted_app is not None:
        gateway.hubs.drain_callbacks.add(co_hosted_app.drain)
        metrics.collectors.append(co_hosted_app.collect_metrics)
    app.key_locks = KeyLocks(app.state.limits) if bus.worker_count > 1 else None
    # Paths are exact: `/path/` is unknown, and is not redirected to `/path`.
    app.router.redirect_slashes = False
    return app


class RevalidatedStaticFiles(StaticFiles):
    """Static files that browsers revalidate at every use, so that edits are seen at once."""

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
        security_headers = PAGE_HEADERS if file.suffix == ".html" else NOSNIFF_HEADERS
        return FileResponse(file, headers={"Cache-Control": "no-cache", **security_headers})

    return serve_page


POLL_INTERVAL_S = 0.25  # seconds between looks at the server


async def drain_on_server_exit(hubs: Hubs) -> None:
    """Drain once the server that handles the process's signals is about to exit."""
    is_exiting = False
    while not is_exiting:
        await asyncio.sleep(POLL_INTERVAL_S)
        # uvicorn's server, whose method handles SIGTERM, has a flag and notifies nobody.
        server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        is_exiting = getattr(server, "should_exit", False) is True
    hubs.drain()


CHECK_INTERVAL_S = 10.0
NEW_OBJECTS, YOUNG_COLLECTIONS = 2000, 5  # a collection of generation 1 traverses 14,000 objects
NO_COLLECTIONS = 1_000_000
MAX_PENDING_OBJECTS = 500_000  # that may be garbage before they are looked at: 65 MB
OBJECTS_PER_CLIENT = 40  # at most, which a client that stays keeps alive


def tune_garbage_collector() -> None:
    """Have the interpreter collect by itself only what was created lately.

    Objects that exist when serving starts are frozen, and never traversed again. With a million
    clients the longest pause was 34 ms; it was the same for 2.5 times as many young objects. Full
    collections are left to `collect_garbage_forever`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG_COLLECTIONS, NO_COLLECTIONS)


async def collect_garbage_forever(hubs: Hubs) -> None:
    """Do a full collection whenever more was created and kept than new clients account for."""
    clients_before = 0  # at the last one
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        client_count = sum(len(hub.clients) for hub in hubs)
        new_clients = max(0, client_count - clients_before)
        if count_pending_objects() - OBJECTS_PER_CLIENT * new_clients > MAX_PENDING_OBJECTS:
            gc.collect()
            clients_before = client_count


def count_pending_objects() -> int:
    """Return about how many objects were kept since the last full collection."""
    new_objects, young_collections, older_collections = gc.get_count()
    # The one that reaches the threshold of a generation is counted in the next generation.
    young_collections += older_collections * (YOUNG_COLLECTIONS + 2)
    return young_collections * NEW_OBJECTS + new_objects
