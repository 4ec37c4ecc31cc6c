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
from gateway.wire.reader import Reader

from .connection import Peer
from .handshake import HANDSHAKES, Asked
from .pings import Pulse
from .socket import GONE, Listener, Socket

log = logging.getLogger(__name__)

PROTOCOLS = b"sec-websocket-protocol"

_pulses: WeakKeyDictionary[ServerState, Pulse] = WeakKeyDictionary()


class WebSocketProtocol(asyncio.Protocol):
    """See the module. PEER: another limit is a subclass with another one."""

    PEER: type[Peer] = Peer
    LINGER_SECONDS = 2.0
    QUEUE = 32  # messages that wait for the application before no more are read

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
        self._server = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._events: deque[dict[str, Any]] = deque([{"type": "websocket.connect"}])
        self._waiting: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._peer: Peer | None = None
        self._denial: tuple[int, Headers, bytes] | None = None
        self._over = self._taken = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(
        self, transport: asyncio.Transport, asked: HTTPScope, target: bytes, behind: bytes
    ) -> None:
        """Take over a connection. asked: of the request, as far as uvicorn fills it in for an
        upgrade. behind: what came after the head."""
        self.transport = transport
        self._server.connections.add(self)  # type: ignore[arg-type]
        path, headers = target.decode(), cast("list[tuple[bytes, bytes]]", asked["headers"])
        told = Asked(asked["method"], path, asked["http_version"], headers)
        agreed = HANDSHAKES[bool(self._config.ws_per_message_deflate)].answer(told)
        if isinstance(agreed, Response):
            self._refuse(agreed)
            return
        self._agreed = agreed
        self._reader = Reader(agreed.window)
        if behind:
            self._reader.feed(behind)
        task = self._loop.create_task(self._run(self._scope_of(asked, path)))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _scope_of(self, asked: HTTPScope, target: str) -> dict[str, Any]:
        path, _, query = target.partition("?")
        root = asked["root_path"]
        offered = [value for name, value in asked["headers"] if name == PROTOCOLS]
        return {
            "type": "websocket",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if asked["scheme"] == "https" else "ws",
            "server": asked["server"],
            "client": asked["client"],
            "root_path": root,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": (root + path).encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": asked["headers"],
            "subprotocols": [
                each.strip() for value in offered for each in value.decode("latin-1").split(",")
            ],
            "state": asked["state"],
            "extensions": self._extensions(),
        }

    def _extensions(self) -> dict[str, Any]:
        offered: dict[str, Any] = {"websocket.http.response": {}, TAKEOVER: self._take}
        shown = tls.extension(self.transport)
        return offered if shown is None else {**offered, tls.TLS: shown}

    async def _run(self, scope: Any) -> None:
        try:
            await self._config.loaded_app(scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except asyncio.CancelledError:  # the server ends, and has waited long enough
            self._end()
            raise
        except BaseException:
            log.exception("the application failed on a WebSocket")
            self._fail()
        else:
            if self._peer is None and not self._over:
                log.error("the application neither accepted nor refused a WebSocket")
                self._fail()
            elif self._peer is not None and not self._taken:
                self._peer.close(1000)

    def _fail(self) -> None:
        if self._peer is None:
            self._reject(HTTPStatus.INTERNAL_SERVER_ERROR)
        elif not self._taken:
            self._peer.fail(1011, "the gateway failed; its log says why")

    # Before the accept, what comes waits.

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._reader.feed(data)
        if self._reader.held >= Peer.SLICE and self.transport.is_reading():
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.lost(GONE, "")

    def shutdown(self) -> None:
        """The server ends, and nobody was accepted yet."""
        self._end()

    def _end(self) -> None:
        if self._peer is None:
            self._reject(HTTPStatus.SERVICE_UNAVAILABLE)
        elif not self._taken:
            self._peer.fail(1012, "the server restarts")

    def _reject(self, status: HTTPStatus) -> None:
        self._refuse(HANDSHAKES[False].reject(status, ""))
        self.lost(GONE, "")

    def _refuse(self, response: Response) -> None:
        """Answer as HTTP, and read the other side to its end."""
        if self._over or self.transport.is_closing():
            return
        self._over = True
        self.transport.write(response.serialize())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if not self.transport.is_reading():
            self.transport.resume_reading()
        self._timer = self._loop.call_later(self.LINGER_SECONDS, self.transport.abort)

    # The application's side.

    async def receive(self) -> dict[str, Any]:
        while not self._events:
            self._waiting = self._loop.create_future()
            await self._waiting
        event = self._events.popleft()
        if self._peer is not None and not self.busy:
            self._peer.go_on()
        return event

    async def send(self, message: Mapping[str, Any]) -> None:
        kind = message["type"].removeprefix("websocket.")
        await self._writable.wait()
        if self._peer is not None:
            self._say(self._peer, kind, message)
        elif self._over or self.transport.is_closing():
            raise ClientDisconnected
        elif kind == "accept":
            self._accept(message)
        elif kind == "close":
            self._reject(HTTPStatus.FORBIDDEN)
        elif kind.startswith("http.response"):
            self._deny(kind, message)
        else:
            raise RuntimeError(f"{message['type']} before websocket.accept")

    def _accept(self, message: Mapping[str, Any]) -> None:
        told = [*self._server.default_headers, *message.get("headers", ())]
        if message.get("subprotocol"):
            told.append((b"Sec-WebSocket-Protocol", message["subprotocol"].encode("ascii")))
        head = self._agreed.head + b"".join([b"%b: %b\r\n" % each for each in told]) + b"\r\n"
        self._server.connections.discard(self)
        pulse = _pulses.get(self._server)
        if pulse is None:
            pulse = _pulses[self._server] = Pulse(self._loop, self.PEER.PING_SECONDS)
        connections = cast("set[Any]", self._server.connections)
        self._peer = self.PEER(
            self.transport,
            self._reader,
            pulse,
            connections,
            greeting=head,
            deflate=self._agreed.deflate,
        )
        self._loop.call_soon(self._attend)

    def _attend(self) -> None:
        """Nobody took it over: it is heard by events."""
        if self._peer is not None and not self._taken:
            self._attending = True
            self._peer.attend(self)

    def _take(self, listener: Listener) -> Socket | None:
        if self._peer is None or self._attending or self._peer.closed:
            return None
        self._taken = True
        self._peer.attend(listener)
        return self._peer

    _attending = False

    def _say(self, peer: Peer, kind: str, message: Mapping[str, Any]) -> None:
        if peer.closed or self._taken:
            raise ClientDisconnected
        if kind == "send":
            text = message.get("text")
            if text is not None:
                make = websocket.deflated if peer.deflate else websocket.frame
                peer.write(make(text.encode()))
            else:
                peer.write(websocket.binary(message["bytes"]))
            if peer.full:
                self._writable.clear()
        elif kind == "close":
            peer.close(message.get("code", 1000), message.get("reason") or "")
        else:
            raise RuntimeError(f"{message['type']} behind websocket.accept")

    def _deny(self, kind: str, message: Mapping[str, Any]) -> None:
        if kind == "http.response.start":
            told = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in message["headers"]]
            self._denial = message["status"], Headers(told), b""
            return
        assert self._denial is not None
        status, headers, body = self._denial
        body += message.get("body", b"")
        self._denial = status, headers, body
        if not message.get("more_body", False):
            for name, value in (("Connection", "close"), ("Content-Length", str(len(body)))):
                headers.setdefault(name, value)
            self._refuse(Response(status, HTTPStatus(status).phrase, headers, body))
            self.lost(GONE, "")

    # It is the listener itself where nobody took over.

    @property
    def busy(self) -> bool:
        return len(self._events) >= self.QUEUE

    def heard(self, message: str | bytes) -> None:
        part = "text" if isinstance(message, str) else "bytes"
        self._tell({"type": "websocket.receive", part: message})

    def drained(self) -> None:
        self._writable.set()

    def lost(self, code: int, reason: str) -> None:
        self._writable.set()  # whoever waits to send learns that it is over
        self._tell({"type": "websocket.disconnect", "code": code, "reason": reason})

    def _tell(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
