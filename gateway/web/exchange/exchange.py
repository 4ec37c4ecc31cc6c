"""One request and its one answer: what is no stream."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import RequestError, StreamEnded
from gateway.telemetry.about import note
from gateway.web.app.traced import ROUTE
from gateway.web.routing.routes import Match, Routes, name_of
from gateway.web.streams.leaving import Left
from gateway.web.websocket.origin import origin_allowed

from . import latest, post, reply


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """A document, what became of a record, or a reply. Raises RequestError and KafkaError."""
    name = request.scope[ROUTE] = name_of(match.route)
    note(route=name)
    if match.route.with_.capability == "produce" and not match.reply:
        _mind_origin(routes, match, request)
    match = await routes.admit(match, request)
    leave = await routes.limits.enter(request.scope, match.granted)
    try:
        if routes.hubs.draining:
            raise _draining()
        match = await routes.refresh(match, request)
        return await _answer(routes, match, request)
    except Left:
        return Response(status_code=204)  # nobody hears it
    except StreamEnded:  # what it waits for comes by a stream
        raise _draining() from None
    finally:
        leave()


async def _answer(routes: Routes, match: Match, request: Request) -> Response:
    with_ = match.route.with_
    if match.reply:
        return await reply.later(routes, match, request)
    if with_.capability == "fetch":
        return await latest.respond(routes, match, request)
    if with_.reply_to is not None:
        return await reply.ask(routes, match, request)
    return await post.respond(routes, match, request)


def _draining() -> RequestError:
    detail = "this gateway is about to end; repeat it with its Idempotency-Key"
    return RequestError(503, "Draining", detail, retry_after=1.0)


def _mind_origin(routes: Routes, match: Match, request: Request) -> None:
    """A form of any page can be sent here with what browsers send by themselves: cookies, a
    password, a client certificate. Raises RequestError 403."""
    headers, guards = request.headers, routes.settings.guards
    unasked = (
        "cookie" in headers
        or headers.get("authorization", "")[:6].lower() == "basic "
        or any(getattr(guards[name], "type", "") == "x509" for name in match.route.guarded)
    )
    access = routes.access_control(match.route)
    if not origin_allowed(access, headers.get("origin"), headers.get("host", ""), cookies=unasked):
        detail = "pages of this origin may not write; see access-control"
        raise RequestError(403, "Foreign origin", detail)
