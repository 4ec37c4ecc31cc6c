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

from gateway.web.http.document import Document

DIRECTORY = Path(__file__).parents[1] / "js"

# Not by mimetypes: `.ts` is a video there.
TYPES = {"gateway.js": "text/javascript", "gateway.d.ts": "application/typescript"}


PATHS = frozenset(f"/{name}" for name in TYPES)


def routes() -> list[Route]:
    """`/gateway.js` and `/gateway.d.ts`."""
    return [Route(f"/{name}", _asset(DIRECTORY / name, kind)) for name, kind in TYPES.items()]


def _asset(file: Path, kind: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    document = Document(file.read_bytes(), kind)

    async def asset(request: Request) -> Response:
        return document.respond(request)

    return asset
