"""Admit a WebSocket, and start its session.

A route's path is a socket with one stream; on `/ws` a client subscribes to any number of streams.

A client that is not allowed to connect gets an HTTP error in place of the accept. If the gateway is
busy, the route is paused or a guard cannot be asked, the socket is accepted, gets an `error`
message and is closed, so that a browser can tell that it may try again.

On our own server a session writes directly to a `WebSocketConnection`. `AsgiSocket` is for other
ASGI servers, which frame messages themselves.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import Busy, GatewayError, GuardUnavailable, RequestError
from gateway.hub.wires.websocket import WebSocketWire
from gateway.web.access import NO_GRANTS, get_bearer_token
from gateway.web.access.grant import get_subprotocol_token
from gateway.web.http import problems
from gateway.web.http.limits import ConnectionSlot
from gateway.web.http.outlet import TAKEOVER
from gateway.web.http.query import get_query_pairs
from gateway.web.routing.paths import Match, RoutePaused
from gateway.web.routing.routes import Routes
from gateway.wire.websocket import iter_texts

from .connection import ABNORMAL_CLOSURE, MessageListener, Socket
from .handshake import HandshakeScope
from .message_processor import POLICY_VIOLATION, TRY_AGAIN_LATER
from .session import Session

log = logging.getLogger(__name__)

SUBPROTOCOL = "gateway.v1"
LONE_TOKEN_MESSAGE = f"it offers a token alone; offer {SUBPROTOCOL} beside bearer.TOKEN"
MULTIPLEX_PATH = "/ws"  # a socket with any number of streams


async def serve_websocket(
    routes: Routes, path: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve one socket.

    `path` is `MULTIPLEX_PATH`, or the path of a route, percent-encoded as it came.
    """
    connection = HTTPConnection(scope)
    try:
        match, slot = await _admit_handshake(routes, path, connection)
    except (GuardUnavailable, Busy, RoutePaused) as exc:
        await _refuse_after_accept(exc, scope, receive, send)
        return
    except (GatewayError, HTTPException) as exc:
        await _refuse_handshake(
            problems.build_problem(exc, connection.url.path), scope, receive, send
        )
        return
    session = Session(routes, HandshakeScope(scope), get_bearer_token(connection), slot)
    try:
        socket = await _accept_handshake(session, scope, receive, send)
    except BaseException:
        slot()
        raise
    # From here on the session owns the slot.
    session.start(socket, match, get_query_pairs(connection))
    if isinstance(socket, AsgiSocket):
        session.start_task(session.open_path_stream(connection))
        await socket.run()
    else:  # a task for each of many handshakes would cost a tenth of them
        session.add_task(asyncio.current_task())
        await session.open_path_stream(connection)


async def _admit_handshake(
    routes: Routes, path: str, connection: HTTPConnection
) -> tuple[Match | None, ConnectionSlot]:
    """Admit a client; return its route, None on `MULTIPLEX_PATH`, and the slot to release."""
    match = None
    # Before anything that takes long: a lookup, a signature or a request to another server.
    await routes.limits.check_rate(connection.scope)
    _require_subprotocol(connection)
    if path == MULTIPLEX_PATH:
        # No route is known yet: the origin has to be allowed by any of them. Each subscription
        # checks that of its own route.
        routes.refuse_foreign_origin(connection, path, None)
        routes.require_started()
    else:
        match = routes.match(path)
    match = match and await routes.admit(match, connection)
    slot = await routes.limits.acquire_slot(connection.scope, match.granted if match else NO_GRANTS)
    try:
        # The configuration may have changed while the slot was waited for.
        match = match and await routes.refresh(match, connection)
    except BaseException:
        slot()
        raise
    return match, slot


def _require_subprotocol(connection: HTTPConnection) -> None:
    """Refuse a token among subprotocols of which the gateway may select none.

    A browser gives up a socket whose server selects none of the subprotocols it offered, and a
    token is never selected: the response would repeat it.
    """
    if SUBPROTOCOL in connection.scope["subprotocols"]:
        return
    if get_subprotocol_token(connection) is not None:
        _warn_of_lone_token()
        raise RequestError(400, "Bad request", LONE_TOKEN_MESSAGE)


