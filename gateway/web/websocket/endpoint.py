"""A WebSocket from its handshake to its session: one stream on a route's own path, or any number
of them on `/ws`.

Who may not have one is told so before it opens, as HTTP; who comes while the gateway is busy, or
cannot know who may, behind it.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import Busy, GatewayError, GuardUnavailable, RequestError
from gateway.hub.wires.websocket import WebSocket
from gateway.web.access import NOBODY, bearer
from gateway.web.admin.orders import Paused
from gateway.web.http import problems
from gateway.web.http.outlet import TAKEOVER
from gateway.web.routing.query import pairs
from gateway.web.routing.routes import Routes
from gateway.wire.websocket import messages as texts

from .caller import Caller
from .conversation import POLICY, TRY_AGAIN
from .origin import refuse_foreign
from .session import Session
from .socket import AsgiSocket, Socket

PROTOCOL = "gateway.v1"
MULTIPLEX = "/ws"


async def serve(routes: Routes, path: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one socket. path: percent-encoded; MULTIPLEX, or a route's own."""
    connection = HTTPConnection(scope)
    match = None
    try:
        if path == MULTIPLEX:
            refuse_foreign(
                [routes.settings.listen.access_control]
                + [routes.access_control(route) for route in routes.settings.routes],
                connection,
            )
            routes.must_run()
        else:
            match = routes.match(path)
        await routes.limits.arrive(scope)
        match = match and await routes.admit(match, connection)
        place = await routes.limits.enter(scope, match.granted if match else NOBODY)
        try:
            match = match and await routes.refresh(match, connection)
        except BaseException:
            place()
            raise
    except (GuardUnavailable, Busy, Paused) as exc:
        await _turn_away(exc, scope, receive, send)
        return
    except (GatewayError, HTTPException) as exc:
        await _refuse(problems.problem(exc, connection.url.path), scope, receive, send)
        return
    session = Session(routes, Caller(scope), bearer(connection), place)
    try:
        await _accept(scope, receive, send)
    except BaseException:
        place()
        raise
    take = scope.get("extensions", {}).get(TAKEOVER)
    socket: Socket | None = None if take is None else take(session)
    query = pairs(connection)
    if socket is not None:
        session.start(socket, match, query)
        await session.open(connection)
        return
    carried = AsgiSocket(session, receive, send)
    session.start(carried, match, query)
    session.do(session.open(connection))
    await carried.run()


async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
    """Of what the client offers, PROTOCOL is taken; a bearer token there is never echoed."""
    await receive()  # `websocket.connect`
    taken = PROTOCOL if PROTOCOL in scope.get("subprotocols", ()) else None
    await send({"type": "websocket.accept", "subprotocol": taken, "headers": []})


async def _turn_away(exc: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
    """Accepted, told and closed: of a handshake that is refused, whatever the status, a browser
    says no more than of a server that is not there (WHATWG WebSockets 4)."""
    await _accept(scope, receive, send)
    told = {"code": problems.code(exc), **problems.members(exc)}
    for text in texts(WebSocket().message("error", told)):
        await send({"type": "websocket.send", "text": text})
    busy = f"{exc.title.lower()}; come back"
    await send({"type": "websocket.close", "code": TRY_AGAIN, "reason": busy})


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the handshake as HTTP, where the server can; browsers hear of a failure only."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY, "reason": ""})
