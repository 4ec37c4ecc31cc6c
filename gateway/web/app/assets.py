"""Serve the JavaScript module and its types to pages that load them from the gateway itself.

Their URLs have no version, so that the SharedWorker of all tabs stays the same one over an update;
every use is revalidated instead. A page that a server renders can name the URL with the module's
hash, to spare the revalidation; tabs of before and after an update then have a connection each. Any
hash is answered, with the module of this version: replicas are not updated at the same moment, and
the SharedWorker of an old page may be started again at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.config.checks.crosscheck import VERSIONED_MODULE_PATTERN
from gateway.web.http.document import IMMUTABLE_HEADERS, StaticDocument

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
