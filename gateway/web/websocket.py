"""WebSocket sessions: one stream on a route's own path, or any number of them on `/ws`.

Every stream has a task of its own, so that one which waits (for Kafka, for credit) keeps
nobody; what the socket does not take holds up its own streams only, each in its ring.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from ..errors import GatewayError, RequestError
from ..hub.messages import WebSocket
from . import messages, problems
from .access import bearer
from .letter import letter_of
from .messages import BadMessage, Change, Credit, Ping, Produce, Said, Subscribe, Token, Unsubscribe
from .origin import origin_allowed
from .routes import Routes
from .socket import Disconnected, Socket
from .subscribed import Subscribed, asked

log = logging.getLogger(__name__)

MOST_STREAMS = 100  # on one socket
MOST_PRODUCES = 100  # of one socket, under way
BAD_IN_A_ROW = 16  # messages after which a client is taken to be none of ours

MULTIPLEX = "/ws"
NORMAL, UNSUPPORTED, POLICY, FAILED, RESTART, TRY_AGAIN = 1000, 1003, 1008, 1011, 1012, 1013


async def serve(routes: Routes, path: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one socket. path: percent-encoded; MULTIPLEX, or a route's own."""
    socket = Socket(scope, receive, send)
    connection = socket.connection
    try:
        if not _origin_allowed(routes, socket):
            raise RequestError(
                403, "Foreign origin", "pages of this origin may not connect; see access-control"
            )
        own = None
        if path == MULTIPLEX:
            routes.must_run()
        else:
            query = connection.query_params.multi_items()
            own = Subscribed(routes, socket, None, path, query)
            await routes.check(own.match, connection)
    except (GatewayError, HTTPException) as exc:
        await socket.refuse(problems.problem(exc, connection.url.path))
        return
    await socket.accept()
    await Session(routes, socket, own).run()


class Session:
    """One accepted socket. own: the stream of a route's own path; None on `/ws`."""

    def __init__(self, routes: Routes, socket: Socket, own: Subscribed | None) -> None:
        self._routes = routes
        self._socket = socket
        self._own = own
        self._token = bearer(socket.connection)
        self._writer = routes.hub.publisher.writer()
        self._streams: dict[str | None, Subscribed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._produces = 0
        self._bad = 0

    async def run(self) -> None:
        """Until either side closes."""
        hub = self._routes.hub
        hub.leaving.add(self._leave)
        try:
            if self._own is not None:
                self._begin(self._own)
            if hub.draining:  # since the handshake
                self._leave()
            while True:
                await self._hear(await self._socket.receive())
        except Disconnected:
            pass
        finally:
            hub.leaving.discard(self._leave)
            await self._stop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _leave(self) -> None:
        """The gateway drains: `end` goes out on every stream, then the socket is closed."""
        self._do(self._close_after_streams())

    async def _close_after_streams(self) -> None:
        while self._streams:  # one that is subscribed to now is ended, too
            await asyncio.gather(*(stream.done.wait() for stream in self._streams.values()))
        await self._socket.close(RESTART, "the gateway restarts; come back")

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._did)

    def _did(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Disconnected):
            log.error("a WebSocket session failed", exc_info=error)

    # what the client says

    async def _hear(self, heard: str | bytes) -> None:
        if isinstance(heard, bytes):
            await self._socket.close(UNSUPPORTED, "send text: JSON")
            raise Disconnected
        try:
            said = messages.read(heard)
        except BadMessage as exc:
            await self._error(exc.about, exc)
            self._bad += 1
            if self._bad >= BAD_IN_A_ROW:
                await self._socket.close(POLICY, f"{self._bad} bad messages in a row")
                raise Disconnected from None
            return
        self._bad = 0  # what can be read and not be done, such as one more grant, may come often
        try:
            await self._take(said)
        except (GatewayError, HTTPException) as exc:
            await self._error(None if isinstance(said, Token) else said.id, exc)

    async def _take(self, said: Said) -> None:
        """Raises RequestError for what cannot be done."""
        match said:
            case Subscribe():
                await self._subscribe(said)
            case Change():
                await self._change(said)
            case Unsubscribe():
                self._stream(said.id).stop()
            case Credit():
                self._stream(said.id).grant(said.n)
            case Produce():
                self._produce(said)
            case Token():
                await self._renew(said.jwt)
            case Ping():
                await self._answer("pong", said.id)

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
        stream = Subscribed(self._routes, self._socket, said.id, path, query)
        await self._routes.check(stream.match, self._socket.connection, self._token)
        self._begin(stream)

    async def _change(self, said: Change) -> None:
        stream = self._stream(said.id)
        match = stream.matches[-1]
        if said.path is not None:
            if self._own is not None:
                raise _bad("this socket is the stream of its path; leave 'path' out", said.id)
            match = self._routes.match(said.path.partition("?")[0])
        await self._routes.check(match, self._socket.connection, self._token)
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
            await self._routes.check(match, self._socket.connection, jwt)
        self._token = jwt
        await self._answer("renewed")

    # streams

    def _begin(self, stream: Subscribed) -> None:
        self._streams[stream.label] = stream
        self._do(self._run(stream))

    async def _run(self, stream: Subscribed) -> None:
        code = NORMAL
        try:
            await stream.run()
            if self._routes.hub.draining:
                code = RESTART
        except (GatewayError, HTTPException) as exc:
            await self._error(stream.label, exc)
            code = TRY_AGAIN if problems.status(exc) == 503 else POLICY
        except Disconnected:
            raise
        except Exception as exc:
            log.exception("the stream of %s failed", stream.path)
            await self._error(stream.label, exc)
            code = FAILED
        finally:
            self._streams.pop(stream.label, None)
            stream.done.set()
        if self._own is not None:
            await self._socket.close(code, stream.reason)

    # produce

    def _produce(self, said: Produce) -> None:
        if self._produces >= MOST_PRODUCES:
            detail = f"{MOST_PRODUCES} records of this socket are under way; wait for 'produced'"
            raise BadMessage("Too many produces", detail, said.id)
        self._produces += 1
        self._do(self._write(said))

    async def _write(self, said: Produce) -> None:
        try:
            path = self._own.path if self._own is not None else said.path
            letter = await letter_of(self._routes, said, path, self._socket.connection, self._token)
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
            await self._answer("produced", said.id, **told, **again)
        except (GatewayError, HTTPException) as exc:
            await self._error(said.id, exc)
        finally:
            self._produces -= 1

    # answers

    async def _answer(self, kind: str, label: str | None = None, **data: Any) -> None:
        wire = WebSocket(label, self._socket.deflate)
        await self._socket.send(wire.message(kind, data))

    async def _error(self, label: str | None, exc: Exception) -> None:
        await self._answer("error", label, code=problems.code(exc), **problems.members(exc))


def _origin_allowed(routes: Routes, socket: Socket) -> bool:
    headers = socket.connection.headers
    return origin_allowed(
        routes.settings.listen.access_control,
        headers.get("origin"),
        headers.get("host", ""),
        cookies="cookie" in headers,
    )


def _bad(detail: str, about: str | None) -> BadMessage:
    return BadMessage("Bad message", detail, about)
