"""The application: streams, health, pages, and the errors of all of them as problems."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from ..config import AccessControl, Settings
from ..errors import ConfigError
from ..hub.hub import Hub
from ..kafka.cluster import Cluster, ClusterSettings
from . import discovery, health
from .access import Access, anyone
from .problems import HANDLERS
from .routes import Routes
from .streams import Streams

Startup = Callable[[], Coroutine[Any, Any, None]]


def create_app(
    settings: Settings,
    *,
    access: Access = anyone,
    pages: Mapping[str, Path] | None = None,
    startup: Sequence[Startup] = (),
) -> Starlette:
    """The gateway as an ASGI application; its lifespan connects to Kafka and closes again.

    access:  asked before every stream; the application's own, where it mounts the gateway.
    pages:   files to serve, by path; one at `/` takes the place of the list of streams.
    startup: run beside it until it closes.
    Raises ConfigError for settings that this version cannot serve.
    """
    refuse_unserved(settings)
    cluster = Cluster(ClusterSettings.of(settings.kafka))
    hub = Hub(cluster, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await cluster.start()
        await hub.start()
        tasks = [asyncio.create_task(start()) for start in startup]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await hub.close()
            await cluster.close()

    files = {path: _page(file) for path, file in (pages or {}).items()}
    routes: list[BaseRoute] = [
        Route("/health/live", health.live),
        Route("/health/ready", health.ready),
        *discovery.routes(settings, home=files.pop("/", None)),
        *(Route(path, file) for path, file in files.items()),
    ]
    middleware = cors(settings.listen.access_control)
    app = Starlette(
        routes=routes, middleware=middleware, exception_handlers=HANDLERS, lifespan=lifespan
    )
    app.router.redirect_slashes = False
    # not a Mount: it would hide the 405 of the others
    app.router.default = Streams(Routes(hub, settings, access))
    app.state.hub = hub
    return app


def refuse_unserved(settings: Settings) -> None:
    """What is configured but not built is refused, never ignored: a guard that guards nothing
    would be worse than none. Raises ConfigError."""
    problems: list[str] = []
    for n, route in enumerate(settings.routes):
        if route.guarded:
            problems.append(f"routes[{n}].guarded: guards are not served by this version")
        if route.with_.slow_client == "conflate":
            problems.append(f"routes[{n}].with.slowClient: conflate is not served by this version")
    for n, topic in enumerate(settings.kafka.topics):
        for name, model in (("key", topic.key), ("value", topic.value)):
            if model.model not in ("bytes", "string", "json"):
                what = f"model {model.model} is not served by this version"
                problems.append(f"kafka.topics[{n}].{name}: {what}")
    if settings.telemetry.traces.otlp is not None:
        problems.append("telemetry.traces.otlp: traces are not served by this version")
    if problems:
        raise ConfigError([f"{problem}; remove it" for problem in problems])


def cors(access: AccessControl) -> list[Middleware]:
    """CORS as configured; `last-event-id` is always allowed: libraries on fetch set it and are
    preflighted for it (Fetch 4.8). Chromium's EventSource never is, however long its id."""
    if access.policy == "same-origin":
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(access.allow.origins) or ["*"],
            allow_methods=list(access.allow.methods) or ["*"],
            allow_headers=[*access.allow.headers, "last-event-id"]
            if access.allow.headers
            else ["*"],
            allow_credentials=access.allow.credentials,
            expose_headers=list(access.expose.headers),
            max_age=int(access.max_age),
        )
    ]


def _page(file: Path) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def page(request: Request) -> Response:
        return FileResponse(file, headers={"Cache-Control": "no-cache"})

    return page
