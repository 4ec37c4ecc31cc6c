"""Parse the field `Host` of a request (RFC 9110 7.2): the name that a client has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def normalize_host(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def parse_host(value: str) -> str:
    name, colon, port = value.rpartition(":")
    # The last colon may belong to an IPv6 address.
    return normalize_host(name if colon and not port.endswith("]") else value)


def get_requested_host(scope: Mapping[str, Any]) -> str | None:
    """Return the host that an ASGI scope is for; without `Host` (HTTP/1.0) the server's."""
    for name, value in scope["headers"]:
        if name == b"host":
            return parse_host(value.decode("latin-1"))
    server = scope.get("server")
    return None if server is None else str(server[0])
