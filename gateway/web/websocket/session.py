"""A session: the streams of one socket, and the messages that open, change and end them.

A socket whose client does not read delays its own streams only. Each of them waits at its position
in the ring of its channel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import assert_never

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from gateway.client_memory import HeldPart
from gateway.errors import Busy, GatewayError, RequestError
from gateway.hub.fanout.client import Handover
from gateway.web.access import Granted
from gateway.web.http import problems
from gateway.web.http.limits import Attempts, ConnectionSlot, normalize_address
from gateway.web.routing.messages import (
    BadMessageError,
    ChangeMessage,
    ClientMessage,
    CreditMessage,
    PingMessage,
    ProduceMessage,
    QueryPairs,
    SubscribeMessage,
    TokenMessage,
    UnsubscribeMessage,
    build_target,
)
from gateway.web.routing.open_streams import StreamChange
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes

from .connection import Socket
from .handshake import HandshakeScope
from .message_processor import (
    INTERNAL_ERROR,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
    CoroutineFactory,
    MessageProcessor,
    SocketProducer,
)
from .stream import WebSocketStream, has_selection

log = logging.getLogger(__name__)

MAX_STREAMS = 100  # on one socket
# Of the filters and fields that a socket's client has chosen: about 0.5 us of each record.
MAX_SOCKET_CONDITIONS = 640
OTHER_CLIENT_MESSAGE = "this token is another client's; open a socket of its own"
RESTART_REASON = "the gateway restarts; come back"


class Session(MessageProcessor):
    """One accepted socket, with its streams and the records that it writes.

    Created by `endpoint`, and referred to by its socket until that is closed. It owns
    its streams. A stream is in the session from before it is opened until it has
    ended.

    An idle session holds 0.25 KB, and as much for each stream besides its client. With everything
    below it, a socket of `/ws` takes 3.5 KB, and one of a route's path with its stream 4.9 KB (PSS
    of 5,000).
    """

    __slots__ = (
        "_challenged_expiry", "_is_leaving", "_lazy_attempts", "_path_stream", "_pending_close",
        "_producer", "_slot", "_streams", "_token", "handshake_scope", "routes",
    )  # fmt: skip

    def __init__(
        self,
        routes: Routes,
        handshake_scope: HandshakeScope,
        token: str | None,
        slot: ConnectionSlot,
    ) -> None:
        """Prepare a session, which gives the slot back at its end."""
        super().__init__(routes.hubs.client_memory)
        self.routes = routes
        self.handshake_scope = handshake_scope
        self._path_stream: WebSocketStream | None = None  # of a route's path; None on /ws
        self._token = token
        self._producer: SocketProducer | None = None  # most sockets write nothing
        self._lazy_attempts: Attempts | None = None  # and many send no message at all
        self._streams: dict[str | None, WebSocketStream] = {}
        self._is_leaving = False  # the gateway drains
        # The code and reason to close with, once all records in flight are acknowledged.
        self._pending_close: tuple[int, str] | None = None
        # The expiry for which the client was asked for a new token. Many streams have the same one.
        self._challenged_expiry = 0.0
        self._slot = slot

    def start(self, socket: Socket, match: Match | None, query: QueryPairs) -> None:
        """Begin on an accepted socket; `match` is the route of its path, None on `/ws`."""
        self.socket = socket
        self._count_kept()
        hubs = self.routes.hubs
        hubs.drain_callbacks.add(self._on_drain)
        hubs.websocket_count += 1
        if match is not None:
            self._path_stream = self._streams[None] = WebSocketStream(self, None, match, query)
        if hubs.draining:  # it began during the handshake, before the callback was added
            self._on_drain()

    def _count_kept(self) -> None:
        """Count what guards may have to look at again."""
        size = self.handshake_scope.size + len(self._token or "")
        self._client_memory.hold_if_large(HeldPart.PARSED, self, size)

    async def open_path_stream(self, handshake: HTTPConnection) -> None:
        """Open the stream that the handshake of a route's path asks for, if this is one."""
        if self._path_stream is not None:
            await self._open_stream(self._path_stream, handshake)

    def _on_drain(self) -> None:
        """Leave, as the gateway drains: each stream gets its `end`, then the socket is closed.

        The hub ends the streams. Without streams the socket is closed here.
        """
        self._is_leaving = True
        if not self._streams:
            self._close_when_answered(SERVICE_RESTART, RESTART_REASON)

    def _close_when_answered(self, code: int, reason: str) -> None:
        """Close the socket as soon as every accepted record is acknowledged or refused."""
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
        self._client_memory.release(HeldPart.PARSED, self)
        hubs = self.routes.hubs
        hubs.drain_callbacks.discard(self._on_drain)
        hubs.websocket_count -= 1
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._path_stream = None
        self._slot()

    # The messages of the client.

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
            case _:
                assert_never(message)
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
        # Counted from here on: what is refused above has asked no guard.
        await self._attempts.count_attempt()
        path, query = build_target(message)
        match = await self._admit(self.routes.match(path), self._token)
        condition_count = 0
        if has_selection(query):  # opening it finds the view in the cache
            view = await self.routes.get_view(match, query)
            condition_count = view.condition_count
            self._check_condition_count(message.id, condition_count)
        try:
            await self._slot.identify(match.granted)
            match = await self._refresh_match(match)
        except Busy as exc:
            self.send_error(message.id, exc)
            # A socket without streams would only keep its slot.
            if not self._streams:
                self._close_when_answered(TRY_AGAIN_LATER, "busy; come back later")
            return
        # Opening may take seconds. Further messages do not wait for that, only for the admission.
        stream = WebSocketStream(self, message.id, match, query, condition_count)
        self._streams[message.id] = stream
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
        change = await stream.build_change(message, match.granted)
        # If the configuration was reloaded meanwhile, the client was admitted to the old route.
        while not self.routes.is_current(match):
            match = await self._refresh_match(match)
            change = await stream.build_change(message, match.granted)
        if has_selection(change.query):
            self._check_condition_count(message.id, change.view.condition_count)
        stream.apply_change(change)

    def _check_condition_count(self, label: str | None, count: int) -> None:
        others = sum(each.condition_count for each in self._streams.values() if each.label != label)
        if others and others + count > MAX_SOCKET_CONDITIONS:  # one may have many by its route
            detail = (
                f"the streams of this socket have {MAX_SOCKET_CONDITIONS} conditions and fields; "
                "open another"
            )
            raise BadMessageError("Too many subscriptions", detail, label)

    def _get_stream(self, label: str | None) -> WebSocketStream:
        stream = self._streams.get(label)
        if stream is None:
            problem = "this socket has no stream" if label is None else f"no subscription '{label}'"
            raise BadMessageError("Unknown subscription", f"{problem}; subscribe first", label)
        return stream

    async def _renew_token(self, jwt: str) -> None:
        """Replace the token, if it is valid for every stream and of the same client.

        Otherwise the old token stays, for all streams.
        """
        await self._attempts.count_attempt()
        self._attempts.note_token()
        while True:
            settings = self.routes.settings
            renewed = await self._admit_streams(jwt)
            # If the configuration was reloaded meanwhile, other guards may have to be asked; and
            # if a reload has just come to a stream, its change is the later one.
            if self.routes.settings is settings and all(
                stream.matches[-1] is before for stream, before, _ in renewed
            ):
                break
        self._token = jwt
        self._count_kept()
        for stream, _, change in renewed:
            stream.apply_change(change)
        self.send_message("renewed")

    async def _admit_streams(self, jwt: str) -> list[tuple[WebSocketStream, Match, StreamChange]]:
        """Return what each stream is, and its change to a new token, without changing any."""
        renewed: list[tuple[WebSocketStream, Match, StreamChange]] = []
        connection = self.handshake_scope.build_connection()
        granted_by_path: dict[str, Granted] = {}
        for stream in list(self._streams.values()):
            before = stream.matches[-1]
            # A stream with a pending change is asked for on both routes.
            for match in stream.matches:
                if match.path not in granted_by_path:
                    admitted = await self._admit(match, jwt, connection)
                    granted_by_path[match.path] = admitted.granted
                granted = granted_by_path[match.path]
                if granted.subject != match.granted.subject:
                    raise RequestError(403, "Forbidden", OTHER_CLIENT_MESSAGE)
            # `granted` is of the last route, which is the one that the stream will show.
            renewed.append((stream, before, await stream.build_renewal(granted)))
            await asyncio.sleep(0)  # a hundred streams whose guards do not wait take a while
        return renewed

    async def _admit(
        self, match: Match, token: str | None, connection: HTTPConnection | None = None
    ) -> Match:
        connection = connection or self.handshake_scope.build_connection()
        try:
            match = await self.routes.admit(match, connection, token)
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
        """Send an `error` message, and close the socket of a client that causes too many."""
        super().send_error(label, exc)
        attempts = self._lazy_attempts
        if attempts is None:
            return
        if attempts.has_guessed:
            self.socket.close(POLICY_VIOLATION, "too many wrong tokens")
        elif attempts.is_flooding:
            self.socket.close(TRY_AGAIN_LATER, "too many requests; come back later")

    async def _refresh_match(self, match: Match) -> Match:
        return await self.routes.refresh(
            match, self.handshake_scope.build_connection(), self._token
        )

    # The owner of the streams.

    def send_challenge(self, guard: str, expires_at: float) -> None:
        """Ask the client for a new token, once for each expiry."""
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
        """Open a stream or its next client. If that fails, the stream ends with an `error`."""
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
        """Release a stream, and close the socket if nothing is left to do on it.

        `code` is the close code for the socket of a route's path.
        """
        stream.close()
        self._streams.pop(stream.label, None)
        if self._path_stream is not None:
            self._close_when_answered(code, stream.close_reason)
        elif self._is_leaving and not self._streams:
            self._close_when_answered(SERVICE_RESTART, RESTART_REASON)

    @property
    def streams(self) -> Mapping[str | None, WebSocketStream]:
        """The streams by label, in the order in which `on_drained` calls them."""
        return self._streams

    def on_stream_full(self, stream: WebSocketStream) -> None:
        """Move a stream to the end of the order in which `on_drained` calls them."""
        if self._streams.pop(stream.label, None) is not None:
            self._streams[stream.label] = stream

    # Records.

    def _start_produce(self, message: ProduceMessage) -> None:
        if self._producer is None:
            self._producer = SocketProducer(self.routes, self.handshake_scope, self._slot)
        accepted = self._producer.accept(message, is_closing=self._pending_close is not None)
        writing = self._write_record(self._producer, accepted, self.hold_message())
        self.start_task(writing)

    async def _write_record(
        self, producer: SocketProducer, message: ProduceMessage, held_bytes: int
    ) -> None:
        path = self._path_stream.match.path if self._path_stream is not None else None
        try:
            members = await producer.write_record(message, path, self._token, self._attempts)
            self.send_message("produced", message.id, **members)
        except (GatewayError, HTTPException) as exc:
            self.send_error(message.id, exc)
        finally:
            self.release_held(held_bytes)
            if self._pending_close is not None and not producer.in_flight:
                self.socket.close(*self._pending_close)


def _build_bad_message(detail: str, message_id: str | None) -> BadMessageError:
    return BadMessageError("Bad message", detail, message_id)
