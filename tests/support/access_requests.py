"""What guards are asked with: connections as they come, and routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import HTTPConnection

from gateway.config import Route
from gateway.web.access.guard import AccessRequest


def build_connection(
    *headers: tuple[str, str],
    query_string: str = "",
    subprotocols: Sequence[str] = (),
    **scope: Any,
) -> HTTPConnection:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    made: dict[str, Any] = {
        "type": "websocket" if subprotocols else "http",
        "path": "/",
        "headers": raw,
        "query_string": query_string.encode(),
        **scope,
    }
    if subprotocols:
        made["subprotocols"] = list(subprotocols)
    return HTTPConnection(made)


def build_route(path: str = "/events/{customer}", **guarded_roles: Sequence[str]) -> Route:
    return Route.model_validate(
        {
            "when": [{"path": path}],
            "guarded": {name: list(roles) for name, roles in guarded_roles.items()},
            "with": {"topic": "orders"},
        }
    )


def build_access_request(
    connection: HTTPConnection | None = None,
    token: str | None = None,
    *,
    route: Route | None = None,
    params: Mapping[str, str] | None = None,
) -> AccessRequest:
    params = {"customer": "7"} if params is None else params
    return AccessRequest(route or build_route(), params, connection or build_connection(), token)


def build_bearer_connection(token: str) -> HTTPConnection:
    return build_connection(("Authorization", f"Bearer {token}"))
