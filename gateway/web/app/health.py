"""Is the process alive, and may traffic come in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.web.routing.routes import NOT_STARTED_MESSAGE

_NO_STORE_HEADERS = {"Cache-Control": "no-store"}


async def report_liveness(request: Request) -> Response:
    return JSONResponse({"status": "live"}, headers=_NO_STORE_HEADERS)


async def report_readiness(request: Request) -> Response:
    """200 when the brokers were reached and the bootstrap topics are warm; 503 says why not. Of
    several clusters, one that is away once it was reached takes nobody from the others."""
    hubs: Hubs = request.app.state.hubs
    reasons = [] if hubs.started else [NOT_STARTED_MESSAGE]
    away = 0
    for hub in hubs if hubs.started else ():
        found = list(_iter_unready_reasons(hub))
        reasons += [f"{hub.name}: {each}" if hub.name else each for each in found]
        away += (
            bool(found)
            and hub.cluster.cluster_id is not None
            and not hub.topics.list_unread_bootstrap()
        )
    works = bool(reasons) and away == len(reasons) and away < len(hubs.by_name)
    if hubs.draining:
        reasons.append("draining")
    is_ready = not reasons or (works and not hubs.draining)
    body: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "reasons": reasons}
    return JSONResponse(body, 200 if is_ready else 503, headers=_NO_STORE_HEADERS)


def _iter_unready_reasons(hub: Hub) -> Iterator[str]:
    if not hub.cluster.is_reachable:
        yield f"no broker was reached: {hub.cluster.error or 'still connecting'}"
    for name in hub.topics.list_unread_bootstrap():
        yield f"bootstrap topic {name} is not warm yet"
