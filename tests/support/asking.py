"""What guards are asked with: connections as they come, and routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import HTTPConnection

from gateway.config import Route
from gateway.web.access.guard import Asked


def connection(
    *headers: tuple[str, str], query: str = "", subprotocols: Sequence[str] = (), **scope: Any
) -> HTTPConnection:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    made: dict[str, Any] = {
        "type": "websocket" if subprotocols else "http",
        "path": "/",
        "headers": raw,
        "query_string": query.encode(),
        **scope,
    }
    if subprotocols:
        made["subprotocols"] = list(subprotocols)
    return HTTPConnection(made)


def route(path: str = "/events/{customer}", **guarded: Sequence[str]) -> Route:
    return Route.model_validate(
        {
            "when": [{"path": path}],
            "guarded": {name: list(roles) for name, roles in guarded.items()},
            "with": {"topic": "orders"},
        }
    )


def asked(
    came: HTTPConnection | None = None,
    token: str | None = None,
    *,
    to: Route | None = None,
    params: Mapping[str, str] | None = None,
) -> Asked:
    params = {"customer": "7"} if params is None else params
    return Asked(to or route(), params, came or connection(), token)


def bearing(token: str) -> HTTPConnection:
    return connection(("Authorization", f"Bearer {token}"))