@cache
def _warn_of_lone_token() -> None:
    """Log it once: a browser does not show the response to the page."""
    log.warning("a WebSocket was refused: %s", LONE_TOKEN_MESSAGE)


async def _accept_handshake(
    listener: MessageListener, scope: Scope, receive: Receive, send: Send
) -> Socket:
    await receive()  # `websocket.connect`
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None
    await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})
    take_over = scope.get("extensions", {}).get(TAKEOVER)
    return AsgiSocket(listener, receive, send) if take_over is None else take_over(listener)


class DeafListener:
    """The listener of a socket that is closed as soon as it is accepted."""

    is_busy = False

    def on_message(self, message: str | bytes) -> None: ...

    def on_drained(self) -> None: ...

    def on_closed(self, code: int, reason: str) -> None: ...


async def _refuse_after_accept(
    exc: RequestError, scope: Scope, receive: Receive, send: Send
) -> None:
    """Accept the socket, send an `error` message, and close it.

    If the handshake were refused, a browser would tell the page no more than if there were no
    server, whatever the status (WHATWG WebSockets 4).
    """
    socket = await _accept_handshake(DeafListener(), scope, receive, send)
    error = {"code": problems.get_code(exc), **problems.build_members(exc)}
    socket.write(WebSocketWire(deflate=socket.deflate).build_message("error", error))
    socket.close(TRY_AGAIN_LATER, f"{exc.title.lower()}; come back later")
    if isinstance(socket, AsgiSocket):
        await socket.run()


async def _refuse_handshake(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to the handshake by HTTP, or by 403 if the server has no denial responses."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": ""})


class AsgiSocket:
    """A `Socket` on another ASGI server.

    `endpoint` runs it until the socket is closed. It is full from a write until the server has
    taken all of it. Frames are decoded to texts again, as the server frames messages itself.
    """

    deflate = False
    transport = None

    def __init__(self, listener: MessageListener, receive: Receive, send: Send) -> None:
        self.full = self.closed = False
        self._receive, self._send = receive, send
        self._output: list[bytes] = []
        self._close_code = 0
        self._close_reason = ""
        self._output_ready = asyncio.Event()
        self._listener_ready = asyncio.Event()
        self._listener: MessageListener | None = listener

    async def run(self) -> None:
        """Deliver messages and send what is written, until either side closes."""
        sending = asyncio.create_task(self._send_output())
        event: Any = {}
        try:
            while (event := await self._receive())["type"] != "websocket.disconnect":
                if event["type"] == "websocket.receive" and self._listener is not None:
                    await self._deliver_message(self._listener, event)
        finally:
            self.closed = True
            self._notify_closed(event.get("code") or ABNORMAL_CLOSURE, event.get("reason") or "")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _deliver_message(self, listener: MessageListener, event: Any) -> None:
        text = event.get("text")
        listener.on_message(text if text is not None else event.get("bytes") or b"")
        while listener.is_busy and not self.closed:
            self._listener_ready.clear()
            await self._listener_ready.wait()

    def resume_reading(self) -> None:
        self._listener_ready.set()

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._output.append(data)
            self.full = True
            self._output_ready.set()

    def close(self, code: int, reason: str = "") -> None:
        if self.closed:
            return
        self.closed, self._close_code, self._close_reason = True, code, reason
        self._output_ready.set()  # the task sends what is left, and then the close
        self._listener_ready.set()
        self._notify_closed(code, reason)

    async def _send_output(self) -> None:
        try:
            while self._output or not self._close_code:
                await self._output_ready.wait()
                self._output_ready.clear()
                frames, self._output = self._output, []
                for text in iter_texts(b"".join(frames)):
                    await self._send({"type": "websocket.send", "text": text})
                # More may have been written while the server took this.
                if self._listener is not None and not self._output:
                    self.full = False
                    self._listener.on_drained()
            close = {
                "type": "websocket.close",
                "code": self._close_code,
                "reason": self._close_reason,
            }
            await self._send(close)
        except OSError:  # raised by servers if the client is gone (ASGI 2.4)
            self.closed = True
            self._listener_ready.set()

    def _notify_closed(self, code: int, reason: str) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_closed(code, reason)
