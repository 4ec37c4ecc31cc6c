"""WebSocket sessions: one stream on a route's own path, or any number of them on `/ws`.

A session is called when its client says something, and when its socket has room again; a task
runs only while something has to wait: for access, for Kafka's answer, for a record to be written.
What a client says while that lasts is done behind it, in order. What the socket does not take
holds up its own streams only, each in its ring.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket as Connection

from ..errors import GatewayError, RequestError
from ..hub.messages import WebSocket
from ..hub.writer import Writer
from ..wire.websocket import messages as texts
from . import messages, problems
from .access import bearer
from .caller import Caller
from .letter import letter_of
from .limits import Busy, Leave
from .messages import BadMessage, Change, Credit, Ping, Produce, Said, Subscribe, Token, Unsubscribe
from .origin import origin_allowed
from .outlet import TAKEOVER
from .routes import Match, Routes
from .socket import AsgiSocket, Socket
from .subscribed import Query, Subscribed, asked

log = logging.getLogger(__name__)

PROTOCOL = "gateway.v1"
MULTIPLEX = "/ws"

MOST_STREAMS = 100  # on one socket
MOST_PRODUCES = 100  # of one socket, under way
BAD_IN_A_ROW = 16  # messages after which a client is taken to be none of ours
MOST_WAITING = 64  # messages, before no more are heard
MOST_OWED = 64 * 1024  # bytes of answers that the client does not take, likewise

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]  # not begun: it may be cut before

NORMAL, UNSUPPORTED, POLICY, FAILED, RESTART, TRY_AGAIN = 1000, 1003, 1008, 1011, 1012, 1013


async def serve(routes: Routes, path: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one socket. path: percent-encoded; MULTIPLEX, or a route's own."""
    connection = Connection(scope, receive, send)
    match = None
    try:
        if not _origin_allowed(routes, connection):
            raise RequestError(
                403, "Foreign origin", "pages of this origin may not connect; see access-control"
            )
        if path == MULTIPLEX:
            routes.must_run()
        else:
            match = routes.match(path)
            await routes.check(match, connection)
    except (GatewayError, HTTPException) as exc:
        await _refuse(connection, problems.problem(exc, connection.url.path))
        return
    try:
        leave = await routes.limits.enter(scope)
    except Busy as exc:
        await _turn_away(connection, exc)
        return
    session = Session(routes, Caller(scope), bearer(connection), leave)
    try:
        await _accept(connection)
    except BaseException:
        leave()
        raise
    take = scope.get("extensions", {}).get(TAKEOVER)
    socket: Socket | None = None if take is None else take(session)
    query = connection.query_params.multi_items()
    if socket is not None:
        session.start(socket, match, path, query)
        await session.open()
        return
    carried = AsgiSocket(session, receive, send)
    session.start(carried, match, path, query)
    session.do(session.open())
    await carried.run()


async def _accept(connection: Connection) -> None:
    """Of what the client offers, PROTOCOL is taken; a bearer token there is never echoed."""
    offered = connection.scope.get("subprotocols", ())
    await connection.accept(PROTOCOL if PROTOCOL in offered else None)


async def _turn_away(connection: Connection, exc: Busy) -> None:
    """Accepted, told and closed: of a handshake that is refused, whatever the status, a browser
    says no more than of a server that is not there (WHATWG WebSockets 4)."""
    await _accept(connection)
    told = {"code": problems.code(exc), **problems.members(exc)}
    for text in texts(WebSocket(None).message("error", told)):
        await connection.send_text(text)
    await connection.close(TRY_AGAIN, "the gateway is busy; come back")


async def _refuse(connection: Connection, response: Response) -> None:
    """Answer the handshake as HTTP, where the server can; browsers hear of a failure only."""
    if "websocket.http.response" in connection.scope.get("extensions", {}):
        await connection.send_denial_response(response)
    else:
        await connection.close(POLICY)


