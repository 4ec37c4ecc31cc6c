"""The JavaScript module and its types, for pages that take them from the gateway itself.

Their addresses have no version in them, so that a SharedWorker of all tabs is the same one over
an update: every use is revalidated.
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

# Not by mimetypes: `.ts` is a video there.
MEDIA_TYPES = {"gateway.js": "text/javascript", "gateway.d.ts": "application/typescript"}


ASSET_PATHS = frozenset(f"/{name}" for name in MEDIA_TYPES)


def build_routes() -> list[Route]:
    """`/gateway.js` and `/gateway.d.ts`."""
    return [
        Route(f"/{name}", _build_asset_endpoint(JS_DIRECTORY / name, kind))
        for name, kind in MEDIA_TYPES.items()
    ]


def _build_asset_endpoint(
    file: Path, content_type: str
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    document = StaticDocument(file.read_bytes(), content_type)

    async def serve_asset(request: Request) -> Response:
        return document.respond(request)

    return serve_asset
