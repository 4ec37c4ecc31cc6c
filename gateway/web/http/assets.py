"""Serve what the gateway has besides streams: its JavaScript module, and a co-hosted application.

The JavaScript module and its types are for pages that load them from the gateway itself. Their URLs
have no version, so that the SharedWorker of all tabs stays the same one over an update; every use
is revalidated instead. A page that a server renders can name the URL with the module's hash, to
spare the revalidation; tabs of before and after an update then have a connection each. Any hash is
answered, with the module of this version: replicas are not updated at the same moment, and the
SharedWorker of an old page may be started again at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.api.gateway import Gateway
from gateway.config.types.path import VERSIONED_MODULE_PATTERN
from gateway.errors import RequestError
from gateway.telemetry.samples import MetricSamples
from gateway.web.access.admission import Guards

from .content import IMMUTABLE_HEADERS, StaticDocument

JS_DIRECTORY = Path(__file__).parents[1] / "js"

# The module mimetypes would say that `.ts` is a video.
MEDIA_TYPES = {"gateway.js": "text/javascript", "gateway.d.ts": "application/typescript"}


_ASSET_PATHS = frozenset(f"/{name}" for name in MEDIA_TYPES)
_MODULE = (JS_DIRECTORY / "gateway.js").read_bytes()
VERSIONED_MODULE_PATH = f"/gateway-{hashlib.sha256(_MODULE).hexdigest()[:16]}.js"
"""The URL of this version of the module, which browsers keep without asking again."""


def is_asset_path(path: str) -> bool:
    """Return whether a path is that of the module, in any version, or of its types."""
    return path in _ASSET_PATHS or is_versioned_path(path)


def is_versioned_path(path: str) -> bool:
    # Most paths are of streams, and this check spares them 0.2 us.
    return path.startswith("/gateway-") and bool(VERSIONED_MODULE_PATTERN.fullmatch(path))


def build_routes() -> list[Route]:
    return [
        *(
            Route(f"/{name}", _build_asset_endpoint(JS_DIRECTORY / name, content_type))
            for name, content_type in MEDIA_TYPES.items()
        ),
        Route("/gateway-{version}.js", _build_version_endpoint()),
    ]


def _build_asset_endpoint(
    file: Path, content_type: str
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    document = StaticDocument(file.read_bytes(), content_type)

    async def serve_asset(request: Request) -> Response:
        return document.respond(request)

    return serve_asset


def _build_version_endpoint() -> Callable[[Request], Coroutine[Any, Any, Response]]:
    media_type = MEDIA_TYPES["gateway.js"]
    current = StaticDocument(_MODULE, media_type, IMMUTABLE_HEADERS)
    substitute = StaticDocument(_MODULE, media_type)

    async def serve_version(request: Request) -> Response:
        is_current = request.scope["path"].endswith(VERSIONED_MODULE_PATH)
        return (current if is_current else substitute).respond(request)

    return serve_version


class CoHostedApp(Protocol):
    """An application that the gateway runs, and serves on the same port.

    `cli` passes a factory, which creates the application from what it shares with the gateway: the
    connections to Kafka, and the guards. The sidecar is such an application.
    """

    @property
    def app(self) -> ASGIApp:
        """The ASGI application, which serves HTTP requests only."""

    def owns_path(self, path: str) -> bool:
        """Return whether a decoded path belongs to this application."""

    def get_body_limits(self, path: str, content_type: bytes) -> tuple[float, float]:
        """Return the most bytes of a request body, and the seconds for them to arrive.

        Infinity means that the application enforces the limit itself.
        """

    def format_error(self, error: RequestError) -> tuple[str, bytes]:
        """Return the content type and the body of an error that the gateway detects first."""

    def is_unlimited(self, path: str) -> bool:
        """Return whether a path, of a page or a health check, is exempt from `listen.limits`."""

    async def run(self) -> None: ...

    def drain(self) -> None: ...

    def collect_metrics(self, samples: MetricSamples) -> None: ...


CoHostedAppFactory: TypeAlias = Callable[[Gateway, Guards], CoHostedApp | None]
"""Creates the application; returns None if the settings have none. It must be a function of a
module, so that it can be pickled for workers."""
