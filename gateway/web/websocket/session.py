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
from gateway.web.routing.limits import Place, source
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.open_streams import Next

from .caller import Caller
from .conversation import FAILED, NORMAL, POLICY, RESTART, TRY_AGAIN, Conversation, Work
from .messages import BadMessage, Change, Credit, Ping, Produce, Said, Subscribe, Token, Unsubscribe
from .produces import Produces
from .request import Query, asked
from .socket import Socket
from .subscribed import Subscribed

log = logging.getLogger(__name__)

MOST_STREAMS = 100  # on one socket
OTHER = "this token is another client's; open a socket of its own"


class Session(Conversation):
    """One accepted socket, and the hall of its streams.

    token: what it came with. place: of its connection, among those that are counted.

    An idle one holds 0.25 KB, and as much for each stream beside its client. With all that is below
    it a socket of `/ws` is 3.5 KB, one of a route's own path with its stream 4.9 (PSS, of 5,000).
    """

    __slots__ = (
        "_attempts_so_far", "_challenged", "_closing", "_leaving", "_own", "_place", "_produces",
        "_streams", "_token", "caller", "routes",
    )  # fmt: skip

    # `_own`:     the stream of a route's own path.
    # `_challenged`: the expiry for which a new token was asked for: many streams have the same.
    # `_closing`: what to close with once the records under way are answered.

    def __init__(self, routes: Routes, caller: Caller, token: str | None, place: Place) -> None:
        super().__init__()
        self.routes = routes
        self.caller = caller
        self._own: Subscribed | None = None
        self._token = token
        self._produces: Produces | None = None  # most sockets only listen
        self._attempts_so_far: Attempts | None = None  # or have the stream of their path
        self._streams: dict[str | None, Subscribed] = {}
        self._leaving = False
        self._closing: tuple[int, str] | None = None
        self._challenged = 0.0
        self._place = place

    def start(self, socket: Socket, match: Match | None, query: Query) -> None:
        """match: of the stream of a route's own path, which is `open`ed then; None on MULTIPLEX."""
        self.socket = socket
        hubs = self.routes.hubs
        hubs.leaving.add(self._leave)
        if match is not None:
            self._own = self._streams[None] = Subscribed(self, None, match, query)
        if hubs.draining:  # since the handshake
            self._leave()

    async def open(self, handshake: HTTPConnection) -> None:
        """The stream of a route's own path, which its handshake asks for."""
        if self._own is not None:
            await self._open(self._own, handshake)

    def _leave(self) -> None:
        """The gateway drains: `end` goes out on every stream, then the socket is closed."""
        self._leaving = True
        if not self._streams:
            self._close(RESTART, "the gateway restarts; come back")

    def _close(self, code: int, reason: str) -> None:
        """Once every record that was taken on is answered."""
        if self._produces is not None and self._produces.under_way:
            self._closing = code, reason
        else:
            self.socket.close(code, reason)

    def drained(self) -> None:
        for stream in list(self._streams.values()):
            stream.drained()
        super().drained()

    def lost(self, code: int, reason: str) -> None:
        super().lost(code, reason)
        self.routes.hubs.leaving.discard(self._leave)
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._own = None
        self._place()

    # what the client says

    def take(self, said: Said) -> Work | None:
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
                self.answer("pong", said.id)
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
        await self._attempts.count()
        path, query = asked(said)
        match = await self._admitted(self.routes.match(path), self._token)
        try:
            await self._place.identify(match.granted)
            match = await self._refresh_match(match)
        except Busy as exc:
            self.error(said.id, exc)
            if not self._streams:
                self._close(TRY_AGAIN, "busy; come back")
            return
        stream = self._streams[said.id] = Subscribed(self, said.id, match, query)
        self.do(self._open(stream))

    async def _change(self, said: Change) -> None:
        stream = self._stream(said.id)
        await self._attempts.count()
        match = stream.matches[-1]
        if said.path is not None:
            if self._own is not None:
                raise _bad("this socket is the stream of its path; leave 'path' out", said.id)
            match = self.routes.match(said.path.partition("?")[0])
        match = await self._admitted(match, self._token)
        await self._place.identify(match.granted)
        next = await stream.changed(said, match.granted)
        while not self.routes.is_current(match):  # what was admitted was the route of before
            match = await self._refresh_match(match)
            next = await stream.changed(said, match.granted)
        stream.go_to(next)

    def _stream(self, label: str | None) -> Subscribed:
        found = self._streams.get(label)
        if found is None:
            named = "this socket has no stream" if label is None else f"no subscription '{label}'"
            raise BadMessage("Unknown subscription", f"{named}; subscribe first", label)
        return found

    async def _renew(self, jwt: str) -> None:
        """The new token must be good for every stream that runs, and of the same client; otherwise
        the old one stays, for all of them."""
        await self._attempts.count()
        self._attempts.note_token()
        while True:
            settings = self.routes.settings
            renewed = await self._admit_streams(jwt)
            if self.routes.settings is settings:  # else other guards have a say by now
                break
        self._token = jwt
        for stream, next in renewed:
            stream.go_to(next)
        self.answer("renewed")

    async def _admit_streams(self, jwt: str) -> list[tuple[Subscribed, Next]]:
        renewed: list[tuple[Subscribed, Next]] = []
        for stream in list(self._streams.values()):
            for match in stream.matches:
                granted = (await self._admitted(match, jwt)).granted
                if granted.subject != match.granted.subject:
                    raise RequestError(403, "Forbidden", OTHER)
            renewed.append((stream, await stream.renewed(granted)))
        return renewed

    async def _admitted(self, match: Match, token: str | None) -> Match:
        try:
            match = await self.routes.admit(match, self.caller.connection(), token)
        except RequestError as exc:
            self._attempts.note_refused(exc.status)
            raise
        if match.granted:
            self._attempts.note_admitted()
        return match

    @property
    def _attempts(self) -> Attempts:
        if self._attempts_so_far is None:
            limits = self.routes.limits
            self._attempts_so_far = Attempts(limits, source(self.caller.address))
        return self._attempts_so_far

    def error(self, label: str | None, exc: Exception) -> None:
        super().error(label, exc)
        attempts = self._attempts_so_far
        if attempts is None:
            return
        if attempts.has_guessed:
            self.socket.close(POLICY, "one wrong token after the other")
        elif attempts.is_flood:
            self.socket.close(TRY_AGAIN, "asks too often; come back")

    async def _refresh_match(self, match: Match) -> Match:
        return await self.routes.refresh(match, self.caller.connection(), self._token)

    # the hall of its streams

    def challenge(self, guard: str, expires: float) -> None:
        if expires != self._challenged:
            self._challenged = expires
            self.answer("challenge", guard=guard, expires=expires)

    def reopen(self, stream: Subscribed, after: Handover) -> None:
        self.do(self._open(stream, after=after))

    async def _open(
        self,
        stream: Subscribed,
        request: HTTPConnection | None = None,
        *,
        after: Handover | None = None,
    ) -> None:
        try:
            await stream.open(request, after=after)
        except (GatewayError, HTTPException) as exc:
            self.error(stream.label, exc)
            self._end(stream, TRY_AGAIN if problems.status(exc) == 503 else POLICY)
        except Exception as exc:
            log.exception("the stream of %s failed", stream.match.path)
            self.error(stream.label, exc)
            self._end(stream, FAILED)

    def ended(self, stream: Subscribed) -> None:
        self._end(stream, RESTART if self.routes.hubs.draining else NORMAL)

    def _end(self, stream: Subscribed, code: int) -> None:
        stream.close()
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
        if self._produces is None:
            self._produces = Produces(self.routes, self.caller)
        self._produces.take_on(said, closing=self._closing is not None)
        self.do(self._write(self._produces, said, self.hold()))

    async def _write(self, produces: Produces, said: Produce, held: int) -> None:
        path = self._own.match.path if self._own is not None else said.path
        try:
            told = await produces.write(said, path, self._token, self._attempts)
            self.answer("produced", said.id, **told)
        except (GatewayError, HTTPException) as exc:
            self.error(said.id, exc)
        finally:
            self.release(held)
            if self._closing is not None and not produces.under_way:
                self.socket.close(*self._closing)


def _bad(detail: str, about: str | None) -> BadMessage:
    return BadMessage("Bad message", detail, about)
