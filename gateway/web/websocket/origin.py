"""Whose pages may open a WebSocket: browsers send their origin and leave it to the server.

CORS does not apply to WebSocket, and cookies go along unasked: without a look at the origin, any
page could read with the cookies of whoever opened it (RFC 6455 10.2).
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import HTTPConnection

from gateway.config import AccessControl
from gateway.errors import RequestError

_DEFAULT_PORTS = {"http": "80", "https": "443"}


def is_origin_allowed(
    access: AccessControl, origin: str | None, host: str, *, has_cookies: bool = False
) -> bool:
    """Whether a handshake with this `Origin` and `Host` may go on.

    origin:  None for programs, which may.
    cookies: it came with a `Cookie`: a page of another site needs `allow.credentials` then.
    """
    if origin is None or _is_same_origin(origin, host):
        return True
    if access.policy == "same-origin" or (has_cookies and not access.allow.credentials):
        return False
    return is_listed_origin(access, origin)


def is_listed_origin(access: AccessControl, origin: str) -> bool:
    """Is it among the other sites that are meant?"""
    origins = access.allow.origins
    return not origins or "*" in origins or origin in origins


def refuse_foreign_origin(
    access_controls: Iterable[AccessControl], connection: HTTPConnection
) -> None:
    """Raises RequestError 403 for a WebSocket of a page that none of these lets in."""
    headers = connection.headers
    if "origin" not in headers:
        return
    origin, host, cookies = headers["origin"], headers.get("host", ""), "cookie" in headers
    if not any(
        is_origin_allowed(access, origin, host, has_cookies=cookies) for access in access_controls
    ):
        detail = "pages of this origin may not connect; see access-control"
        raise RequestError(403, "Foreign origin", detail)


def _is_same_origin(origin: str, host: str) -> bool:
    """Scheme aside: a proxy that ends TLS makes a page's https an http here."""
    scheme, separator, authority = origin.lower().partition("://")
    if not separator or scheme not in _DEFAULT_PORTS:
        return False
    return _add_port(authority, scheme) == _add_port(host.lower(), scheme)


def _add_port(authority: str, scheme: str) -> str:
    name, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):  # no port; the last colon may be an IPv6 address's
        return f"{authority}:{_DEFAULT_PORTS[scheme]}"
    return f"{name}:{port or _DEFAULT_PORTS[scheme]}"
