"""One stream on a WebSocket: opened, changed in place, ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from starlette.requests import HTTPConnection

from ..hub.client import Client
from ..hub.messages import CHANGED, WebSocket
from ..hub.view import View
from .access import Granted
from .caller import Caller
from .messages import Choice
from .request import Query, chosen, over, request_of, split
from .routes import Match, Routes
from .socket import Socket

MOST_CREDIT = 2**53


class Next(NamedTuple):
    """What a stream is to show from its next opening on."""

    match: Match
    path: str
    query: Query
    topics: tuple[str, ...]


class Hall(Protocol):
    """Whose stream it is."""

    @property
    def routes(self) -> Routes: ...

    @property
    def caller(self) -> Caller: ...

    @property
    def socket(self) -> Socket: ...

    def reopen(self, stream: Subscribed) -> None:
        """It shows something else from here on."""

    def ended(self, stream: Subscribed) -> None:
        """Its `end` was sent."""

    def filled(self, stream: Subscribed) -> None:
        """The socket is full of what it sent: it is the turn of others now."""


class Subscribed:
    """A stream from its first opening to its end, through every change of what it shows; the
    outlet of its clients.

    match: the route of `path`. query: as in a URL; what the messages chose is in there.
    alone: no other stream is on this socket.
    write: finished frames, to the socket.
    """

    __slots__ = (
        "_begun", "_client", "_closed", "_granted", "_hall", "_next", "_stopped", "label",
        "match", "path", "query", "reason", "write",
    )  # fmt: skip

    def __init__(
        self,
        hall: Hall,
        label: str | None,
        match: Match,
        path: str,
        query: Query,
        *,
        alone: bool = False,
    ) -> None:
        self.label = label
        self.match = match
        self.path = path
        self.query = query
        self.reason = ""
        self._hall = hall
        self._client: Client | None = None
        self._begun = False  # a change waits for BEGIN, when it is found out where to start
        self._next: Next | None = None
        self._stopped = self._closed = False
        self._granted = 0
        write: Callable[[bytes], None] = hall.socket.write if alone else self._write_in_turn
        self.write = write  # one that is alone is spared a call: 0.07 us of 2.3

    @property
    def matches(self) -> list[Match]:
        """What it shows, and what it was told to show next."""
        return [self.match] if self._next is None else [self.match, self._next.match]

    async def open(self, request: HTTPConnection | None = None, *, changed: bool = False) -> None:
        """Begin; from then on what there is goes to the socket by itself. request: asks for all of
        this already; it costs 9 us to make one. changed: the client was begun before.
        Raises RequestError, TokenError and KafkaError when it cannot be."""
        hall = self._hall
        wire = WebSocket(self.label, hall.socket.deflate, changed)
        if request is None or "last-event-id" in request.headers:  # which is no part of `query`
            request = request_of(self.path, self.query, hall.caller.connection())
        client = self._client = await hall.routes.open(self.match, request, wire)
        if self._closed:  # its client went away meanwhile
            self.close()
            return
        try:
            client.grant(self._granted)
            self._granted = 0
            if self._stopped:
                client.end("unsubscribed")
            await client.ready()
        except BaseException:
            self.close()
            raise
        if self._closed:
            return
        self._begun = True
        if self._next is not None:
            client.end(CHANGED)
        client.attach(self)

    def grant(self, records: int) -> None:
        if self._client is not None:
            self._client.grant(records)
        else:
            self._granted += records

    async def change(self, choice: Choice, granted: Granted) -> None:
        """Show something else from where it stands. A path brings its own query; without one, all
        that is not chosen stays as the last change left it. Raises RequestError for what cannot
        be, and HTTPException 404; all is as it was then."""
        path, query = self.path, self.query
        if self._next is not None:
            path, query = self._next.path, self._next.query
        if choice.path is not None:
            ends = [pair for pair in query if pair[0] == "until"]
            path, query = split(choice.path)
            query = query if "until" in dict(query) else query + ends
        query = over(query, chosen(choice))
        match = self._hall.routes.match(path)._replace(granted=granted)
        view = await self._view(match, path, query)
        self._go_to(Next(match, path, query, view.topics))

    async def renew(self, granted: Granted) -> None:
        """Go on as who is known now: until that is over, and with what is shown to it then. Raises
        RequestError for what cannot be; all is as it was then."""
        at = self._next or Next(self.match, self.path, self.query, ())
        match = at.match._replace(granted=granted)
        view = await self._view(match, at.path, at.query)
        seen = await self._view(at.match, at.path, at.query)
        if self._next is None and view == seen:
            self.match = match
            if self._client is not None:
                self._client.expire_at(granted.expires)
        else:
            self._go_to(Next(match, at.path, at.query, view.topics))

    async def _view(self, match: Match, path: str, query: Query) -> View:
        request = request_of(path, query, self._hall.caller.connection())
        return await self._hall.routes.view(match, request)

    def _go_to(self, next: Next) -> None:
        self._next = next
        if self._client is not None and self._begun:
            self._client.end(CHANGED)

    def stop(self) -> None:
        self._stopped = True
        if self._client is not None:
            self._client.end("unsubscribed")

    def close(self) -> None:
        """Without a word."""
        client, self._client, self._closed = self._client, None, True
        if client is not None:
            client.end("closed")  # who waits for BEGIN waits no longer
            client.close()

    # the outlet

    @property
    def full(self) -> bool:
        return self._hall.socket.full

    def _write_in_turn(self, data: bytes) -> None:
        socket = self._hall.socket
        socket.write(data)
        if socket.full:
            self._hall.filled(self)

    def drained(self) -> None:
        if self._client is not None:
            self._client.drained()

    def finish(self, data: bytes) -> None:
        client, self._client, self._begun = self._client, None, False
        if data:
            self.write(data)
        if client is None:
            return
        self.reason = client.subscription.ended or ""
        if self._next is not None and self.reason == CHANGED:
            self._move_on(client)
            self._hall.reopen(self)
        else:
            self._hall.ended(self)

    def _move_on(self, client: Client) -> None:
        """From where the client stands; among topics of which it read none, as a new stream."""
        assert self._next is not None
        self.match, self.path, query, topics = self._next
        self._next = None
        told, subscription = {"credit": "", "lastEventId": ""}, client.subscription
        if subscription.credit is not None:
            told["credit"] = str(min(subscription.credit, MOST_CREDIT))
        if subscription.count is not None:
            told["until"] = str(subscription.count)
        if not subscription.channel.tail.ids.keys().isdisjoint(topics):
            told["lastEventId"] = subscription.position.decode()
        self.query = over(query, told)
