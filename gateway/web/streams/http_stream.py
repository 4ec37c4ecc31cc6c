"""Respond with one stream, on the connection itself or by ASGI where that cannot be taken over.

The token of an open stream is renewed by `POST /streams/NAME/token`, at any worker. The name is
sent only to the client of the stream, by its `challenge` event. The guards of the stream's route
check the request as they would check a request for the stream, and it must come from the same
client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Self, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.background_tasks import Interrupted
from gateway.core.client.terms import EndReason
from gateway.errors import GatewayError, MemoryFull, RequestError
from gateway.hub.fanout.client import Client, Handover
from gateway.hub.wires.wire import Wire
from gateway.hub.wires.wrapping import ChunkedWire, DictionaryWire
from gateway.web.access import Granted
from gateway.web.http.limits import ReleaseSlot
from gateway.web.http.outlet import (
    TAKEOVER,
    HttpOutlet,
    abort_response,
    buffer_head,
    run_while_connected,
    take_over,
)
from gateway.web.http.query import get_query_pairs
from gateway.web.routing.open_streams import OpenStream, get_end_reason
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes
from gateway.web.workers.bus import Bus

log = logging.getLogger(__name__)


class HttpStream(OpenStream):
    """One stream over HTTP; the `OutletOwner` of its connection.

    Created by `open`, and owned by its outlet or by the ASGI response. Its bytes go one of two
    ways: the hub's clients write them to an outlet (`attach`), or `iter_bytes` yields them.
    """

    __slots__ = ("_challenged_expiry", "_outlet", "_release_slot", "_root_path", "_wire")

    def __init__(
        self, routes: Routes, match: Match, request: Request, wire: Wire, release_slot: ReleaseSlot
    ) -> None:
        client = request.scope.get("client")
        super().__init__(routes, match, get_query_pairs(request), client[0] if client else "")
        self._wire = wire
        self._release_slot = release_slot
        self._challenged_expiry = 0.0  # for which a new token was asked for: once is enough
        self._root_path: str = request.scope.get("root_path", "")
        self._outlet: HttpOutlet | None = None

    @classmethod
    async def open(cls, routes: Routes, match: Match, request: Request, wire: Wire) -> Self:
        """Open a stream for a request. It counts as a connection."""
        release_slot = await routes.limits.acquire_slot(request.scope, match.granted)
        try:
            # The supervisor may have been asked for the slot: the configuration may be another one.
            match = await routes.refresh(match, request)
        except BaseException:
            release_slot()
            raise
        # From here on `mark_closed` gives the slot back.
        stream = cls(routes, match, request, wire, release_slot)
        try:
            stream._set_client(await open_client(routes, match, request, wire))
        except BaseException:
            stream.mark_closed()
            raise
        return stream

    async def wait_until_ready(self) -> None:
        """Return when BEGIN is due. If the wait is cancelled, the stream is closed."""
        try:
            if self._client is not None:
                await self._client.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def attach(self, outlet: HttpOutlet, head: bytes) -> None:
        """Write the stream, after the bytes of `head`, to an outlet from now on."""
        client, self._outlet = self._client, outlet
        if client is not None:
            self._on_attached(client)
            client.attach(outlet, head)

    async def iter_bytes(self, scope: Scope) -> AsyncIterator[bytes]:
        """Yield all bytes of the stream, for ASGI. It is closed when the iteration ends.

        The bytes may wait for the client to read. If there is no memory for that, the response is
        aborted: the client must not take it for complete, and resumes from its last id.

        Raises:
            MemoryFull: It cannot be aborted otherwise.
        """
        try:
            while (client := self._client) is not None:
                self._on_attached(client)
                pulled = client.pull(partial(abort_response, scope))
                try:
                    async for data in pulled:
                        yield data
                except MemoryFull:
                    if not abort_response(scope):
                        raise
                    return
                finally:
                    pulled.drop()
                if pulled.handover is None:
                    return
                last_bytes = await self._open_next_client(self._take_handover(pulled.handover))
                if last_bytes:
                    yield last_bytes
        finally:
            self.close()

    # The owner of the outlet.

    @property
    def transport(self) -> asyncio.Transport | None:
        return None if self._outlet is None else self._outlet.transport

    def on_drained(self) -> None:
        if self._client is not None:
            self._client.wake()

    def probe(self) -> None:
        if self._client is not None:
            self._client.probe()

    def close(self) -> None:
        """Release the stream without an `end`. It may be called again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self.mark_closed()

    def mark_closed(self) -> None:
        """Unregister the stream, and give its slot back. It may be called again."""
        if not self.is_closed:
            super().mark_closed()
            self._outlet = None
            self._release_slot()

    # From one client to the next.

    def _set_client(self, client: Client) -> None:
        self._client = client
        client.set_close_listener(self)

    def on_client_closed(self) -> None:
        """Close the stream, as its client is gone.

        A client that `iter_bytes` pulls from is also closed at a handover, which ends nothing.
        """
        if (
            self._client is not None
            and self._client.subscription.end_reason is not EndReason.CHANGED
        ):
            self._client = None
            self.mark_closed()

    def hand_over(self) -> None:
        """Let another client go on in place of this one. Called through the outlet."""
        self.routes.stream_registry.start_task(self._attach_next(self._take_handover()))

    async def _attach_next(self, handover: Handover) -> None:
        last_bytes = await self._open_next_client(handover)
        client, outlet = self._client, self._outlet
        if outlet is None:
            return  # the connection was lost meanwhile
        if client is None:
            outlet.finish(last_bytes)
            self.mark_closed()
        else:
            self._on_attached(client)
            client.attach(outlet)

    async def _open_next_client(self, handover: Handover) -> bytes:
        """Open the next client, and wait until its BEGIN is due.

        If that fails, return the last bytes of the stream, which end it with a reason.
        """
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
        name = self.routes.stream_registry.ensure_renewal_name(self)
        url = f"{self._root_path}{RENEWAL_PATH_PREFIX}{name}{RENEWAL_PATH_SUFFIX}"
        if self._client is not None:
            self._client.send_event(
                "challenge", {"guard": guard, "expires": expires_at, "url": url}
            )


