"""The WebSocket edge: a handshake as ASGI, and then a `Peer`.

For uvicorn's `ws`, with `GatewayProtocol`, which read and bounded the head. An application that
accepts may take the connection over at once, before it awaits anything else:

    await send({"type": "websocket.accept"})
    socket = scope["extensions"][TAKEOVER](listener)    # a `Socket`; None if it is too late

It hears by calls then, and the ASGI call may return: its task, its scope and this protocol are
gone, and the connection stays. One that does not take it over receives and sends as ever.

A connect to `/ws` takes 1.1 times the CPU of one with a GET of `/health/live`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from uvicorn._types import HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.http11 import Response

from gateway.web.http import client_certificate as tls
from gateway.web.http.outlet import TAKEOVER
from gateway.wire import websocket
from gateway.wire.message_reader import MessageReader

from .connection import WebSocketConnection
from .handshake import HANDSHAKES, UpgradeRequest
from .pings import PingScheduler
from .socket import ABNORMAL_CLOSURE, MessageListener, Socket

log = logging.getLogger(__name__)

SUBPROTOCOL_HEADER = b"sec-websocket-protocol"

_ping_schedulers: WeakKeyDictionary[ServerState, PingScheduler] = WeakKeyDictionary()


class WebSocketProtocol(asyncio.Protocol):
    """See the module. PEER: another limit is a subclass with another one."""

    CONNECTION_CLASS: type[WebSocketConnection] = WebSocketConnection
    LINGER_S = 2.0
    MAX_QUEUED_EVENTS = 32  # messages that wait for the application before no more are read

    # `_events`:  what the application has not received yet.
    # `_waiting`: it waits for more of them; `_writable` for room.
    # `_peer`:    from the accept on. `_denial`: what is sent instead, head and body so far.

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
        self._events: deque[dict[str, Any]] = deque([{"type": "websocket.connect"}])
        self._receive_waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._connection: WebSocketConnection | None = None
        self._denial_response: tuple[int, Headers, bytes] | None = None
        self._is_closed = self._is_taken_over = False
        self._timer: asyncio.TimerHandle | None = None

    def start_handshake(
        self,
        transport: asyncio.Transport,
        http_scope: HTTPScope,
        target: bytes,
        trailing_data: bytes,
    ) -> None:
        """Take over a connection. asked: of the request, as far as uvicorn fills it in for an
        upgrade. behind: what came after the head."""
        self.transport = transport
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        path, headers = target.decode(), cast("list[tuple[bytes, bytes]]", http_scope["headers"])
        told = UpgradeRequest(http_scope["method"], path, http_scope["http_version"], headers)
        agreed = HANDSHAKES[bool(self._config.ws_per_message_deflate)].negotiate(told)
        if isinstance(agreed, Response):
            self._send_refusal(agreed)
            return
        self._handshake = agreed
        self._reader = MessageReader(agreed.window_bits)
        if trailing_data:
            self._reader.feed(trailing_data)
        task = self._loop.create_task(self._run_app(self._build_scope(http_scope, path)))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _build_scope(self, http_scope: HTTPScope, target: str) -> dict[str, Any]:
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
                each.strip() for value in offered for each in value.decode("latin-1").split(",")
            ],
            "state": http_scope["state"],
            "extensions": self._build_extensions(),
        }

    def _build_extensions(self) -> dict[str, Any]:
        offered: dict[str, Any] = {"websocket.http.response": {}, TAKEOVER: self._take_over}
        shown = tls.build_tls_extension(self.transport)
        return offered if shown is None else {**offered, tls.TLS_EXTENSION: shown}

    async def _run_app(self, scope: Any) -> None:
        try:
            await self._config.loaded_app(scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except asyncio.CancelledError:  # the server ends, and has waited long enough
            self._close_for_restart()
            raise
        except BaseException:
            log.exception("the application failed on a WebSocket")
            self._close_after_error()
        else:
            if self._connection is None and not self._is_closed:
                log.error("the application neither accepted nor refused a WebSocket")
                self._close_after_error()
            elif self._connection is not None and not self._is_taken_over:
                self._connection.close(1000)

    def _close_after_error(self) -> None:
        if self._connection is None:
            self._reject(HTTPStatus.INTERNAL_SERVER_ERROR)
        elif not self._is_taken_over:
            self._connection.fail(1011, "the gateway failed; its log says why")

    # Before the accept, what comes waits.

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._reader.feed(data)
        if (
            self._reader.buffered_bytes >= WebSocketConnection.MAX_SLICE_BYTES
            and self.transport.is_reading()
        ):
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._server_state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.on_closed(ABNORMAL_CLOSURE, "")

    def shutdown(self) -> None:
        """The server ends, and nobody was accepted yet."""
        self._close_for_restart()

    def _close_for_restart(self) -> None:
        if self._connection is None:
            self._reject(HTTPStatus.SERVICE_UNAVAILABLE)
        elif not self._is_taken_over:
            self._connection.fail(1012, "the server restarts")

    def _reject(self, status: HTTPStatus) -> None:
        self._send_refusal(HANDSHAKES[False].reject(status, ""))
        self.on_closed(ABNORMAL_CLOSURE, "")

    def _send_refusal(self, response: Response) -> None:
        """Answer as HTTP, and read the other side to its end."""
        if self._is_closed or self.transport.is_closing():
            return
        self._is_closed = True
        self.transport.write(response.serialize())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if not self.transport.is_reading():
            self.transport.resume_reading()
        self._timer = self._loop.call_later(self.LINGER_S, self.transport.abort)

    # The application's side.

    async def receive(self) -> dict[str, Any]:
        while not self._events:
            self._receive_waiter = self._loop.create_future()
            await self._receive_waiter
        event = self._events.popleft()
        if self._connection is not None and not self.is_busy:
            self._connection.resume_reading()
        return event

    async def send(self, message: Mapping[str, Any]) -> None:
        kind = message["type"].removeprefix("websocket.")
        await self._writable.wait()
        if self._connection is not None:
            self._send_message(self._connection, kind, message)
        elif self._is_closed or self.transport.is_closing():
            raise ClientDisconnected
        elif kind == "accept":
            self._accept(message)
        elif kind == "close":
            self._reject(HTTPStatus.FORBIDDEN)
        elif kind.startswith("http.response"):
            self._build_denial(kind, message)
        else:
            raise RuntimeError(f"{message['type']} before websocket.accept")

    def _accept(self, message: Mapping[str, Any]) -> None:
        told = [*self._server_state.default_headers, *message.get("headers", ())]
        if message.get("subprotocol"):
            told.append((b"Sec-WebSocket-Protocol", message["subprotocol"].encode("ascii")))
        head = self._handshake.head + b"".join([b"%b: %b\r\n" % each for each in told]) + b"\r\n"
        self._server_state.connections.discard(self)
        pulse = _ping_schedulers.get(self._server_state)
        if pulse is None:
            pulse = _ping_schedulers[self._server_state] = PingScheduler(
                self._loop, self.CONNECTION_CLASS.PING_INTERVAL_S
            )
        connections = cast("set[Any]", self._server_state.connections)
        self._connection = self.CONNECTION_CLASS(
            self.transport,
            self._reader,
            pulse,
            connections,
            handshake_response=head,
            deflate=self._handshake.deflate,
        )
        self._loop.call_soon(self._listen)

    def _listen(self) -> None:
        """Nobody took it over: it is heard by events."""
        if self._connection is not None and not self._is_taken_over:
            self._is_listening = True
            self._connection.set_listener(self)

    def _take_over(self, listener: MessageListener) -> Socket | None:
        if self._connection is None or self._is_listening or self._connection.closed:
            return None
        self._is_taken_over = True
        self._connection.set_listener(listener)
        return self._connection

    _is_listening = False

    def _send_message(
        self, connection: WebSocketConnection, message_type: str, message: Mapping[str, Any]
    ) -> None:
        if connection.closed or self._is_taken_over:
            raise ClientDisconnected
        if message_type == "send":
            text = message.get("text")
            if text is not None:
                make = (
                    websocket.encode_deflated_text if connection.deflate else websocket.encode_text
                )
                connection.write(make(text.encode()))
            else:
                connection.write(websocket.encode_binary(message["bytes"]))
            if connection.full:
                self._writable.clear()
        elif message_type == "close":
            connection.close(message.get("code", 1000), message.get("reason") or "")
        else:
            raise RuntimeError(f"{message['type']} behind websocket.accept")

    def _build_denial(self, message_type: str, message: Mapping[str, Any]) -> None:
        if message_type == "http.response.start":
            told = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in message["headers"]]
            self._denial_response = message["status"], Headers(told), b""
            return
        assert self._denial_response is not None
        status, headers, body = self._denial_response
        body += message.get("body", b"")
        self._denial_response = status, headers, body
        if not message.get("more_body", False):
            for name, value in (("Connection", "close"), ("Content-Length", str(len(body)))):
                headers.setdefault(name, value)
            self._send_refusal(Response(status, HTTPStatus(status).phrase, headers, body))
            self.on_closed(ABNORMAL_CLOSURE, "")

    # It is the listener itself where nobody took over.

    @property
    def is_busy(self) -> bool:
        return len(self._events) >= self.MAX_QUEUED_EVENTS

    def on_message(self, message: str | bytes) -> None:
        part = "text" if isinstance(message, str) else "bytes"
        self._queue_event({"type": "websocket.receive", part: message})

    def on_drained(self) -> None:
        self._writable.set()

    def on_closed(self, code: int, reason: str) -> None:
        self._writable.set()  # whoever waits to send learns that it is over
        self._queue_event({"type": "websocket.disconnect", "code": code, "reason": reason})

    def _queue_event(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        if self._receive_waiter is not None and not self._receive_waiter.done():
            self._receive_waiter.set_result(None)
