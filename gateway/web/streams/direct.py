"""A stream on the connection itself, where the server gives it away; by ASGI where not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache

from starlette.types import Message, Receive, Scope, Send

from gateway.hub.wires.chunked import Framed
from gateway.hub.wires.wire import Wire
from gateway.web.http.outlet import TAKEOVER, corked, take_over

from .http_stream import HttpStream

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


def framed(wire: Wire, scope: Scope) -> Wire:
    """The wire for a stream of this scope: in HTTP's chunks where its connection can be had."""
    return _framed(wire) if is_offered(scope) else wire


@lru_cache(64)  # a channel is found by its wire: the same one is found at once, an equal in 2 us
def _framed(wire: Wire) -> Framed:
    return Framed(wire)


async def answered(
    stream: HttpStream,
    wire: Wire,
    opened: Callable[[Wire], Awaitable[HttpStream]],
    plain: Callable[[HttpStream], Answer],
    headers: Mapping[str, str],
) -> Answer:
    """A stream, once its BEGIN is due: as a `DirectResponse` if `wire` is `Framed`.

    opened: makes another of the same request. plain: the answer by ASGI.
    """
    await stream.ready()
    if not isinstance(wire, Framed):
        return plain(stream)

    async def otherwise() -> Answer:
        another = await opened(wire.wire)
        await another.ready()
        return plain(another)

    return DirectResponse(stream, otherwise, headers)


def is_offered(scope: Scope) -> bool:
    return TAKEOVER in scope.get("extensions", {}) and scope.get("http_version") == "1.1"


class DirectResponse:
    """Begins as HTTP, and goes on without it.

    stream:    its wire is `Framed`.
    otherwise: the same stream by ASGI, opened anew, should the connection not be had after all.
    """

    def __init__(
        self,
        stream: HttpStream,
        otherwise: Callable[[], Awaitable[Answer]],
        headers: Mapping[str, str],
    ) -> None:
        self._stream = stream
        self._otherwise = otherwise
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with corked(scope) as cork:
                await send(self._start())
                outlet = take_over(scope, self._stream)
                if outlet is not None:
                    self._stream.attach(outlet, cork.drawn())
                    return
        except BaseException:
            self._stream.close()
            raise
        self._stream.close()
        await (await self._otherwise())(scope, receive, _without_start(send))

    def _start(self) -> Message:
        told = [(k.lower().encode(), v.encode("latin-1")) for k, v in self._headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": told}


def _without_start(send: Send) -> Send:
    """It went out already."""

    async def rest(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    return rest
