"""Serve the handshake of a WebSocket by ASGI, and then a `WebSocketConnection`.

It is uvicorn's `ws` class, together with `GatewayProtocol`, which has read the head within its
limits. ASGI ends with the handshake: an application that accepts takes the connection over.

    await send({"type": "websocket.accept"})
    socket = scope["extensions"][TAKEOVER](listener)    # a `Socket`

The listener is then called with what the client sends, and the ASGI call may return. Its task, its
scope and this protocol are freed, and the connection stays.

A connect to `/ws` takes 1.1 times the CPU of one with a GET of `/health/live`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from websockets.datastructures import Headers
from websockets.http11 import Response

from gateway.client_memory import ClientMemory, HeldPart
from gateway.web.access.x509 import TLS_EXTENSION, build_tls_extension
from gateway.web.http.limits import OPEN_CONNECTION, OpenConnection
from gateway.web.http.outlet import TAKEOVER, half_close
from gateway.wire.message_reader import MessageReader

from .connection import (
    ABNORMAL_CLOSURE,
    MessageListener,
    PingScheduler,
    Socket,
    WebSocketConnection,
)
from .handshake import HANDSHAKES, UpgradeRequest

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

log = logging.getLogger(__name__)

SUBPROTOCOL_HEADER = b"sec-websocket-protocol"

# One scheduler for all connections of a server, which is found by its state.
_ping_schedulers: WeakKeyDictionary[ServerState, PingScheduler] = WeakKeyDictionary()


class ClientDisconnected(OSError):
    """An application answers a client that is gone, or whose connection it has taken over.

    ASGI wants a subclass of OSError, which applications and frameworks ignore.
    """


class WebSocketProtocol(asyncio.Protocol):
    """The handshake of one WebSocket.

    Created by `GatewayProtocol` for a request to upgrade. It is the transport's protocol until the
    application accepts; then the `WebSocketConnection` is.

    To change a limit of connections, derive a class with another `CONNECTION_CLASS`.
    """

    CONNECTION_CLASS: type[WebSocketConnection] = WebSocketConnection
    LINGER_S = 2.0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._is_connect_received = False
        self._disconnected = asyncio.Event()
        self._connection: WebSocketConnection | None = None  # from the accept to the takeover
        # The response that the application sends instead of an accept: status, headers, and the
        # body so far.
        self._denial_response: tuple[int, Headers, bytes] | None = None
        self._is_closed = False  # refused, lost or taken over
        self._timer: asyncio.TimerHandle | None = None

    def start_handshake(
        self,
        transport: asyncio.Transport,
        http_scope: Mapping[str, Any],
        target: bytes,
        trailing_data: bytes,
        open_connection: OpenConnection | None = None,
        client_memory: ClientMemory | None = None,
    ) -> None:
        """Take a connection over, and answer its request to upgrade.

        uvicorn fills in `http_scope` only partly for an upgrade.
        """
        self.transport = transport
        self._open_connection = open_connection
        self._client_memory = client_memory or ClientMemory()
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        path, headers = target.decode(), cast("list[tuple[bytes, bytes]]", http_scope["headers"])
        request = UpgradeRequest(http_scope["method"], path, http_scope["http_version"], headers)
        result = HANDSHAKES[bool(self._config.ws_per_message_deflate)].negotiate(request)
        if isinstance(result, Response):
            self._send_refusal(result)
            return
        self._handshake = result
        self._reader = MessageReader(result.window_bits)
        if trailing_data:
            self._reader.feed(trailing_data)
            self._client_memory.hold(HeldPart.RECEIVED, self, len(trailing_data))
        # As for requests, uvicorn waits for these tasks when the server shuts down.
        task = self._loop.create_task(self._run_app(self._build_scope(http_scope, path)))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _build_scope(self, http_scope: Mapping[str, Any], target: str) -> dict[str, Any]:
        path, _, query = target.partition("?")
        root = http_scope["root_path"]
        offered = [value for name, value in http_scope["headers"] if name == SUBPROTOCOL_HEADER]
        return {
            "type": "websocket",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if http_scope["scheme"] == "https" else "ws",
            "server": http_scope["server"],
            "client": http_scope["client"],
            "root_path": root,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": (root + path).encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": http_scope["headers"],
            "subprotocols": [
                name.strip() for value in offered for name in value.decode("latin-1").split(",")
            ],
            "state": http_scope["state"],
            "extensions": self._build_extensions(),
        }

    def _build_extensions(self) -> dict[str, Any]:
        extensions: dict[str, Any] = {"websocket.http.response": {}, TAKEOVER: self._take_over}
        if self._open_connection is not None:
            extensions[OPEN_CONNECTION] = self._open_connection
        tls_extension = build_tls_extension(self.transport)
        if tls_extension is not None:
            extensions[TLS_EXTENSION] = tls_extension
        return extensions

    async def _run_app(self, scope: Any) -> None:
        try:
            await self._config.loaded_app(scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except asyncio.CancelledError:  # the server shuts down, or the socket is closed
            self._fail(HTTPStatus.SERVICE_UNAVAILABLE)
            raise
        except BaseException:
            log.exception("the application failed on a WebSocket")
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR)
        else:
            if not self._is_closed:
                log.error("the application neither took over nor refused a WebSocket")
                self._fail(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _fail(self, status: HTTPStatus) -> None:
        if self._connection is None:
            self._reject(status)
        elif not self._connection.closed:
            self._connection.fail(1011, "the gateway failed; its log says why")

    # The protocol of the transport, until the application accepts.

    def data_received(self, data: bytes) -> None:
        """Buffer data that the client sends before the accept."""
        if self._is_closed:
            return
        self._reader.feed(data)
        self._client_memory.hold(HeldPart.RECEIVED, self, self._reader.held_bytes)
        if (
            self._reader.buffered_bytes >= WebSocketConnection.MAX_SLICE_BYTES
            and self.transport.is_reading()
        ):
            self.transport.pause_reading()

    def release_memory(self) -> None:
        """Disconnect a client that sends much before it is accepted."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._client_memory.release(HeldPart.RECEIVED, self)
        self._server_state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._open_connection is not None:
            self._open_connection()
        self._disconnected.set()

    def shutdown(self) -> None:
        """Refuse the handshake. Called by uvicorn when the server shuts down before an accept."""
        self._reject(HTTPStatus.SERVICE_UNAVAILABLE)

    def _reject(self, status: HTTPStatus) -> None:
        self._send_refusal(HANDSHAKES[False].reject(status, ""))

    def _send_refusal(self, response: Response) -> None:
        """Respond by HTTP, and discard input until the client closes its side.

        As in `GatewayProtocol`, closing at once could lose the response.
        """
        if self._is_closed or self.transport.is_closing():
            return
        self._is_closed = True
        self._disconnected.set()
        self.transport.write(response.serialize())
        half_close(self.transport)
        if not self.transport.is_reading():
            self.transport.resume_reading()
        self._timer = self._loop.call_later(self.LINGER_S, self.transport.abort)

    # The ASGI callables.

    async def receive(self) -> dict[str, Any]:
        if not self._is_connect_received:
            self._is_connect_received = True
            return {"type": "websocket.connect"}
        await self._disconnected.wait()
        return {"type": "websocket.disconnect", "code": ABNORMAL_CLOSURE, "reason": ""}

    async def send(self, message: Mapping[str, Any]) -> None:
        """Take the application's answer to the handshake."""
        message_type = message["type"].removeprefix("websocket.")
        if self._is_closed or self.transport.is_closing():
            raise ClientDisconnected
        if self._connection is not None:
            raise RuntimeError(f"{message['type']} behind websocket.accept")
        if message_type == "accept":
            self._accept(message)
        elif message_type == "close":
            self._reject(HTTPStatus.FORBIDDEN)
        elif message_type.startswith("http.response"):
            self._handle_denial(message_type, message)
        else:
            raise RuntimeError(f"{message['type']} before websocket.accept")

    def _accept(self, message: Mapping[str, Any]) -> None:
        """Complete the handshake, and give the transport to a `WebSocketConnection`."""
        headers = [*self._server_state.default_headers, *message.get("headers", ())]
        if message.get("subprotocol"):
            headers.append((b"Sec-WebSocket-Protocol", message["subprotocol"].encode("ascii")))
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        head = self._handshake.head + lines + b"\r\n"
        self._server_state.connections.discard(self)
        self._client_memory.release(HeldPart.RECEIVED, self)
        ping_scheduler = _ping_schedulers.get(self._server_state)
        if ping_scheduler is None:
            ping_scheduler = _ping_schedulers[self._server_state] = PingScheduler(
                self._loop, self.CONNECTION_CLASS.PING_INTERVAL_S
            )
        connections = cast("set[Any]", self._server_state.connections)
        self._connection = self.CONNECTION_CLASS(
            self.transport,
            self._reader,
            ping_scheduler,
            connections,
            handshake_response=head,
            deflate=self._handshake.deflate,
            open_connection=self._open_connection,
            client_memory=self._client_memory,
        )

    def _take_over(self, listener: MessageListener) -> Socket:
        """Give the connection to a listener. It is the value of the `TAKEOVER` extension."""
        connection, self._connection = self._connection, None
        if connection is None:
            raise RuntimeError("a WebSocket is taken over once, behind websocket.accept")
        self._is_closed = True
        connection.set_listener(listener)
        return connection

    def _handle_denial(self, message_type: str, message: Mapping[str, Any]) -> None:
        """Collect a denial response, and send it when it is complete (ASGI, denial responses)."""
        if message_type == "http.response.start":
            pairs = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in message["headers"]]
            self._denial_response = message["status"], Headers(pairs), b""
            return
        assert self._denial_response is not None
        status, headers, body = self._denial_response
        body += message.get("body", b"")
        self._denial_response = status, headers, body
        if not message.get("more_body", False):
            for name, value in (("Connection", "close"), ("Content-Length", str(len(body)))):
                headers.setdefault(name, value)
            self._send_refusal(Response(status, HTTPStatus(status).phrase, headers, body))
