"""Report whether the process is alive and can take traffic, and what a proxy in front lets pass.

`gateway check --cluster --front URL` asks `/health/front` through the proxy. The response is a
stream of two events with a silence between them, sent with the headers of all streams. The first
says what arrived: the client's address and scheme as the gateway takes them, and the lengths of
some headers. It has no value of a header and no record.

The request counts towards `listen.limits`, as a stream does. `listen.probe: false` removes the
path.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import Busy, RequestError
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.web.access.admission import Guards
from gateway.web.http.content import GZIP_HEADERS, get_accept_encoding, prefers_gzip
from gateway.web.http.limits import Limits
from gateway.web.http.problems import build_problem
from gateway.web.routing.routes import NOT_STARTED_MESSAGE
from gateway.web.streams.responses import STREAM_HEADERS, SseResponse
from gateway.wire import sse

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


FRONT_PATH = "/health/front"
PROBED_HEADERS = ("authorization", "cookie", "idempotency-key", "last-event-id", "origin")
"""The headers that a proxy must pass on, and whose lengths the first event has."""
MAX_SILENCE_S = 120.0
MAX_OPEN = 20  # responses of a process at a time; a check has seven
_BUSY = f"{MAX_OPEN} checks of the proxy are under way; try again"


class FrontProbe:
    """The responses to checks of the proxy. One for each application.

    These clients need no credentials, so `MAX_OPEN` keeps them from taking the places of others.
    """

    def __init__(self) -> None:
        self._open_count = 0

    async def respond(self, request: Request) -> Response:
        """Return the stream of two events; `?silence=` is the time between them in seconds."""
        if self._open_count >= MAX_OPEN:
            return build_problem(Busy(503, _BUSY, retry_after=5.0), request.url.path)
        self._open_count += 1
        try:
            response = await _build_response(request, self._release)
        except BaseException:
            self._release()
            raise
        if not isinstance(response, SseResponse):
            self._release()
        return response

    def _release(self) -> None:
        self._open_count -= 1


async def _build_response(request: Request, on_end: Callable[[], None]) -> Response:
    limits = request.app.state.limits
    try:
        silence_s = _parse_silence(request.query_params.get("silence", "0"))
        await limits.check_rate(request.scope)
        release_slot = await limits.acquire_slot(request.scope)
    except (Busy, RequestError) as exc:
        return build_problem(exc, request.url.path)
    is_compressed = prefers_gzip(get_accept_encoding(request))
    report = _describe_request(request) | {"coding": "gzip" if is_compressed else "identity"}

    draining = asyncio.Event()
    callbacks = request.app.state.hubs.drain_callbacks
    callbacks.add(draining.set)

    async def iter_events() -> AsyncIterator[bytes]:
        encode = _create_encoder(is_compressed)
        yield encode(sse.encode_event("received", json.dumps(report).encode()))
        try:
            await asyncio.wait_for(draining.wait(), silence_s)
        except TimeoutError:
            yield encode(sse.encode_event("silence-over", b"{}"))

    def on_close() -> None:
        callbacks.discard(draining.set)
        release_slot()
        on_end()

    headers = STREAM_HEADERS | (GZIP_HEADERS if is_compressed else {})
    return SseResponse(iter_events(), on_close, headers)


def _parse_silence(text: str) -> float:
    try:
        silence_s = float(text)
    except ValueError:
        silence_s = -1.0
    if not 0 <= silence_s <= MAX_SILENCE_S:
        raise RequestError(
            400, "Bad request", f"silence is a number of seconds from 0 to {MAX_SILENCE_S:g}"
        )
    return silence_s


def _describe_request(request: Request) -> dict[str, Any]:
    host, port = request.client or ("", 0)
    if "x-forwarded-for" not in request.headers:
        forwarded = "absent"
    else:
        # `ForwardedMiddleware` does not know the port of a client whose address is from a header.
        forwarded = "ignored" if port else "believed"
    return {
        "address": host,
        "forwarded": forwarded,
        "scheme": request.scope["scheme"],
        "headers": {name: sum(map(len, request.headers.getlist(name))) for name in PROBED_HEADERS},
        "query": len(request.query_params.get("lastEventId", "")),
    }


def _create_encoder(is_compressed: bool) -> Any:
    """Return a function that encodes bytes of the response, each flushed so that it can be read."""
    if not is_compressed:
        return lambda data: data
    compressor = zlib.compressobj(wbits=31)
    return lambda data: compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)
