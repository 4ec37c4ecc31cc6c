"""A stream that is the answer to a request: on its connection, or by ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Self

from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.errors import GatewayError
from gateway.hub.fanout.client import CHANGED, Client, Handover
from gateway.hub.wires.wire import Wire
from gateway.web.http.outlet import HttpOutlet
from gateway.web.routing.limits import Leave
from gateway.web.routing.query import pairs
from gateway.web.routing.routes import Match, Routes

from .open_streams import Opened, reason_of
from .renewal import BEFORE, BEHIND

log = logging.getLogger(__name__)


class HttpStream(Opened):
    """See the module. Its connection tells it (`outlet.Taker`) what becomes of it.

    leave: called when it is over.
    """

    __slots__ = ("_challenged", "_leave", "_outlet", "_root", "_wire")

    # `_challenged`: the expiry for which a new token was asked for: once is enough.

    def __init__(
        self, routes: Routes, match: Match, request: Request, wire: Wire, leave: Leave
    ) -> None:
        client = request.scope.get("client")
        super().__init__(routes, match, pairs(request), client[0] if client else "")
        self._wire = wire
        self._leave = leave
        self._challenged = 0.0
        self._root: str = request.scope.get("root_path", "")
        self._outlet: HttpOutlet | None = None

    @classmethod
    async def open(cls, routes: Routes, match: Match, request: Request, wire: Wire) -> Self:
        """It counts as a connection. Raises Busy, RequestError, TokenError and KafkaError."""
        leave = await routes.limits.enter(request.scope, match.granted)
        try:
            match = await routes.refresh(match, request)
        except BaseException:
            leave()
            raise
        stream = cls(routes, match, request, wire, leave)
        try:
            stream._take(await routes.open(match, request, wire))
        except BaseException:
            stream.over()
            raise
        return stream

    async def ready(self) -> None:
        """Once BEGIN is due; closed if nobody waits for that any more."""
        try:
            if self._client is not None:
                await self._client.ready()
        except BaseException:
            self.close()
            raise

    def attach(self, outlet: HttpOutlet, head: bytes) -> None:
        """Have it written there, behind this."""
        client, self._outlet = self._client, outlet
        if client is not None:
            client.attach(outlet, head)
            self._begin(client)

    async def stream(self) -> AsyncIterator[bytes]:
        """All that is sent, where nothing can be attached."""
        try:
            while (client := self._client) is not None:
                self._begin(client)
                async for data in client.stream():
                    yield data
                if client.subscription.ended != CHANGED:
                    return
                last = await self._succeed(self._handed())
                if last:
                    yield last
        finally:
            self.close()

    # the connection

    @property
    def transport(self) -> asyncio.Transport | None:
        return None if self._outlet is None else self._outlet.transport

    def drained(self) -> None:
        if self._client is not None:
            self._client.drained()

    def probe(self) -> None:
        if self._client is not None:
            self._client.probe()

    def close(self) -> None:
        """It is lost, or nobody waits for the stream any more."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self.over()

    def over(self) -> None:
        if not self.is_over:
            super().over()
            self._outlet = None
            self._leave()

    # from one client to the next

    def _take(self, client: Client) -> None:
        self._client = client
        client.after(self._left)

    def _left(self) -> None:
        """Its client is gone; one that is pulled also where another is to come."""
        if self._client is not None and self._client.subscription.ended != CHANGED:
            self._client = None
            self.over()

    def hand_over(self) -> None:
        self.routes.openings.do(self._attach_next(self._handed()))

    async def _attach_next(self, after: Handover) -> None:
        last = await self._succeed(after)
        client, outlet = self._client, self._outlet
        if outlet is None:
            return  # the client went away meanwhile
        if client is None:
            outlet.finish(last)
            self.over()
        else:
            client.attach(outlet)
            self._begin(client)

    async def _succeed(self, after: Handover) -> bytes:
        """Have the next client, its BEGIN due; where there can be none, the last bytes."""
        try:
            client = await self.routes.go_on(self.match, self.query, self._wire, after)
            if self.is_over:
                client.close()
                return b""
            self._take(client)
            await client.ready()
            return b""
        except (GatewayError, HTTPException) as exc:
            log.info("a stream of %s cannot go on: %s", self.match.path, exc)
            return self._wire.end(reason_of(exc), after.position, after.got)

    def _challenge(self, guard: str, expires: float) -> None:
        if expires == self._challenged:
            return
        self._challenged = expires
        url = f"{self._root}{BEFORE}{self.routes.openings.name(self)}{BEHIND}"
        if self._client is not None:
            self._client.tell("challenge", {"guard": guard, "expires": expires, "url": url})
