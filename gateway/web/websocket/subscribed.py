"""One stream on a WebSocket: opened, changed in place, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.requests import HTTPConnection

from gateway.hub.fanout.client import Handover
from gateway.hub.wires.websocket import WebSocket, label_member
from gateway.web.access import Granted
from gateway.web.routing.query import is_grouped
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.open_streams import Next, Opened
from gateway.wire.websocket import insert_member

from .caller import Caller
from .messages import Choice
from .request import Query, chosen, over, request_of, split
from .socket import Socket


class Hall(Protocol):
    """Whose stream it is."""

    @property
    def routes(self) -> Routes: ...

    @property
    def caller(self) -> Caller: ...

    @property
    def socket(self) -> Socket: ...

    def challenge(self, guard: str, expires: float) -> None:
        """What this guard granted a stream is over then."""

    def reopen(self, stream: Subscribed, after: Handover) -> None:
        """It shows something else from here on."""

    def ended(self, stream: Subscribed) -> None:
        """Its `end` was sent."""

    def filled(self, stream: Subscribed) -> None:
        """The socket is full of what it sent: it is the turn of others now."""


class Subscribed(Opened):
    """A stream of a socket; the outlet of its clients.

    query: what the messages chose is in there.
    label: its id on a socket with several streams; None on the socket of a route's own path.
    write: finished frames, to the socket.
    """

    __slots__ = ("_granted", "_hall", "_member", "_stopped", "label", "reason", "write")

    # `_member`: the label as every message has it.

    def __init__(
        self,
        hall: Hall,
        label: str | None,
        match: Match,
        query: Query,
    ) -> None:
        super().__init__(hall.routes, match, query, hall.caller.address)
        self.label = label
        self._member = b"" if label is None else label_member(label)
        self.reason = ""
        self._hall = hall
        self._stopped = False
        self._granted = 0
        # One without a label is alone on its socket, and spared a call: 0.07 us of 2.3.
        write: Callable[[bytes], None] = (
            hall.socket.write if label is None else self._write_labelled
        )
        self.write = write

    async def open(
        self, request: HTTPConnection | None = None, *, after: Handover | None = None
    ) -> None:
        """Begin; from then on what there is goes to the socket by itself. request: asks for all of
        this already; it costs 9 us to make one. after: what the client before left.
        Raises RequestError, TokenError and KafkaError when it cannot be."""
        deflate = self._hall.socket.deflate
        wire = WebSocket(self.label is not None, deflate, is_grouped(self.query))
        if after is not None:
            client = await self.routes.go_on(self.match, self.query, wire, after)
        else:
            if request is not None:  # it was accepted since its route was looked up
                self.match = await self.routes.refresh(self.match, request)
            if request is None or "last-event-id" in request.headers:  # which is no part of `query`
                request = request_of(self.match.path, self.query)
            client = await self.routes.open(self.match, request, wire)
        self._client = client
        if self.is_over:  # its client went away meanwhile
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
        if self.is_over:
            return
        self._begin(client)
        client.attach(self)

    def grant(self, records: int) -> None:
        if self._client is not None:
            self._client.grant(records)
        else:
            self._granted += records

    async def changed(self, choice: Choice, granted: Granted) -> Next:
        """What it is to show instead, from where it stands, with nothing done yet. A path brings
        its own query; without one, all that is not chosen stays as the last change left it. Raises
        RequestError for what cannot be, and HTTPException 404."""
        path, query = self.match.path, self.query
        if self._next is not None:
            path, query = self._next.match.path, self._next.query
        if choice.path is not None:
            kept = [pair for pair in query if pair[0] in ("until", "grouped")]
            path, query = split(choice.path)
            query += [pair for pair in kept if pair[0] not in dict(query)]
        query = over(query, chosen(choice))
        match = self.routes.match(path)._replace(granted=granted)
        return Next(match, query, await self.routes.view(match, query), anew=True)

    def stop(self) -> None:
        self._stopped = True
        if self._client is not None:
            self._client.end("unsubscribed")

    def close(self) -> None:
        """Without a word."""
        client, self._client = self._client, None
        self.over()
        if client is not None:
            client.end("closed")  # who waits for BEGIN waits no longer
            client.close()
        self.write = _nowhere  # or it would be a reference cycle

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._hall.socket.transport

    # the outlet

    @property
    def full(self) -> bool:
        return self._hall.socket.full

    def _write_labelled(self, data: bytes) -> None:
        socket, labelled = self._hall.socket, insert_member(data, self._member)
        if self._client is not None:  # the hub has counted what all share
            self._client.subscription.traffic.bytes += len(labelled) - len(data)
        socket.write(labelled)
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
        self.over()
        self._hall.ended(self)

    def _challenge(self, guard: str, expires: float) -> None:
        self._hall.challenge(guard, expires)

    def hand_over(self) -> None:
        self._hall.reopen(self, self._handed())


def _nowhere(data: bytes) -> None:
    """Nobody is there any more."""
