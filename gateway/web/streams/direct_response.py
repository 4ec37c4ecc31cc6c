"""Respond with a stream on the connection itself, or by ASGI where that cannot be taken over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache

from starlette.types import Message, Receive, Scope, Send

from gateway.hub.wires.chunked import ChunkedWire
from gateway.hub.wires.dictionary import DictionaryWire
from gateway.hub.wires.wire import Wire
from gateway.web.http.outlet import TAKEOVER, buffer_head, take_over

from .http_stream import HttpStream

AsgiResponse = Callable[[Scope, Receive, Send], Awaitable[None]]


def choose_wire(wire: Wire, scope: Scope) -> Wire:
    """Return the wire for a stream of this scope.

    Where the connection is offered, the wire frames the bytes as chunks of HTTP itself.
    """
    if not is_takeover_offered(scope):
        return wire
    # A cache would keep dictionaries that nobody uses any more.
    return ChunkedWire(wire) if isinstance(wire, DictionaryWire) else _get_chunked_wire(wire)


@lru_cache(64)  # channels are looked up by their wire: to compare equal wires would take 2 us
def _get_chunked_wire(wire: Wire) -> ChunkedWire:
    return ChunkedWire(wire)


async def build_response(
    stream: HttpStream,
    wire: Wire,
    open_stream: Callable[[Wire], Awaitable[HttpStream]],
    build_asgi_response: Callable[[HttpStream], AsgiResponse],
    headers: Mapping[str, str],
) -> AsgiResponse:
    """Return the response of a stream, once its BEGIN is due: direct for a `ChunkedWire`."""
    await stream.wait_until_ready()
    if not isinstance(wire, ChunkedWire):
        return build_asgi_response(stream)

    async def build_fallback() -> AsgiResponse:
        fallback_stream = await open_stream(wire.wire)  # the wire without chunks
        await fallback_stream.wait_until_ready()
        return build_asgi_response(fallback_stream)

    return DirectResponse(stream, build_fallback, headers)


def is_takeover_offered(scope: Scope) -> bool:
    return TAKEOVER in scope.get("extensions", {}) and scope.get("http_version") == "1.1"


class DirectResponse:
    """A response that begins by ASGI, and then leaves its connection to the stream.

    Whether the connection can be taken over is known only once the response has begun; if not, the
    stream is opened again, for ASGI.
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
            # The head and the first block of the stream leave in one write.
            with buffer_head(scope) as head:
                await send(self._build_start_message())
                outlet = take_over(scope, self._stream)
                if outlet is not None:
                    self._stream.attach(outlet, head.take_bytes())
                    return
        except BaseException:
            self._stream.close()
            raise
        # The stream frames its bytes as chunks itself, which an ASGI server would do once more.
        self._stream.close()
        await (await self._build_fallback())(scope, receive, _skip_start(send))

    def _build_start_message(self) -> Message:
        headers = [(k.lower().encode(), v.encode("latin-1")) for k, v in self._headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": headers}


def _skip_start(send: Send) -> Send:
    """Return a `send` that drops the start of a response, which was sent before."""

    async def send_rest(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    return send_rest
