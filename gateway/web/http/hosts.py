"""Refuse requests whose `Host` is not a name of this gateway, against DNS rebinding.

An attacker can let the name of a page point to this machine (DNS rebinding). Its requests to the
gateway are then of the same origin, so that neither CORS nor the check of a WebSocket's origin
keeps the page from reading responses. But the page cannot choose the `Host` that its browser
sends, which is the attacker's name.

An IP address as `Host` is always accepted: no name is resolved for it, and load balancers probe by
address.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.config.sections.listen import Listen
from gateway.config.types.address import is_loopback
from gateway.errors import RequestError
from gateway.wire.host import normalize_host, parse_host

from .problems import build_problem

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_KNOWN_HOSTS = 256  # spellings of accepted names that are remembered
MAX_NAME_CHARS = 255  # the longest name in DNS (RFC 1035 2.3.4)


def get_allowed_names(listen: Listen) -> frozenset[str] | None:
    """Return the names that `Host` may have, besides IP addresses and `localhost`; None for any.

    Without `listen.hosts`, a port that listens on a loopback address accepts no further names. Any
    other port accepts all names, since only its operator knows by which names it is reached.
    """
    if "*" in listen.hosts or not (listen.hosts or is_loopback(listen.host)):
        return None
    return frozenset(normalize_host(name) for name in (*listen.hosts, listen.host))


class HostCheckMiddleware:
    """ASGI middleware that refuses requests with a foreign `Host` by 421 (RFC 9110 15.5.20)."""

    def __init__(
        self, app: ASGIApp, allowed_names: frozenset[str], is_proxy: Callable[[str], bool]
    ) -> None:
        """Wrap an application; proxies, which have checked the name, may forward any."""
        self._app = app
        self._allowed_names = allowed_names | LOOPBACK_NAMES
        # Values of Host that were accepted, as they came: saves 1.5 us of a connect.
        self._known_hosts: set[bytes] = set()
        self._is_proxy = is_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = b"" if scope["type"] == "lifespan" else _get_host(scope)
        is_known = not host or host in self._known_hosts
        if not is_known and not self._is_allowed(host.decode("latin-1"), scope):
            name = host[:80].decode("latin-1")
            detail = (
                f"'{name}' is no name of this gateway; add it to listen.hosts, or ask localhost"
            )
            error = RequestError(421, "Misdirected request", detail)
            await build_problem(error, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, host: str, scope: Scope) -> bool:
        name = parse_host(host)
        if name in self._allowed_names or name.endswith(".localhost"):
            # Both bounds limit what a client can make us remember, by any number of ports.
            if len(self._known_hosts) < MAX_KNOWN_HOSTS and len(host) <= MAX_NAME_CHARS:
                self._known_hosts.add(host.encode("latin-1"))
            return True
        client = scope.get("client")
        if client and self._is_proxy(client[0]):
            return True
        if len(name) > MAX_NAME_CHARS:
            return False
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _get_host(scope: Scope) -> bytes:
    """Return the value of Host; empty without one, as in HTTP/1.0. Every browser sends it."""
    for name, value in scope["headers"]:
        if name == b"host":
            return bytes(value)
    return b""