async def open_client(
    routes: Routes, match: Match, request: Request, wire: Wire, *, page_records: int | None = None
) -> Client:
    """Subscribe a client, as `Routes.open_client` does.

    One whose start or end is looked up may have to wait for its turn, and leaves the queue if it
    disconnects. To wait for that takes 24 us, which other starts are spared.
    """
    opening = routes.open_client(match, request, wire, page_records=page_records)
    looks_up = not request.query_params.keys().isdisjoint(("from", "until"))
    if looks_up or match.route.stream.mode == "snapshot":
        return await run_while_connected(request, opening)
    return await opening


AsgiResponse = Callable[[Scope, Receive, Send], Awaitable[None]]


def choose_wire(wire: Wire, scope: Scope) -> Wire:
    """Return the wire for a stream of this scope.

    Where the connection is offered, the wire frames the bytes as chunks of HTTP itself.
    """
    is_offered = TAKEOVER in scope.get("extensions", {}) and scope.get("http_version") == "1.1"
    if not is_offered:
        return wire
    # A cache would keep dictionaries that nobody uses any more.
    return ChunkedWire(wire) if isinstance(wire, DictionaryWire) else _get_chunked_wire(wire)


@lru_cache(64)  # channels are looked up by their wire: to compare equal wires would take 2 us
def _get_chunked_wire(wire: Wire) -> ChunkedWire:
    return ChunkedWire(wire)


