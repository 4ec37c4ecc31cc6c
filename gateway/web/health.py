"""Is the process alive, and may traffic come in."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..hub.hub import Hub
from .routes import NOT_STARTED

_HEADERS = {"Cache-Control": "no-store"}


async def live(request: Request) -> Response:
    return JSONResponse({"status": "live"}, headers=_HEADERS)


async def ready(request: Request) -> Response:
    """200 when the brokers were reached and the bootstrap topics are warm; 503 says why not."""
    hub: Hub = request.app.state.hub
    reasons: list[str] = []
    if not hub.started:
        reasons.append(NOT_STARTED)
    elif not hub.cluster.reachable:
        error = hub.cluster.error
        reasons.append(f"no broker was reached: {error or 'still connecting'}")
    if hub.started:
        reasons += [f"bootstrap topic {name} is not warm yet" for name in hub.topics.cold()]
    if hub.draining:
        reasons.append("draining")
    body: dict[str, Any] = {"status": "not ready" if reasons else "ready", "reasons": reasons}
    return JSONResponse(body, 503 if reasons else 200, headers=_HEADERS)
