"""Wrap the application: trust proxies, refuse foreign hosts, trace requests.

What only a trusted proxy knows of a request is in its headers: `X-Forwarded-For`,
`X-Forwarded-Proto`, `X-Forwarded-Client-Cert`, and `X-Forwarded-Prefix`: a path that the proxy has
taken off the beginning of that of the request.

Anybody can send these headers, so they are trusted only from the proxies that `listen.forwarded`
names, and only as far as these vouch for them: read from the right, the first address that is no
proxy's is the client. The client may have invented the addresses to the left of it. With
`listen.forwarded: true` every peer is trusted, and taken to be the only proxy. A client's
certificate is then not taken from a header.

A request whose `Host` is not a name of this gateway is refused: an attacker can let the name of a
page point to this machine (DNS rebinding). Its requests to the gateway are then of the same origin,
so that neither CORS nor the check of a WebSocket's origin keeps the page from reading responses.
But the page cannot choose the `Host` that its browser sends, which is the attacker's name.

An IP address as `Host` is always accepted: no name is resolved for it, and load balancers probe by
address.

If traces are configured, a span lasts from a request to its response head.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.gateway import Gateway
from gateway.config.sections.listen import Listen
from gateway.config.types.address import is_loopback
from gateway.core.caches import cache_short
from gateway.errors import RequestError
from gateway.telemetry.logs import redact_url
from gateway.web.access.x509 import store_forwarded_certificate
from gateway.wire.host import normalize_host, parse_host

from .problems import build_problem

HTTP_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}

# No letters that would have to be encoded, and no second slash, behind which a host would follow.
_PREFIX_PATTERN = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")

MAX_PROXIES = 32
"""How many addresses of X-Forwarded-For are read, from the right. A longer chain is not made by
proxies of ours, and to read 6,000 addresses took 40 ms."""


class TrustedProxies:
    """The proxies that `listen.forwarded` names; `is_listed` caches its last 4,096 answers."""

    def __init__(self, proxies: Literal[True] | tuple[str, ...]) -> None:
        """Parse the addresses and networks in CIDR notation; True trusts every peer."""
        self.trusts_all = proxies is True
        self._networks = [ip_network(text) for text in proxies] if proxies is not True else []
        self.is_listed = cache_short(4096)(self._is_listed)

    def is_trusted(self, peer: str) -> bool:
        return self.trusts_all or self.is_listed(peer)

    def _is_listed(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        # A dual-stack socket reports IPv4 peers as ::ffff:192.0.2.1; networks are given as IPv4.
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


class ForwardedMiddleware:
    """ASGI middleware that sets client, scheme and root path of a scope as a trusted proxy says."""

    def __init__(self, app: ASGIApp, proxies: Literal[True] | tuple[str, ...]) -> None:
        self._app = app
        self.proxies = TrustedProxies(proxies)
        self._trusts_all, self._is_listed = self.proxies.trusts_all, self.proxies.is_listed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] != "lifespan" and client:
            is_named = not self._trusts_all and self._is_listed(client[0])
            # Where every peer is trusted, any client could send somebody else's certificate.
            if is_named:
                store_forwarded_certificate(scope)
            if is_named or self._trusts_all:
                self._apply_headers(scope)
        await self._app(scope, receive, send)

    def _apply_headers(self, scope: Scope) -> None:
        forwarded: list[str] = []
        scheme = prefix = ""
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                forwarded.append(value.decode("latin-1"))
            elif name == b"x-forwarded-proto":
                # Of several values the last one is that of the proxy which connects to us.
                scheme = value.decode("latin-1").rpartition(",")[2].strip().lower()
            elif name == b"x-forwarded-prefix":
                prefix = value.decode("latin-1").strip().rstrip("/")
        if _PREFIX_PATTERN.fullmatch(prefix):
            scope["root_path"] = prefix + scope.get("root_path", "")
            scope["path"] = prefix + scope["path"]
            if "raw_path" in scope:
                scope["raw_path"] = prefix.encode() + scope["raw_path"]
        if forwarded:
            addresses = ",".join(forwarded).rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]
            # The header does not say from which port the client connected to the proxy.
            scope["client"] = (self._find_client(addresses, scope["client"][0]), 0)
        if scheme in HTTP_SCHEMES:
            is_websocket = scope["type"] == "websocket"
            scope["scheme"] = (
                HTTP_SCHEMES[scheme].replace("http", "ws") if is_websocket else HTTP_SCHEMES[scheme]
            )

    def _find_client(self, addresses: list[str], peer: str) -> str:
        """Return the first address from the right that is not a proxy's.

        If all are proxies', or one cannot be parsed, return the last address that could be parsed.
        """
        client = peer
        for text in reversed(addresses):
            host = _parse_address(text.strip())
            if host is None:
                return client
            client = host
            if self._trusts_all or not self._is_listed(host):
                return client
        return client


def _parse_address(text: str) -> str | None:
    """Return the address in `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None


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


RESPONSE_START_TYPES = ("http.response.start", "websocket.accept", "websocket.close")
ROUTE_SCOPE_KEY = "gateway.route"
"""The member of an ASGI scope that has the name of the route that was found."""


class TracingMiddleware:
    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tracing = self._gateway.tracing
        if tracing is None or scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method = scope.get("method", "GET")
        with tracing.trace_request(
            method, _get_traceparent(scope), **_build_attributes(scope, method)
        ) as span:
            if span is None:  # this request is not sampled
                await self._app(scope, receive, send)
                return

            async def send_traced(message: Message) -> None:
                if message["type"] in RESPONSE_START_TYPES and span.is_recording():
                    route = scope.get(ROUTE_SCOPE_KEY)
                    if route is not None:
                        span.update_name(f"{method} {route}")
                        span.set_attribute("http.route", route)
                    if "status" in message:
                        span.set_attribute("http.response.status_code", message["status"])
                    # A stream may last for days: the span ends with the response head.
                    span.end()
                await send(message)

            await self._app(scope, receive, send_traced)


def _build_attributes(scope: Scope, method: str) -> dict[str, str]:
    query = scope["query_string"].decode("latin-1")
    target = redact_url(f"{scope['path']}?{query}" if query else scope["path"])
    path, _, query = target.partition("?")
    attributes = {"http.request.method": method, "url.path": path}
    return {**attributes, "url.query": query} if query else attributes


def _get_traceparent(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"traceparent":
            return bytes(value)
    return None
