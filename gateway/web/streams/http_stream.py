"""A stream that is the answer to a request: on its connection, or by ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Self

from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.errors import GatewayError
from gateway.hub.fanout.client import END_CHANGED, Client, Handover
from gateway.hub.wires.wire import Wire
from gateway.web.http.outlet import HttpOutlet
from gateway.web.routing.limits import ReleaseSlot
from gateway.web.routing.query import get_query_pairs
from gateway.web.routing.routes import Match, Routes

from .open_streams import OpenStream, get_end_reason
from .renewal import RENEWAL_PATH_PREFIX, RENEWAL_PATH_SUFFIX

log = logging.getLogger(__name__)


class HttpStream(OpenStream):
    """See the module. Its connection tells it (`outlet.Taker`) what becomes of it.

    leave: called when it is over.
    """

    __slots__ = ("_challenged_expiry", "_outlet", "_release_slot", "_root_path", "_wire")

    # `_challenged`: the expiry for which a new token was asked for: once is enough.

    def __init__(
        self, routes: Routes, match: Match, request: Request, wire: Wire, release_slot: ReleaseSlot
    ) -> None:
        client = request.scope.get("client")
        super().__init__(routes, match, get_query_pairs(request), client[0] if client else "")
        self._wire = wire
        self._release_slot = release_slot
        self._challenged_expiry = 0.0
        self._root_path: str = request.scope.get("root_path", "")
        self._outlet: HttpOutlet | None = None

    @classmethod
    async def open(cls, routes: Routes, match: Match, request: Request, wire: Wire) -> Self:
        """It counts as a connection. Raises Busy, RequestError, TokenError and KafkaError."""
        leave = await routes.limits.acquire_slot(request.scope, match.granted)
        try:
            match = await routes.refresh(match, request)
        except BaseException:
            leave()
            raise
        stream = cls(routes, match, request, wire, leave)
        try:
            stream._set_client(await routes.open_client(match, request, wire))
        except BaseException:
            stream.mark_closed()
            raise
        return stream

    async def wait_until_ready(self) -> None:
        """Once BEGIN is due; closed if nobody waits for that any more."""
        try:
            if self._client is not None:
                await self._client.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def attach(self, outlet: HttpOutlet, head: bytes) -> None:
        """Have it written there, behind this."""
        client, self._outlet = self._client, outlet
        if client is not None:
            client.attach(outlet, head)
            self._on_attached(client)

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """All that is sent, where nothing can be attached."""
        try:
            while (client := self._client) is not None:
                self._on_attached(client)
                async for data in client.iter_bytes():
                    yield data
                if client.subscription.end_reason != END_CHANGED:
                    return
                last = await self._open_next_client(self._take_handover())
                if last:
                    yield last
        finally:
            self.close()

    # the connection

    @property
    def transport(self) -> asyncio.Transport | None:
        return None if self._outlet is None else self._outlet.transport

    def on_drained(self) -> None:
        if self._client is not None:
            self._client.on_drained()

    def probe(self) -> None:
        if self._client is not None:
            self._client.probe()

    def close(self) -> None:
        """It is lost, or nobody waits for the stream any more."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self.mark_closed()

    def mark_closed(self) -> None:
        if not self.is_closed:
            super().mark_closed()
            self._outlet = None
            self._release_slot()

    # from one client to the next

    def _set_client(self, client: Client) -> None:
        self._client = client
        client.call_when_closed(self._on_client_closed)

    def _on_client_closed(self) -> None:
        """Its client is gone; one that is pulled also where another is to come."""
        if self._client is not None and self._client.subscription.end_reason != END_CHANGED:
            self._client = None
            self.mark_closed()

    def hand_over(self) -> None:
        self.routes.stream_registry.start_task(self._attach_next(self._take_handover()))

    async def _attach_next(self, handover: Handover) -> None:
        last = await self._open_next_client(handover)
        client, outlet = self._client, self._outlet
        if outlet is None:
            return  # the client went away meanwhile
        if client is None:
            outlet.finish(last)
            self.mark_closed()
        else:
            client.attach(outlet)
            self._on_attached(client)

    async def _open_next_client(self, handover: Handover) -> bytes:
        """Have the next client, its BEGIN due; where there can be none, the last bytes."""
        try:
            client = await self.routes.resume_client(self.match, self.query, self._wire, handover)
            if self.is_closed:
                client.close()
                return b""
            self._set_client(client)
            await client.wait_until_ready()
            return b""
        except (GatewayError, HTTPException) as exc:
            log.info("a stream of %s cannot go on: %s", self.match.path, exc)
            return self._wire.encode_end(
                get_end_reason(exc), handover.position, handover.delivered_sum
            )

    def _send_challenge(self, guard: str, expires_at: float) -> None:
        if expires_at == self._challenged_expiry:
            return
        self._challenged_expiry = expires_at
        url = f"{self._root_path}{RENEWAL_PATH_PREFIX}{self.routes.stream_registry.ensure_renewal_name(self)}{RENEWAL_PATH_SUFFIX}"
        if self._client is not None:
            self._client.send_event(
                "challenge", {"guard": guard, "expires": expires_at, "url": url}
            )
