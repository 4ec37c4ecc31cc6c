"""A stream on the connection itself, where the server gives it away; by ASGI where not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache

from starlette.types import Message, Receive, Scope, Send

from ..hub.client import Client
from ..hub.framed import Framed
from ..hub.wire import Wire
from .outlet import TAKEOVER, corked, take_over

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


def framed(wire: Wire, scope: Scope) -> Wire:
    """The wire for a stream of this scope: in HTTP's chunks where its connection can be had."""
    return _framed(wire) if is_offered(scope) else wire


@lru_cache(64)  # a channel is found by its wire: the same one is found at once, an equal in 2 us
def _framed(wire: Wire) -> Framed:
    return Framed(wire)


async def answered(
    client: Client,
    wire: Wire,
    opened: Callable[[Wire], Awaitable[Client]],
    plain: Callable[[Client], Answer],
    headers: Mapping[str, str],
) -> Answer:
    """The stream of a client, once its BEGIN is due: as a `DirectResponse` if `wire` is `Framed`.

    opened: makes another client of the same request. plain: the answer by ASGI.
    """
    await _begun(client)
    if not isinstance(wire, Framed):
        return plain(client)

    async def otherwise() -> Answer:
        return plain(await _begun(await opened(wire.wire)))

    return DirectResponse(client, otherwise, headers)


async def _begun(client: Client) -> Client:
    """Once its BEGIN is due; closed if nobody waits for that any more."""
    try:
        await client.ready()
    except BaseException:
        client.close()
        raise
    return client


def is_offered(scope: Scope) -> bool:
    return TAKEOVER in scope.get("extensions", {}) and scope.get("http_version") == "1.1"


class DirectResponse:
    """Begins as HTTP, and goes on without it.

    client:    its wire is `Framed`.
    otherwise: the same stream by ASGI, opened anew, should the connection not be had after all.
    """

    def __init__(
        self,
        client: Client,
        otherwise: Callable[[], Awaitable[Answer]],
        headers: Mapping[str, str],
    ) -> None:
        self._client = client
        self._otherwise = otherwise
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with corked(scope) as cork:
                await send(self._start())
                outlet = take_over(scope, self._client)
                if outlet is not None:
                    self._client.attach(outlet, cork.drawn())
                    return
        except BaseException:
            self._client.close()
            raise
        self._client.close()
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
