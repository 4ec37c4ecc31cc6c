"""A stream on the connection itself, where the server gives it away; by ASGI where not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache

from starlette.types import Message, Receive, Scope, Send

from gateway.hub.wires.chunked import ChunkedWire
from gateway.hub.wires.wire import Wire
from gateway.web.http.outlet import TAKEOVER, buffer_head, take_over

from .http_stream import HttpStream

AsgiResponse = Callable[[Scope, Receive, Send], Awaitable[None]]


def choose_wire(wire: Wire, scope: Scope) -> Wire:
    """The wire for a stream of this scope: in HTTP's chunks where its connection can be had."""
    return _get_chunked_wire(wire) if is_takeover_offered(scope) else wire


@lru_cache(64)  # a channel is found by its wire: the same one is found at once, an equal in 2 us
def _get_chunked_wire(wire: Wire) -> ChunkedWire:
    return ChunkedWire(wire)


async def build_response(
    stream: HttpStream,
    wire: Wire,
    open_stream: Callable[[Wire], Awaitable[HttpStream]],
    build_asgi_response: Callable[[HttpStream], AsgiResponse],
    headers: Mapping[str, str],
) -> AsgiResponse:
    """A stream, once its BEGIN is due: as a `DirectResponse` if `wire` is `Framed`.

    opened: makes another of the same request. plain: the answer by ASGI.
    """
    await stream.wait_until_ready()
    if not isinstance(wire, ChunkedWire):
        return build_asgi_response(stream)

    async def build_fallback() -> AsgiResponse:
        another = await open_stream(wire.wire)
        await another.wait_until_ready()
        return build_asgi_response(another)

    return DirectResponse(stream, build_fallback, headers)


def is_takeover_offered(scope: Scope) -> bool:
    return TAKEOVER in scope.get("extensions", {}) and scope.get("http_version") == "1.1"


class DirectResponse:
    """Begins as HTTP, and goes on without it.

    stream:    its wire is `Framed`.
    otherwise: the same stream by ASGI, opened anew, should the connection not be had after all.
    """

    def __init__(
        self,
        stream: HttpStream,
        build_fallback: Callable[[], Awaitable[AsgiResponse]],
        headers: Mapping[str, str],
    ) -> None:
        self._stream = stream
        self._build_fallback = build_fallback
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with buffer_head(scope) as cork:
                await send(self._build_start_message())
                outlet = take_over(scope, self._stream)
                if outlet is not None:
                    self._stream.attach(outlet, cork.take_bytes())
                    return
        except BaseException:
            self._stream.close()
            raise
        self._stream.close()
        await (await self._build_fallback())(scope, receive, _skip_start(send))

    def _build_start_message(self) -> Message:
        told = [(k.lower().encode(), v.encode("latin-1")) for k, v in self._headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": told}


def _skip_start(send: Send) -> Send:
    """It went out already."""

    async def send_rest(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    return send_rest
