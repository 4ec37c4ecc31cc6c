"""A session: the streams that the client of one socket has, and what it says of them.

What the socket does not take holds up its own streams only, each in its ring.
"""

from __future__ import annotations

import logging
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from gateway.errors import Busy, GatewayError, RequestError
from gateway.hub.fanout.client import Handover
from gateway.web.http import problems
from gateway.web.routing.attempts import Attempts
from gateway.web.routing.limits import ConnectionSlot, normalize_address
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.open_streams import StreamChange

from .handshake_scope import HandshakeScope
from .message_processor import (
    INTERNAL_ERROR,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
    CoroutineFactory,
    MessageProcessor,
)
from .messages import (
    BadMessageError,
    ChangeMessage,
    ClientMessage,
    CreditMessage,
    PingMessage,
    ProduceMessage,
    SubscribeMessage,
    TokenMessage,
    UnsubscribeMessage,
)
from .producer import SocketProducer
from .request import QueryPairs, build_target
from .socket import Socket
from .stream import WebSocketStream

log = logging.getLogger(__name__)

MAX_STREAMS = 100  # on one socket
OTHER_CLIENT_MESSAGE = "this token is another client's; open a socket of its own"


class Session(MessageProcessor):
    """One accepted socket, and the hall of its streams.

    token: what it came with. place: of its connection, among those that are counted.

    An idle one holds 0.25 KB, and as much for each stream beside its client. With all that is below
    it a socket of `/ws` is 3.5 KB, one of a route's own path with its stream 4.9 (PSS, of 5,000).
    """

    __slots__ = (
        "_challenged_expiry",
        "_is_leaving",
        "_lazy_attempts",
        "_path_stream",
        "_pending_close",
        "_producer",
        "_slot",
        "_streams",
        "_token",
        "handshake_scope",
        "routes",
    )  # fmt: skip

    # `_own`:     the stream of a route's own path.
    # `_challenged`: the expiry for which a new token was asked for: many streams have the same.
    # `_closing`: what to close with once the records under way are answered.

    def __init__(
        self,
        routes: Routes,
        handshake_scope: HandshakeScope,
        token: str | None,
        slot: ConnectionSlot,
    ) -> None:
        super().__init__()
        self.routes = routes
        self.handshake_scope = handshake_scope
        self._path_stream: WebSocketStream | None = None
        self._token = token
        self._producer: SocketProducer | None = None  # most sockets only listen
        self._lazy_attempts: Attempts | None = None  # or have the stream of their path
        self._streams: dict[str | None, WebSocketStream] = {}
        self._is_leaving = False
        self._pending_close: tuple[int, str] | None = None
        self._challenged_expiry = 0.0
        self._slot = slot

    def start(self, socket: Socket, match: Match | None, query: QueryPairs) -> None:
        """match: of the stream of a route's own path, which is `open`ed then; None on MULTIPLEX."""
        self.socket = socket
        hubs = self.routes.hubs
        hubs.drain_callbacks.add(self._on_drain)
        if match is not None:
            self._path_stream = self._streams[None] = WebSocketStream(self, None, match, query)
        if hubs.draining:  # since the handshake
            self._on_drain()

    async def open_path_stream(self, handshake: HTTPConnection) -> None:
        """The stream of a route's own path, which its handshake asks for."""
        if self._path_stream is not None:
            await self._open_stream(self._path_stream, handshake)

    def _on_drain(self) -> None:
        """The gateway drains: `end` goes out on every stream, then the socket is closed."""
        self._is_leaving = True
        if not self._streams:
            self._close_when_answered(SERVICE_RESTART, "the gateway restarts; come back")

    def _close_when_answered(self, code: int, reason: str) -> None:
        """Once every record that was taken on is answered."""
        if self._producer is not None and self._producer.in_flight:
            self._pending_close = code, reason
        else:
            self.socket.close(code, reason)

    def on_drained(self) -> None:
        for stream in list(self._streams.values()):
            stream.on_drained()
        super().on_drained()

    def on_closed(self, code: int, reason: str) -> None:
        super().on_closed(code, reason)
        self.routes.hubs.drain_callbacks.discard(self._on_drain)
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._path_stream = None
        self._slot()

    # what the client says

    def handle_message(self, message: ClientMessage) -> CoroutineFactory | None:
        match message:
            case SubscribeMessage():
                return partial(self._subscribe, message)
            case ChangeMessage():
                return partial(self._change, message)
            case TokenMessage():
                return partial(self._renew_token, message.jwt)
            case UnsubscribeMessage():
                self._get_stream(message.id).stop()
            case CreditMessage():
                self._get_stream(message.id).grant_credit(message.n)
            case ProduceMessage():
                self._start_produce(message)
            case PingMessage():
                self.send_message("pong", message.id)
        return None

    async def _subscribe(self, message: SubscribeMessage) -> None:
        if self._path_stream is not None:
            raise _build_bad_message(
                "this socket is the stream of its path; subscribe on /ws", message.id
            )
        if message.id in self._streams:
            detail = f"'{message.id}' is in use; unsubscribe it, or change it"
            raise BadMessageError("Subscription exists", detail, message.id)
        if len(self._streams) >= MAX_STREAMS:
            detail = f"this socket has {MAX_STREAMS} streams; open another"
            raise BadMessageError("Too many subscriptions", detail, message.id)
        await self._attempts.count_attempt()
        path, query = build_target(message)
        match = await self._admit(self.routes.match(path), self._token)
        try:
            await self._slot.identify(match.granted)
            match = await self._refresh_match(match)
        except Busy as exc:
            self.send_error(message.id, exc)
            if not self._streams:
                self._close_when_answered(TRY_AGAIN_LATER, "busy; come back")
            return
        stream = self._streams[message.id] = WebSocketStream(self, message.id, match, query)
        self.start_task(self._open_stream(stream))

    async def _change(self, message: ChangeMessage) -> None:
        stream = self._get_stream(message.id)
        await self._attempts.count_attempt()
        match = stream.matches[-1]
        if message.path is not None:
            if self._path_stream is not None:
                raise _build_bad_message(
                    "this socket is the stream of its path; leave 'path' out", message.id
                )
            match = self.routes.match(message.path.partition("?")[0])
        match = await self._admit(match, self._token)
        await self._slot.identify(match.granted)
        next = await stream.build_change(message, match.granted)
        while not self.routes.is_current(match):  # what was admitted was the route of before
            match = await self._refresh_match(match)
            next = await stream.build_change(message, match.granted)
        stream.apply_change(next)

    def _get_stream(self, label: str | None) -> WebSocketStream:
        found = self._streams.get(label)
        if found is None:
            named = "this socket has no stream" if label is None else f"no subscription '{label}'"
            raise BadMessageError("Unknown subscription", f"{named}; subscribe first", label)
        return found

    async def _renew_token(self, jwt: str) -> None:
        """The new token must be good for every stream that runs, and of the same client; otherwise
        the old one stays, for all of them."""
        await self._attempts.count_attempt()
        self._attempts.note_token()
        while True:
            settings = self.routes.settings
            renewed = await self._admit_streams(jwt)
            if self.routes.settings is settings:  # else other guards have a say by now
                break
        self._token = jwt
        for stream, next in renewed:
            stream.apply_change(next)
        self.send_message("renewed")

    async def _admit_streams(self, jwt: str) -> list[tuple[WebSocketStream, StreamChange]]:
        renewed: list[tuple[WebSocketStream, StreamChange]] = []
        for stream in list(self._streams.values()):
            for match in stream.matches:
                granted = (await self._admit(match, jwt)).granted
                if granted.subject != match.granted.subject:
                    raise RequestError(403, "Forbidden", OTHER_CLIENT_MESSAGE)
            renewed.append((stream, await stream.build_renewal(granted)))
        return renewed

    async def _admit(self, match: Match, token: str | None) -> Match:
        try:
            match = await self.routes.admit(match, self.handshake_scope.build_connection(), token)
        except RequestError as exc:
            self._attempts.note_refused(exc.status)
            raise
        if match.granted:
            self._attempts.note_admitted()
        return match

    @property
    def _attempts(self) -> Attempts:
        if self._lazy_attempts is None:
            limits = self.routes.limits
            self._lazy_attempts = Attempts(limits, normalize_address(self.handshake_scope.address))
        return self._lazy_attempts

    def send_error(self, label: str | None, exc: Exception) -> None:
        super().send_error(label, exc)
        attempts = self._lazy_attempts
        if attempts is None:
            return
        if attempts.has_guessed:
            self.socket.close(POLICY_VIOLATION, "one wrong token after the other")
        elif attempts.is_flooding:
            self.socket.close(TRY_AGAIN_LATER, "asks too often; come back")

    async def _refresh_match(self, match: Match) -> Match:
        return await self.routes.refresh(
            match, self.handshake_scope.build_connection(), self._token
        )

    # the hall of its streams

    def send_challenge(self, guard: str, expires_at: float) -> None:
        if expires_at != self._challenged_expiry:
            self._challenged_expiry = expires_at
            self.send_message("challenge", guard=guard, expires=expires_at)

    def reopen(self, stream: WebSocketStream, handover: Handover) -> None:
        self.start_task(self._open_stream(stream, handover=handover))

    async def _open_stream(
        self,
        stream: WebSocketStream,
        request: HTTPConnection | None = None,
        *,
        handover: Handover | None = None,
    ) -> None:
        try:
            await stream.open(request, handover=handover)
        except (GatewayError, HTTPException) as exc:
            self.send_error(stream.label, exc)
            self._end_stream(
                stream, TRY_AGAIN_LATER if problems.get_status(exc) == 503 else POLICY_VIOLATION
            )
        except Exception as exc:
            log.exception("the stream of %s failed", stream.match.path)
            self.send_error(stream.label, exc)
            self._end_stream(stream, INTERNAL_ERROR)

    def on_stream_ended(self, stream: WebSocketStream) -> None:
        self._end_stream(stream, SERVICE_RESTART if self.routes.hubs.draining else NORMAL_CLOSURE)

    def _end_stream(self, stream: WebSocketStream, code: int) -> None:
        stream.close()
        self._streams.pop(stream.label, None)
        if self._path_stream is not None:
            self._close_when_answered(code, stream.close_reason)
        elif self._is_leaving and not self._streams:
            self._close_when_answered(SERVICE_RESTART, "the gateway restarts; come back")

    def on_stream_full(self, stream: WebSocketStream) -> None:
        if self._streams.pop(stream.label, None) is not None:
            self._streams[stream.label] = stream  # `drained` comes to it last

    # produce

    def _start_produce(self, message: ProduceMessage) -> None:
        if self._producer is None:
            self._producer = SocketProducer(self.routes, self.handshake_scope)
        self._producer.accept(message, is_closing=self._pending_close is not None)
        self.start_task(self._write_record(self._producer, message, self.hold_message()))

    async def _write_record(
        self, producer: SocketProducer, message: ProduceMessage, held_bytes: int
    ) -> None:
        path = self._path_stream.match.path if self._path_stream is not None else message.path
        try:
            told = await producer.write_record(message, path, self._token, self._attempts)
            self.send_message("produced", message.id, **told)
        except (GatewayError, HTTPException) as exc:
            self.send_error(message.id, exc)
        finally:
            self.release_held(held_bytes)
            if self._pending_close is not None and not producer.in_flight:
                self.socket.close(*self._pending_close)


def _build_bad_message(detail: str, message_id: str | None) -> BadMessageError:
    return BadMessageError("Bad message", detail, message_id)
