"""Parse the field `Host` of a request (RFC 9110 7.2), which says what name a client has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def normalize_host(name: str) -> str:
    """Return a name without the brackets of IPv6 and the dot of the DNS root, in lower case."""
    return name.strip("[]").rstrip(".").lower()


def parse_host(value: str) -> str:
    """Return the normalized name or address in a value of `Host`, without its port."""
    name, colon, port = value.rpartition(":")
    # The last colon may belong to an IPv6 address.
    return normalize_host(name if colon and not port.endswith("]") else value)


def get_requested_host(scope: Mapping[str, Any]) -> str | None:
    """Return the name or address that a request is for.

    Args:
        scope: The ASGI scope of the request.

    Returns:
        The host of `Host`; without one (HTTP/1.0) the address that the server listens at, or None
        if that is not known.
    """
    for name, value in scope["headers"]:
        if name == b"host":
            return parse_host(value.decode("latin-1"))
    server = scope.get("server")
    return None if server is None else str(server[0])
