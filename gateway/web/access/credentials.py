"""From where in a request a client's credentials are taken."""

from __future__ import annotations

from starlette.requests import HTTPConnection

_SCHEME = "bearer."


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
