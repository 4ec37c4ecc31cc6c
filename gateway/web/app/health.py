"""Report whether the process is alive, and whether it can take traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.web.access.guards import Guards
from gateway.web.routing.limits import Limits
from gateway.web.routing.routes import NOT_STARTED_MESSAGE

_NO_STORE_HEADERS = {"Cache-Control": "no-store"}
READY = "ready"


async def report_liveness(request: Request) -> Response:
    return JSONResponse({"status": "live"}, headers=_NO_STORE_HEADERS)


async def report_readiness(request: Request) -> Response:
    """Answer 200 if clients can be served, else 503 with why; see `build_readiness`."""
    state = request.app.state
    body = build_readiness(state.hubs, state.guards, state.limits)
    status = 200 if body["status"] == READY else 503
    return JSONResponse(body, status, headers=_NO_STORE_HEADERS)


def build_readiness(hubs: Hubs, guards: Guards, limits: Limits) -> dict[str, Any]:
    """Return whether the brokers were reached and the bootstrap topics are read, else why not.

    With several clusters, one that fails after it was reached does not make the gateway unready:
    clients of the other clusters are still served. A guard that cannot decide is a warning: all
    replicas have the same issuer, so nobody would be served, not even on other routes. So is a
    gateway that is full: it says to each client when to come back, in a way that this client
    understands, while a load balancer without a ready gateway would answer 503, which ends an
    EventSource for good.
    """
    reasons = [] if hubs.started else [NOT_STARTED_MESSAGE]
    lost_clusters = 0  # clusters whose only problem is that they cannot be reached any more
    for hub in hubs if hubs.started else ():
        hub_reasons = list(_iter_unready_reasons(hub))
        reasons += [f"{hub.name}: {reason}" if hub.name else reason for reason in hub_reasons]
        lost_clusters += (
            bool(hub_reasons)
            and hub.cluster.cluster_id is not None
            and not hub.topics.list_unread_bootstrap()
        )
    # Each of those adds exactly one reason, so equal numbers mean that there is no other problem.
    serves_others = (
        bool(reasons) and lost_clusters == len(reasons) and lost_clusters < len(hubs.by_name)
    )
    if hubs.draining:
        reasons.append("draining")
    is_ready = not reasons or (serves_others and not hubs.draining)
    return {
        "status": READY if is_ready else "not ready",
        "reasons": reasons,
        "warnings": [*guards.list_problems(), *_iter_refusals(hubs, limits)],
    }


def _iter_unready_reasons(hub: Hub) -> Iterator[str]:
    if not hub.cluster.is_reachable:
        yield f"no broker was reached: {hub.cluster.error or 'still connecting'}"
    for name in hub.topics.list_unread_bootstrap():
        yield f"bootstrap topic {name} is not warm yet"


def _iter_refusals(hubs: Hubs, limits: Limits) -> Iterator[str]:
    if limits.is_full:
        yield "new clients are refused: as many are connected as listen.limits.connections allows"
    if any(hub.is_full for hub in hubs):
        yield "new clients are refused: too much of the memory cannot be freed"