class Session:
    """One accepted socket: its `Listener`, and the hall of its streams.

    token: what it came with. leave: called when it is over.

    An idle one holds 0.25 KB, and as much for each stream beside its client. With all that is below
    it a socket of `/ws` is 3.5 KB, one of a route's own path with its stream 4.9 (PSS, of 5,000).
    """

    __slots__ = (
        "_bad", "_closing", "_leave_place", "_leaving", "_lost", "_owed", "_own", "_produces",
        "_streams", "_tasks", "_token", "_waiting", "_writer", "caller", "routes", "socket",
    )  # fmt: skip

    # `_own`:     the stream of a route's own path.
    # `_waiting`: what the client said since something has to wait; None while nothing has.
    # `_owed`:    bytes of answers since the socket is full.
    # `_closing`: what to close with once the records under way are answered.

    def __init__(self, routes: Routes, caller: Caller, token: str | None, leave: Leave) -> None:
        self.routes = routes
        self.caller = caller
        self.socket: Socket
        self._own: Subscribed | None = None
        self._token = token
        self._writer: Writer | None = None
        self._streams: dict[str | None, Subscribed] = {}
        self._tasks: set[asyncio.Task[None]] | None = None
        self._waiting: deque[str | bytes] | None = None
        self._produces = self._bad = self._owed = 0
        self._leaving = self._lost = False
        self._closing: tuple[int, str] | None = None
        self._leave_place = leave

    def start(self, socket: Socket, match: Match | None, path: str, query: Query) -> None:
        """match: of the stream of a route's own path, which is `open`ed then; None on MULTIPLEX."""
        self.socket = socket
        hub = self.routes.hub
        hub.leaving.add(self._leave)
        if match is not None:
            self._own = self._streams[None] = Subscribed(self, None, match, path, query, alone=True)
        if hub.draining:  # since the handshake
            self._leave()

    async def open(self) -> None:
        if self._own is not None:
            await self._open(self._own)

    def _leave(self) -> None:
        """The gateway drains: `end` goes out on every stream, then the socket is closed."""
        self._leaving = True
        if not self._streams:
            self._close(RESTART, "the gateway restarts; come back")

    def _close(self, code: int, reason: str) -> None:
        """Once every record that was taken on is answered."""
        if self._produces:
            self._closing = code, reason
        else:
            self.socket.close(code, reason)

    # the listener

    @property
    def busy(self) -> bool:
        if self._owed >= MOST_OWED:
            return True
        return self._waiting is not None and len(self._waiting) >= MOST_WAITING

    def heard(self, message: str | bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(message)
            return
        work = self._hear(message)
        if work is not None:
            self._waiting = deque()
            self.do(self._hear_on(work))

    def drained(self) -> None:
        self._owed = 0
        for stream in list(self._streams.values()):
            stream.drained()
        self.socket.go_on()

    def lost(self, code: int, reason: str) -> None:
        self._lost = True
        self.routes.hub.leaving.discard(self._leave)
        for task in self._tasks or ():
            task.cancel()
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._own = None
        self._leave_place()

    async def _hear_on(self, work: Work | None) -> None:
        """Do this, and what was said meanwhile."""
        assert self._waiting is not None
        try:
            while work is not None or self._waiting:
                if work is not None:
                    await work()
                elif self._lost:
                    return
                work = self._hear(self._waiting.popleft()) if self._waiting else None
        finally:
            self._waiting = None
        self.socket.go_on()

    # what waits

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        if self._tasks is None:  # an empty set for each socket would be 216 bytes
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._did)

    def _did(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
            self._tasks = self._tasks or None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a WebSocket session failed", exc_info=error)
            self.socket.close(FAILED, "the gateway failed; its log says why")

    # what the client says

    def _hear(self, heard: str | bytes) -> Work | None:
        """Do it, or say how it is done if that takes time."""
        if isinstance(heard, bytes):
            self.socket.close(UNSUPPORTED, "send text: JSON")
            return None
        try:
            said = messages.read(heard)
        except BadMessage as exc:
            self._error(exc.about, exc)
            self._bad += 1
            if self._bad >= BAD_IN_A_ROW:
                self.socket.close(POLICY, f"{self._bad} bad messages in a row")
            return None
        self._bad = 0  # what can be read and not be done, such as one more grant, may come often
        try:
            work = self._take(said)
        except (GatewayError, HTTPException) as exc:
            self._error(_about(said), exc)
            return None
        return None if work is None else partial(self._tried, work, said)

    async def _tried(self, work: Work, said: Said) -> None:
        try:
            await work()
        except (GatewayError, HTTPException) as exc:
            self._error(_about(said), exc)

    def _take(self, said: Said) -> Work | None:
        """Raises RequestError for what cannot be done."""
        match said:
            case Subscribe():
                return partial(self._subscribe, said)
            case Change():
                return partial(self._change, said)
            case Token():
                return partial(self._renew, said.jwt)
            case Unsubscribe():
                self._stream(said.id).stop()
            case Credit():
                self._stream(said.id).grant(said.n)
            case Produce():
                self._produce(said)
            case Ping():
                self._answer("pong", said.id)
        return None

    async def _subscribe(self, said: Subscribe) -> None:
        if self._own is not None:
            raise _bad("this socket is the stream of its path; subscribe on /ws", said.id)
        if said.id in self._streams:
            detail = f"'{said.id}' is in use; unsubscribe it, or change it"
            raise BadMessage("Subscription exists", detail, said.id)
        if len(self._streams) >= MOST_STREAMS:
            detail = f"this socket has {MOST_STREAMS} streams; open another"
            raise BadMessage("Too many subscriptions", detail, said.id)
        path, query = asked(said)
        match = self.routes.match(path)
        await self._check(match, self._token)
        stream = self._streams[said.id] = Subscribed(self, said.id, match, path, query)
        self.do(self._open(stream))

    async def _change(self, said: Change) -> None:
        stream = self._stream(said.id)
        match = stream.matches[-1]
        if said.path is not None:
            if self._own is not None:
                raise _bad("this socket is the stream of its path; leave 'path' out", said.id)
            match = self.routes.match(said.path.partition("?")[0])
        await self._check(match, self._token)
        await stream.change(said)

    def _stream(self, label: str | None) -> Subscribed:
        found = self._streams.get(label)
        if found is None:
            named = "this socket has no stream" if label is None else f"no subscription '{label}'"
            raise BadMessage("Unknown subscription", f"{named}; subscribe first", label)
        return found

    async def _renew(self, jwt: str) -> None:
        """The new token must be good for every stream that runs; the old one stays otherwise."""
        for match in [each for stream in self._streams.values() for each in stream.matches]:
            await self._check(match, jwt)
        self._token = jwt
        self._answer("renewed")

    async def _check(self, match: Match, token: str | None) -> None:
        await self.routes.check(match, self.caller.connection(), token)

    # the hall of its streams

    def reopen(self, stream: Subscribed) -> None:
        self.do(self._open(stream, changed=True))

    async def _open(self, stream: Subscribed, *, changed: bool = False) -> None:
        try:
            await stream.open(changed=changed)
        except (GatewayError, HTTPException) as exc:
            self._error(stream.label, exc)
            self._end(stream, TRY_AGAIN if problems.status(exc) == 503 else POLICY)
        except Exception as exc:
            log.exception("the stream of %s failed", stream.path)
            self._error(stream.label, exc)
            self._end(stream, FAILED)

    def ended(self, stream: Subscribed) -> None:
        self._end(stream, RESTART if self.routes.hub.draining else NORMAL)

    def _end(self, stream: Subscribed, code: int) -> None:
        self._streams.pop(stream.label, None)
        if self._own is not None:
            self._close(code, stream.reason)
        elif self._leaving and not self._streams:
            self._close(RESTART, "the gateway restarts; come back")

    def filled(self, stream: Subscribed) -> None:
        if self._streams.pop(stream.label, None) is not None:
            self._streams[stream.label] = stream  # `drained` comes to it last

    # produce

    def _produce(self, said: Produce) -> None:
        if self.routes.hub.draining or self._closing is not None:
            detail = "this connection is about to be closed; repeat it over a new one"
            raise RequestError(503, "Draining", detail)
        if self._produces >= MOST_PRODUCES:
            detail = f"{MOST_PRODUCES} records of this socket are under way; wait for 'produced'"
            raise BadMessage("Too many produces", detail, said.id)
        self._produces += 1
        self.do(self._write(said))

    async def _write(self, said: Produce) -> None:
        if self._writer is None:
            self._writer = self.routes.hub.publisher.writer()
        try:
            path = self._own.path if self._own is not None else said.path
            connection = self.caller.connection()
            letter = await letter_of(self.routes, said, path, connection, self._token)
            done = await self._writer.send(
                letter.topic,
                letter.key,
                letter.value,
                letter.headers,
                idempotency_key=said.idempotency_key,
                scope=letter.scope,
            )
            told = {"topic": done.topic, "partition": done.partition, "offset": done.offset}
            again = {"repeated": True} if done.repeated else {}
            self._answer("produced", said.id, **told, **again)
        except (GatewayError, HTTPException) as exc:
            self._error(said.id, exc)
        finally:
            self._produces -= 1
            if self._closing is not None and not self._produces:
                self.socket.close(*self._closing)

    # answers

    def _answer(self, kind: str, label: str | None = None, **data: Any) -> None:
        told = WebSocket(label, self.socket.deflate).message(kind, data)
        self.socket.write(told)
        if self.socket.full:
            self._owed += len(told)

    def _error(self, label: str | None, exc: Exception) -> None:
        self._answer("error", label, code=problems.code(exc), **problems.members(exc))


def _about(said: Said) -> str | None:
    return None if isinstance(said, Token) else said.id


def _origin_allowed(routes: Routes, connection: Connection) -> bool:
    headers = connection.headers
    return origin_allowed(
        routes.settings.listen.access_control,
        headers.get("origin"),
        headers.get("host", ""),
        cookies="cookie" in headers,
    )


def _bad(detail: str, about: str | None) -> BadMessage:
    return BadMessage("Bad message", detail, about)
