"""The JavaScript module and its types, for pages that take them from the gateway itself.

Their addresses have no version in them, so that a SharedWorker of all tabs is the same one over
an update: every use is revalidated, and mostly answered with 304 (RFC 9110 15.4.5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

DIRECTORY = Path(__file__).parent / "js"

# Not by mimetypes: `.ts` is a video there.
TYPES = {"gateway.js": "text/javascript", "gateway.d.ts": "application/typescript"}


def routes() -> list[Route]:
    """`/gateway.js` and `/gateway.d.ts`."""
    return [Route(f"/{name}", _asset(DIRECTORY / name, kind)) for name, kind in TYPES.items()]


def _asset(file: Path, kind: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    content = file.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def asset(request: Request) -> Response:
        if _names(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers | {"Content-Type": f"{kind}; charset=utf-8"})

    return asset


def _names(condition: str, tag: str) -> bool:
    """Whether `If-None-Match` has the tag, by weak comparison (RFC 9110 13.1.2): a proxy that
    compresses makes tags weak."""
    tags = [each.strip().removeprefix("W/") for each in condition.split(",")]
    return tag in tags or condition.strip() == "*"
