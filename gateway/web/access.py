"""Who may have a stream: what an application that mounts the gateway hands in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import HTTPConnection

from ..config import Route

_SCHEME = "bearer."


class Access(Protocol):
    """Asked before every stream, and again when a WebSocket client renews its token.

    params: what the path pattern of the route found in the path, decoded.
    token:  the bearer token of the `Authorization` header, of the WebSocket subprotocol
            `bearer.<token>`, or of the last `token` message; None if there is none.
    Raises RequestError 401 or 403, with what to do.
    """

    async def __call__(
        self,
        route: Route,
        params: Mapping[str, str],
        connection: HTTPConnection,
        token: str | None,
    ) -> None: ...


async def anyone(
    route: Route, params: Mapping[str, str], connection: HTTPConnection, token: str | None
) -> None:
    """Access for whoever reaches the port."""


def bearer(connection: HTTPConnection) -> str | None:
    """The bearer token that a connection came with (RFC 6750 2.1); browsers cannot set headers
    on a WebSocket, so there it may be offered as a subprotocol."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    for offered in connection.scope.get("subprotocols", ()):
        if offered.startswith(_SCHEME):
            return str(offered[len(_SCHEME) :])
    return None
