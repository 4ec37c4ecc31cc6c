"""Control access: the configured guards, and the check that a host application may pass in.

A guard reads credentials from a request and returns a `Grant`; all grants of a client together are
a `Granted`. `routing.routes` asks for every stream and write, and `admin` for operators. A route's
guards are asked by `admission`. Each kind has a module of its own (`jwt`, `http`, `inline`,
`x509`), listed there, and a section in `gateway.config.sections.guards`, which says how to add one.
Start with `admission`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import HTTPConnection

from gateway.config import Route

from .grant import NO_GRANTS, Grant, Granted, get_bearer_token
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
    """Decides whether a client may have a stream or make a write.

    It is asked before each of them, and again when a client renews its token. Applications that
    mount the gateway pass their own to `create_app`.
    """

    async def __call__(
        self, route: Route, params: Mapping[str, str], connection: HTTPConnection, token: str | None
    ) -> Granted | None:
        """Return what is known of the client; None, if nothing is, admits it too.

        Args:
            params: The values of the route's path pattern in the path, decoded.
            connection: `scope["method"]` is what the client wants to do, also on a WebSocket: GET
                for a stream; for a record the method of the route that takes it (POST if that is a
                stream's route), or DELETE for a record without a value.
            token: The bearer token of the `Authorization` header, of the WebSocket subprotocol
                `bearer.<token>`, or of the last `token` message.

        Raises:
            RequestError: 401 or 403, with what to do.
        """
        ...


async def allow_anyone(
    route: Route, params: Mapping[str, str], connection: HTTPConnection, token: str | None
) -> None: ...
