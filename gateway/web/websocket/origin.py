"""Decide which pages may open a WebSocket, by the `Origin` of the handshake.

CORS does not apply to WebSockets, and browsers send cookies with every handshake. If the server did
not check the origin, any page could read streams with the cookies of the user who opened it
(RFC 6455 10.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import HTTPConnection

from gateway.config import AccessControl, GuardSection
from gateway.errors import RequestError

_DEFAULT_PORTS = {"http": "80", "https": "443"}


def is_origin_allowed(
    access: AccessControl, origin: str | None, host: str, *, has_credentials: bool = False
) -> bool:
    """Return whether a request with this `Origin` and `Host` is allowed.

    Args:
        origin: The value of `Origin`. A request without it is allowed: it is a program's.
        has_credentials: Whether the browser may have added the user's credentials by itself. A page
            of another site needs `allow.credentials` then.
    """
    if origin is None or is_same_origin(origin, host):
        return True
    if access.policy == "same-origin" or (has_credentials and not access.allow.credentials):
        return False
    return is_listed_origin(access, origin)


def is_listed_origin(access: AccessControl, origin: str) -> bool:
    """Return whether an origin is listed under `allow.origins`. An empty list allows all."""
    origins = access.allow.origins
    return not origins or "*" in origins or origin in origins


def has_ambient_credentials(headers: Mapping[str, str], guards: Iterable[GuardSection]) -> bool:
    """Return whether a browser may have sent credentials that no page gave it.

    Cookies, a password that the user once entered, or the user's client certificate.
    """
    return (
        "cookie" in headers
        or headers.get("authorization", "")[:6].lower() == "basic "
        or any(guard.has_ambient_credentials for guard in guards)
    )


def refuse_foreign_origin(
    access_controls: Iterable[AccessControl],
    connection: HTTPConnection,
    guards: Iterable[GuardSection],
) -> None:
    """Raise a 403 unless one of the `access-control` sections allows the origin of a WebSocket."""
    headers = connection.headers
    if "origin" not in headers:
        return
    is_ambient = has_ambient_credentials(headers, guards)
    if not any(
        is_origin_allowed(
            access,
            headers["origin"],
            headers.get("host", ""),
            has_credentials=is_ambient,
        )
        for access in access_controls
    ):
        detail = "pages of this origin may not connect; see access-control"
        raise RequestError(403, "Foreign origin", detail)


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether an origin has the host and port of `Host`.

    The schemes are not compared: behind a proxy that ends TLS, a page's https is http here.
    """
    scheme, separator, authority = origin.lower().partition("://")
    if not separator or scheme not in _DEFAULT_PORTS:
        return False
    return _add_port(authority, scheme) == _add_port(host.lower(), scheme)


def _add_port(authority: str, scheme: str) -> str:
    """Return an authority with its port, which is the scheme's default if it has none."""
    name, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):  # no port; the last colon may be an IPv6 address's
        return f"{authority}:{_DEFAULT_PORTS[scheme]}"
    return f"{name}:{port or _DEFAULT_PORTS[scheme]}"
