"""Respond to a request that is for no stream: dispatch it by the capability of its route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gateway.config import FetchWith, ProduceWith, With
from gateway.errors import RequestError, StreamEnded
from gateway.telemetry.logs import bind_log_context
from gateway.web.exchange import fetch, reply
from gateway.web.http.asgi_middleware import ROUTE_SCOPE_KEY
from gateway.web.http.browsers import has_ambient_credentials, is_origin_allowed
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """Return a document, the result of a write, or a reply; the client is admitted here."""
    request.scope[ROUTE_SCOPE_KEY] = match.route.path  # spans have the method beside it
    bind_log_context(route=match.route.name)
    if match.route.with_.can_write and not match.is_reply:
        _check_origin(routes, match, request)
    match = await routes.admit(match, request)
    release_slot = await routes.limits.acquire_slot(request.scope, match.granted)
    try:
        if routes.hubs.draining:
            raise _build_draining_error()
        match = await routes.refresh(match, request)
        return await get_exchange(match.route.with_).respond(routes, match, request)
    except StreamEnded:  # a request may wait on a stream, which ends when the gateway drains
        raise _build_draining_error() from None
    finally:
        release_slot()


def _build_draining_error() -> RequestError:
    detail = "this gateway is about to end; repeat it with its Idempotency-Key"
    return RequestError(503, "Draining", detail, retry_after=1.0)


def _check_origin(routes: Routes, match: Match, request: Request) -> None:
    """Refuse a write from a page of another site that may not write (CSRF).

    Any page can send a form here without a preflight, and the browser adds the user's credentials
    by itself.
    """
    headers, route = request.headers, match.route
    if not is_origin_allowed(
        routes.get_access_control(route),
        headers.get("origin"),
        headers.get("host", ""),
        has_credentials=has_ambient_credentials(headers, routes.list_guards(route)),
    ):
        routes.report_foreign_origin(headers["origin"], match.path, match.route)
        detail = "pages of this origin may not write; see access-control"
        raise RequestError(403, "Foreign origin", detail)


class Exchange(NamedTuple):
    """A capability whose requests have one response: what it does, for documents, and how.

    `respond` raises a `RequestError` if the request is refused, a `KafkaError` if Kafka does not
    answer, and `Interrupted`.
    """

    describe: Callable[[With], str]
    respond: Callable[[Routes, Match, Request], Awaitable[Response]]


EXCHANGES: dict[type[With], Exchange] = {
    FetchWith: Exchange(lambda with_: "the latest record of a key", fetch.respond),
    ProduceWith: Exchange(reply.describe, reply.respond),
}
"""All exchanges, by the options of their capability. Streams are none: see `web.streams`."""


def get_exchange(with_: With) -> Exchange:
    return EXCHANGES[type(with_)]
