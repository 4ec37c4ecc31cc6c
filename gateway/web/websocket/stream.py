"""One stream on a WebSocket: open it, change what it shows, end it.

A WebSocket has one stream, that of its path, or on `/ws` any number of streams, each with a label.
All of them write to the same socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from gateway.core.client.terms import EndReason
from gateway.hub.fanout.client import Handover
from gateway.hub.wires.websocket import WebSocketWire, encode_label
from gateway.web.access import Granted
from gateway.web.routing.messages import (
    QueryPairs,
    Selection,
    build_request,
    build_selection_query,
    merge_query,
    parse_target,
)
from gateway.web.routing.open_streams import OpenStream, StreamChange
from gateway.web.routing.paths import Match
from gateway.wire.websocket import insert_member

if TYPE_CHECKING:
    from .session import Session


class WebSocketStream(OpenStream):
    """One stream of a socket, and the outlet of its clients. Owned by a `Session`.

    Its `query` includes the selections of the client's messages. `label` is the id that the client
    has given it on `/ws`.
    """

    __slots__ = (
        "_is_stopped", "_label_member", "_owner", "_pending_credit", "close_reason",
        "condition_count", "label", "write",
    )  # fmt: skip

    def __init__(
        self,
        owner: Session,
        label: str | None,
        match: Match,
        query: QueryPairs,
        condition_count: int = 0,
    ) -> None:
        """Register a stream, which is opened later.

        `condition_count` is that of the view, if the client has chosen filters or fields.
        """
        super().__init__(owner.routes, match, query, owner.handshake_scope.address)
        self.label = label
        self.condition_count = condition_count
        # The label as a JSON member, which every message of the stream gets.
        self._label_member = b"" if label is None else encode_label(label)
        self.close_reason = ""
        self._owner = owner
        # What the client asked for while the stream was still being opened.
        self._is_stopped = False
        self._pending_credit = 0
        # A stream without a label is alone on its socket and writes to it directly, which saves
        # 0.07 us of 2.3.
        write: Callable[[bytes], None] = (
            owner.socket.write if label is None else self._write_labelled
        )
        self.write = write

    async def open(
        self, request: HTTPConnection | None = None, *, handover: Handover | None = None
    ) -> None:
        """Open the stream's first or next client, and begin to write to the socket.

        `request` is the handshake, if it asks for the same as `query`: to build one takes 9 us.
        """
        deflate = self._owner.socket.deflate
        wire = WebSocketWire(self.label is not None, deflate)
        if handover is not None:
            client = await self.routes.resume_client(self.match, self.query, wire, handover)
        else:
            if request is not None:  # the configuration may have changed since the accept
                self.match = await self.routes.refresh(self.match, request)
            # `Last-Event-ID` has no meaning on a WebSocket: only the query says where to resume.
            if request is None or "last-event-id" in request.headers:
                request = build_request(self.match.path, self.query, self.address)
            client = await self.routes.open_client(self.match, request, wire)
        self._client = client
        if self.is_closed:  # the socket was closed while Kafka was asked
            self.close()
            return
        try:
            client.grant_credit(self._pending_credit)
            self._pending_credit = 0
            if self._is_stopped:
                client.end(EndReason.UNSUBSCRIBED)
            await client.wait_until_ready()
        except BaseException:
            self.close()
            raise
        if self.is_closed:
            return
        self._on_attached(client)
        client.attach(self)

    def grant_credit(self, records: int) -> None:
        """Allow so many more records, now or once the stream has begun."""
        if self._client is not None:
            self._client.grant_credit(records)
        else:
            self._pending_credit += records

    async def build_change(self, selection: Selection, granted: Granted) -> StreamChange:
        """Return a change to the selection of a message, without applying it.

        A path in the message replaces the path and query of the stream, except for `until`.
        Without a path, parameters that the message does not mention stay as the last
        change has set them.
        """
        path, query = self.match.path, self.query
        if self._pending_change is not None:
            path, query = self._pending_change.match.path, self._pending_change.query
        if selection.path is not None:
            # It says where the stream ends, not what it shows.
            kept = [pair for pair in query if pair[0] == "until"]
            path, chosen = parse_target(selection.path)
            query = [*chosen, *(pair for pair in kept if pair[0] not in dict(chosen))]
        query = merge_query(query, build_selection_query(selection))
        match = self.routes.match(path)._replace(granted=granted)
        if selection.path is not None:
            self.routes.check_parameters(match, query)
        return StreamChange(
            match, query, await self.routes.get_view(match, query), needs_new_client=True
        )

    def apply_change(self, change: StreamChange) -> None:
        self.condition_count = change.view.condition_count if has_selection(change.query) else 0
        super().apply_change(change)

    def stop(self) -> None:
        """End the stream for its client, with an `end`."""
        self._is_stopped = True
        if self._client is not None:
            self._client.end(EndReason.UNSUBSCRIBED)

    def close(self) -> None:
        """Release the stream without an `end`. It may be called again."""
        client, self._client = self._client, None
        self.mark_closed()
        if client is not None:
            client.end(EndReason.CLOSED)  # wakes `wait_until_ready`
            client.close()
        self.write = _discard_data  # the bound method would be a reference cycle

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._owner.socket.transport

    # The outlet of its clients.

    @property
    def full(self) -> bool:
        """Whether the socket is full, whichever stream has filled it."""
        return self._owner.socket.full

    def _write_labelled(self, data: bytes) -> None:
        socket, labelled = self._owner.socket, insert_member(data, self._label_member)
        if self._client is not None:  # the hub has counted the bytes without the label
            self._client.subscription.traffic.bytes += len(labelled) - len(data)
        socket.write(labelled)
        if socket.full:
            self._owner.on_stream_full(self)

    def on_drained(self) -> None:
        if self._client is not None:
            self._client.wake()

    def finish(self, data: bytes) -> None:
        """Write the last bytes, and end the stream. Called by the hub's client."""
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
        """Let another client go on in place of this one. Called by the hub's client."""
        self._owner.reopen(self, self._take_handover())


def has_selection(query: QueryPairs) -> bool:
    return any(name in {"filter", "fields"} and text for name, text in query)


def _discard_data(data: bytes) -> None: ...
