"""One stream on a WebSocket: opened, changed in place, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.requests import HTTPConnection

from gateway.hub.fanout.client import Handover
from gateway.hub.wires.websocket import WebSocketWire, encode_label
from gateway.web.access import Granted
from gateway.web.routing.query import is_grouped
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.open_streams import OpenStream, StreamChange
from gateway.wire.websocket import insert_member

from .handshake_scope import HandshakeScope
from .messages import Selection
from .request import QueryPairs, build_request, build_selection_query, merge_query, parse_target
from .socket import Socket


class StreamOwner(Protocol):
    """Whose stream it is."""

    @property
    def routes(self) -> Routes: ...

    @property
    def handshake_scope(self) -> HandshakeScope: ...

    @property
    def socket(self) -> Socket: ...

    def send_challenge(self, guard: str, expires_at: float) -> None:
        """What this guard granted a stream is over then."""

    def reopen(self, stream: WebSocketStream, handover: Handover) -> None:
        """It shows something else from here on."""

    def on_stream_ended(self, stream: WebSocketStream) -> None:
        """Its `end` was sent."""

    def on_stream_full(self, stream: WebSocketStream) -> None:
        """The socket is full of what it sent: it is the turn of others now."""


class WebSocketStream(OpenStream):
    """A stream of a socket; the outlet of its clients.

    query: what the messages chose is in there.
    label: its id on a socket with several streams; None on the socket of a route's own path.
    write: finished frames, to the socket.
    """

    __slots__ = (
        "_is_stopped",
        "_label_member",
        "_owner",
        "_pending_credit",
        "close_reason",
        "label",
        "write",
    )

    # `_member`: the label as every message has it.

    def __init__(
        self,
        owner: StreamOwner,
        label: str | None,
        match: Match,
        query: QueryPairs,
    ) -> None:
        super().__init__(owner.routes, match, query, owner.handshake_scope.address)
        self.label = label
        self._label_member = b"" if label is None else encode_label(label)
        self.close_reason = ""
        self._owner = owner
        self._is_stopped = False
        self._pending_credit = 0
        # One without a label is alone on its socket, and spared a call: 0.07 us of 2.3.
        write: Callable[[bytes], None] = (
            owner.socket.write if label is None else self._write_labelled
        )
        self.write = write

    async def open(
        self, request: HTTPConnection | None = None, *, handover: Handover | None = None
    ) -> None:
        """Begin; from then on what there is goes to the socket by itself. request: asks for all of
        this already; it costs 9 us to make one. after: what the client before left.
        Raises RequestError, TokenError and KafkaError when it cannot be."""
        deflate = self._owner.socket.deflate
        wire = WebSocketWire(self.label is not None, deflate, is_grouped(self.query))
        if handover is not None:
            client = await self.routes.resume_client(self.match, self.query, wire, handover)
        else:
            if request is not None:  # it was accepted since its route was looked up
                self.match = await self.routes.refresh(self.match, request)
            if request is None or "last-event-id" in request.headers:  # which is no part of `query`
                request = build_request(self.match.path, self.query)
            client = await self.routes.open_client(self.match, request, wire)
        self._client = client
        if self.is_closed:  # its client went away meanwhile
            self.close()
            return
        try:
            client.grant_credit(self._pending_credit)
            self._pending_credit = 0
            if self._is_stopped:
                client.end("unsubscribed")
            await client.wait_until_ready()
        except BaseException:
            self.close()
            raise
        if self.is_closed:
            return
        self._on_attached(client)
        client.attach(self)

    def grant_credit(self, records: int) -> None:
        if self._client is not None:
            self._client.grant_credit(records)
        else:
            self._pending_credit += records

    async def build_change(self, selection: Selection, granted: Granted) -> StreamChange:
        """What it is to show instead, from where it stands, with nothing done yet. A path brings
        its own query; without one, all that is not chosen stays as the last change left it. Raises
        RequestError for what cannot be, and HTTPException 404."""
        path, query = self.match.path, self.query
        if self._pending_change is not None:
            path, query = self._pending_change.match.path, self._pending_change.query
        if selection.path is not None:
            kept = [pair for pair in query if pair[0] in ("until", "grouped")]
            path, query = parse_target(selection.path)
            query += [pair for pair in kept if pair[0] not in dict(query)]
        query = merge_query(query, build_selection_query(selection))
        match = self.routes.match(path)._replace(granted=granted)
        return StreamChange(
            match, query, await self.routes.get_view(match, query), needs_new_client=True
        )

    def stop(self) -> None:
        self._is_stopped = True
        if self._client is not None:
            self._client.end("unsubscribed")

    def close(self) -> None:
        """Without a word."""
        client, self._client = self._client, None
        self.mark_closed()
        if client is not None:
            client.end("closed")  # who waits for BEGIN waits no longer
            client.close()
        self.write = _discard_data  # or it would be a reference cycle

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._owner.socket.transport

    # the outlet

    @property
    def full(self) -> bool:
        return self._owner.socket.full

    def _write_labelled(self, data: bytes) -> None:
        socket, labelled = self._owner.socket, insert_member(data, self._label_member)
        if self._client is not None:  # the hub has counted what all share
            self._client.subscription.traffic.bytes += len(labelled) - len(data)
        socket.write(labelled)
        if socket.full:
            self._owner.on_stream_full(self)

    def on_drained(self) -> None:
        if self._client is not None:
            self._client.on_drained()

    def finish(self, data: bytes) -> None:
        client, self._client, self._has_begun = self._client, None, False
        if data:
            self.write(data)
        if client is None:
            return
        self.close_reason = client.subscription.end_reason or ""
        self.mark_closed()
        self._owner.on_stream_ended(self)

    def _send_challenge(self, guard: str, expires_at: float) -> None:
        self._owner.send_challenge(guard, expires_at)

    def hand_over(self) -> None:
        self._owner.reopen(self, self._take_handover())


def _discard_data(data: bytes) -> None:
    """Nobody is there any more."""
