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
from gateway.hub.wires.websocket import WebSocketWire
from gateway.web.access import NO_GRANTS, get_bearer_token
from gateway.web.admin.blocklist import RoutePaused
from gateway.web.http import problems
from gateway.web.http.outlet import TAKEOVER
from gateway.web.routing.query import get_query_pairs
from gateway.web.routing.routes import Routes
from gateway.wire.websocket import iter_texts as texts

from .handshake_scope import HandshakeScope
from .message_processor import POLICY_VIOLATION, TRY_AGAIN_LATER
from .origin import refuse_foreign_origin
from .session import Session
from .socket import AsgiSocket, Socket

SUBPROTOCOL = "gateway.v1"
MULTIPLEX_PATH = "/ws"


async def serve_websocket(
    routes: Routes, path: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve one socket. path: percent-encoded; MULTIPLEX, or a route's own."""
    connection = HTTPConnection(scope)
    match = None
    try:
        if path == MULTIPLEX_PATH:
            refuse_foreign_origin(
                [routes.settings.listen.access_control]
                + [routes.get_access_control(route) for route in routes.settings.routes],
                connection,
            )
            routes.require_started()
        else:
            match = routes.match(path)
        await routes.limits.check_rate(scope)
        match = match and await routes.admit(match, connection)
        place = await routes.limits.acquire_slot(scope, match.granted if match else NO_GRANTS)
        try:
            match = match and await routes.refresh(match, connection)
        except BaseException:
            place()
            raise
    except (GuardUnavailable, Busy, RoutePaused) as exc:
        await _refuse_after_accept(exc, scope, receive, send)
        return
    except (GatewayError, HTTPException) as exc:
        await _refuse_handshake(
            problems.build_problem(exc, connection.url.path), scope, receive, send
        )
        return
    session = Session(routes, HandshakeScope(scope), get_bearer_token(connection), place)
    try:
        await _accept_handshake(scope, receive, send)
    except BaseException:
        place()
        raise
    take = scope.get("extensions", {}).get(TAKEOVER)
    socket: Socket | None = None if take is None else take(session)
    query = get_query_pairs(connection)
    if socket is not None:
        session.start(socket, match, query)
        await session.open_path_stream(connection)
        return
    carried = AsgiSocket(session, receive, send)
    session.start(carried, match, query)
    session.start_task(session.open_path_stream(connection))
    await carried.run()


async def _accept_handshake(scope: Scope, receive: Receive, send: Send) -> None:
    """Of what the client offers, PROTOCOL is taken; a bearer token there is never echoed."""
    await receive()  # `websocket.connect`
    taken = SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None
    await send({"type": "websocket.accept", "subprotocol": taken, "headers": []})


async def _refuse_after_accept(
    exc: RequestError, scope: Scope, receive: Receive, send: Send
) -> None:
    """Accepted, told and closed: of a handshake that is refused, whatever the status, a browser
    says no more than of a server that is not there (WHATWG WebSockets 4)."""
    await _accept_handshake(scope, receive, send)
    told = {"code": problems.get_code(exc), **problems.build_members(exc)}
    for text in texts(WebSocketWire().build_message("error", told)):
        await send({"type": "websocket.send", "text": text})
    busy = f"{exc.title.lower()}; come back"
    await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": busy})


async def _refuse_handshake(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the handshake as HTTP, where the server can; browsers hear of a failure only."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": ""})
