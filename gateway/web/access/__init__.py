"""Access control: the configured guards, and the one that a host application may pass in.

A guard reads credentials from a request and answers with a `grant`. Start with `guards`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import HTTPConnection

from gateway.config import Route

from .credentials import get_bearer_token
from .grant import NO_GRANTS, Grant, Granted
from .guard import REQUESTED_ACTION_SCOPE_KEY, RequestedAction

__all__ = [
    "NO_GRANTS",
    "REQUESTED_ACTION_SCOPE_KEY",
    "Access",
    "Grant",
    "Granted",
    "RequestedAction",
    "allow_anyone",
    "get_bearer_token",
]


class Access(Protocol):
    """Asked before every stream and every write, and again when a client renews its token.

    params: what the path pattern of the route found in the path, decoded.
    connection: `scope["method"]` is what the client wants to do, also on a WebSocket: GET for a
            stream; for a record the method of the route that takes it (POST where that is a
            stream's), or DELETE for one without a value.
    token:  the bearer token of the `Authorization` header, of the WebSocket subprotocol
            `bearer.<token>`, or of the last `token` message; None if there is none.
    Returns what it knows of the client, or None. Raises RequestError 401 or 403, with what to do.
    """

    async def __call__(
        self,
        route: Route,
        params: Mapping[str, str],
        connection: HTTPConnection,
        token: str | None,
    ) -> Granted | None: ...


async def allow_anyone(
    route: Route, params: Mapping[str, str], connection: HTTPConnection, token: str | None
) -> None:
    """Access for whoever reaches the port."""
