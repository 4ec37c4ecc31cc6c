"""Take what only a trusted proxy knows of a request from its headers.

The headers are `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Forwarded-Client-Cert`, and
`X-Forwarded-Prefix`: a path that the proxy has taken off the beginning of that of the request.

Anybody can send these headers, so they are trusted only from the proxies that `listen.forwarded`
names, and only as far as these vouch for them: read from the right, the first address that is no
proxy's is the client. The client may have invented the addresses to the left of it. With
`listen.forwarded: true` every peer is trusted, and taken to be the only proxy. A client's
certificate is then not taken from a header.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.core.caches import cache_short

from . import client_certificate

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
                client_certificate.store_forwarded_certificate(scope)
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