@dataclass(eq=False)
class DirectResponse:
    """A response that begins by ASGI, and then leaves its connection to the stream.

    Whether the connection can be taken over is known only once the response has begun; if not, the
    stream is opened again, for ASGI.
    """

    _stream: HttpStream
    _build_fallback: Callable[[], Awaitable[AsgiResponse]]
    _headers: Mapping[str, str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # The head and the first block of the stream leave in one write.
            with buffer_head(scope) as head:
                headers = [
                    (k.lower().encode(), v.encode("latin-1")) for k, v in self._headers.items()
                ]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                outlet = take_over(scope, self._stream)
                if outlet is not None:
                    self._stream.attach(outlet, head.take_bytes())
                    return
        except BaseException:
            self._stream.close()
            raise
        # The stream frames its bytes as chunks itself, which an ASGI server would do once more.
        self._stream.close()
        with contextlib.suppress(Interrupted):
            await (await self._build_fallback())(scope, receive, _skip_start(send))


def _skip_start(send: Send) -> Send:
    """Return a `send` that drops the start of a response, which was sent before."""

    async def send_rest(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    return send_rest


RENEWAL_PATH_PREFIX, RENEWAL_PATH_SUFFIX = "/streams/", "/token"
OTHER_CLIENT_MESSAGE = "this token is another client's; open a stream of its own"
UNKNOWN_STREAM_MESSAGE = "no stream that runs has this name; connect again with Last-Event-ID"

RenewalOutcome: TypeAlias = Literal["renewed", "other"]
"""What the stream's worker responds with: `other` for the token of another client."""


def parse_renewal_path(path: str) -> str | None:
    """Return the name of the stream that a path renews; None for any other path."""
    name = path.removeprefix(RENEWAL_PATH_PREFIX).removesuffix(RENEWAL_PATH_SUFFIX)
    return (
        name
        if path == f"{RENEWAL_PATH_PREFIX}{name}{RENEWAL_PATH_SUFFIX}" and name and "/" not in name
        else None
    )


class TokenRenewer:
    """Renews the tokens of the streams of all workers.

    A request may come to any worker, so this worker asks all others over the bus for the stream.
    """

    def __init__(self, routes: Routes, bus: Bus) -> None:
        self._routes = routes
        self._bus = bus
        bus.add_handler("stream-path", self._handle_path)
        bus.add_handler("stream-renew", self._handle_renew)

    async def renew(self, name: str, request: Request) -> Response:
        """Renew the token of the stream with this name, which its `challenge` has.

        Without such a stream it is a 404, and 403 for the token of another client.
        """
        path = await self._ask_owner("stream-path", name)
        match = await self._routes.admit(self._routes.match(path), request)
        outcome: RenewalOutcome = await self._ask_owner(
            "stream-renew", [name, match.granted.to_json()]
        )
        if outcome == "other":
            raise RequestError(403, "Forbidden", OTHER_CLIENT_MESSAGE)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def _ask_owner(self, topic: str, data: Any) -> Any:
        responses = await self._bus.request(topic, data)
        # Workers without the stream respond with None.
        found = [response for response in responses.by_worker.values() if response is not None]
        if not found and responses.missing:
            raise RequestError(503, "Busy", "a worker does not answer; try again", retry_after=1.0)
        if not found:
            raise RequestError(404, "Unknown stream", UNKNOWN_STREAM_MESSAGE)
        return found[0]

    def _handle_path(self, worker: int, name: str) -> str | None:
        stream = self._routes.stream_registry.find_by_renewal_name(name)
        return None if stream is None else stream.match.path

    def _handle_renew(self, worker: int, data: tuple[str, list[Any]]) -> RenewalOutcome | None:
        """Give a stream the present grants of its client; None if this worker does not have it."""
        name, granted_json = data
        stream = self._routes.stream_registry.find_by_renewal_name(name)
        granted = Granted.from_json(granted_json)
        if stream is None:
            return None
        if granted.subject != stream.match.granted.subject:
            return "other"
        # A handler of the bus must return at once, and the new view may have to ask Kafka.
        self._routes.stream_registry.start_task(
            self._routes.stream_registry.renew_or_end(stream, granted)
        )
        return "renewed"
