"""By which names the port of clients may be asked for.

A page whose own name is made to lead to this machine (DNS rebinding) is of the same origin as what
it asks here, so that neither CORS nor the origin of a WebSocket keeps it from reading. It cannot
choose the `Host` that a browser sends for it, which is that name. An address in its place is always
taken: no name leads elsewhere then, and load balancers probe by it.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.config.checks.guards import is_loopback
from gateway.config.sections.listen import Listen
from gateway.errors import RequestError

from .problems import build_problem

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_KNOWN_HOSTS = 256  # ways to write the names that are ours
MAX_NAME_CHARS = 255  # of a name in DNS (RFC 1035 2.3.4)


def get_allowed_names(listen: Listen) -> frozenset[str] | None:
    """Return the names to ask by besides addresses and those of this machine; None for any.

    Without `listen.hosts` a port that only this machine reaches has none, and any other takes all:
    nobody but its operator knows by which names it is reached.
    """
    if "*" in listen.hosts or not (listen.hosts or is_loopback(listen.host)):
        return None
    return frozenset(_normalize_name(name) for name in (*listen.hosts, listen.host))


class HostCheckMiddleware:
    """An ASGI application that refuses requests by names of others with 421 (RFC 9110 15.5.20).

    Created by `edge`, one for each port of clients.

    names:   as `allowed_names` returns them.
    excused: says of the address of a peer that it is a proxy, which has looked at the name itself.
    """

    def __init__(
        self, app: ASGIApp, allowed_names: frozenset[str], is_proxy: Callable[[str], bool]
    ) -> None:
        self._app = app
        self._allowed_names = allowed_names | LOOPBACK_NAMES
        self._known_hosts: set[bytes] = (
            set()
        )  # hosts that were found to be ours: 1.5 us of a connect
        self._is_proxy = is_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = b"" if scope["type"] == "lifespan" else _get_host(scope)
        known = not host or host in self._known_hosts
        if not known and not self._is_allowed(host.decode("latin-1"), scope):
            name = host[:80].decode("latin-1")
            detail = (
                f"'{name}' is no name of this gateway; add it to listen.hosts, or ask localhost"
            )
            refused = RequestError(421, "Misdirected request", detail)
            await build_problem(refused, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, host: str, scope: Scope) -> bool:
        name = _normalize_name(_strip_port(host))
        if name in self._allowed_names or name.endswith(".localhost"):
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
    """Empty where there is none, as in HTTP/1.0: no browser leaves it out."""
    for name, value in scope["headers"]:
        if name == b"host":
            return bytes(value)
    return b""


def _strip_port(host: str) -> str:
    """The last colon may be an IPv6 address's."""
    name, colon, port = host.rpartition(":")
    return name if colon and not port.endswith("]") else host


def _normalize_name(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()
