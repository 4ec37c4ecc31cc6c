"""Whose pages may open a WebSocket: browsers send their origin and leave it to the server.

CORS does not apply to WebSocket, and cookies go along unasked: without a look at the origin, any
page could read with the cookies of whoever opened it (RFC 6455 10.2).
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import HTTPConnection

from gateway.config import AccessControl
from gateway.errors import RequestError

_PORTS = {"http": "80", "https": "443"}


def origin_allowed(
    access: AccessControl, origin: str | None, host: str, *, cookies: bool = False
) -> bool:
    """Whether a handshake with this `Origin` and `Host` may go on.

    origin:  None for programs, which may.
    cookies: it came with a `Cookie`: a page of another site needs `allow.credentials` then.
    """
    if origin is None or _is_same(origin, host):
        return True
    if access.policy == "same-origin" or (cookies and not access.allow.credentials):
        return False
    return is_listed(access, origin)


def is_listed(access: AccessControl, origin: str) -> bool:
    """Is it among the other sites that are meant?"""
    origins = access.allow.origins
    return not origins or "*" in origins or origin in origins


def refuse_foreign(every: Iterable[AccessControl], connection: HTTPConnection) -> None:
    """Raises RequestError 403 for a WebSocket of a page that none of these lets in."""
    headers = connection.headers
    if "origin" not in headers:
        return
    origin, host, cookies = headers["origin"], headers.get("host", ""), "cookie" in headers
    if not any(origin_allowed(access, origin, host, cookies=cookies) for access in every):
        detail = "pages of this origin may not connect; see access-control"
        raise RequestError(403, "Foreign origin", detail)


def _is_same(origin: str, host: str) -> bool:
    """Scheme aside: a proxy that ends TLS makes a page's https an http here."""
    scheme, separator, authority = origin.lower().partition("://")
    if not separator or scheme not in _PORTS:
        return False
    return _with_port(authority, scheme) == _with_port(host.lower(), scheme)


def _with_port(authority: str, scheme: str) -> str:
    name, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):  # no port; the last colon may be an IPv6 address's
        return f"{authority}:{_PORTS[scheme]}"
    return f"{name}:{port or _PORTS[scheme]}"
