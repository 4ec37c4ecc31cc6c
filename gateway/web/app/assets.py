"""Serve the JavaScript module and its types to pages that load them from the gateway itself.

Their URLs have no version, so that the SharedWorker of all tabs stays the same one over an update;
every use is revalidated instead.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.web.http.document import StaticDocument

JS_DIRECTORY = Path(__file__).parents[1] / "js"

# The module mimetypes would say that `.ts` is a video.
MEDIA_TYPES = {"gateway.js": "text/javascript", "gateway.d.ts": "application/typescript"}


ASSET_PATHS = frozenset(f"/{name}" for name in MEDIA_TYPES)


def build_routes() -> list[Route]:
    """Return the routes of `/gateway.js` and `/gateway.d.ts`."""
    return [
        Route(f"/{name}", _build_asset_endpoint(JS_DIRECTORY / name, content_type))
        for name, content_type in MEDIA_TYPES.items()
    ]


def _build_asset_endpoint(
    file: Path, content_type: str
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    document = StaticDocument(file.read_bytes(), content_type)

    async def serve_asset(request: Request) -> Response:
        return document.respond(request)

    return serve_asset
