"""Who a proxy says that it asks for: `X-Forwarded-For`, `X-Forwarded-Proto` and, of the proxies
that are named, `X-Forwarded-Client-Cert`.

Anybody can send these headers, so they are believed of the proxies that are named, and only as
far as those vouch for them: read from the right, the first address that is none of theirs is the
client; what stands before it, that client may have invented. Where everybody is believed
(`listen.forwarded: true`), whoever connects is taken to be the one proxy there is.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.core.short_cache import cache_short

from . import client_certificate as tls

HTTP_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}

MAX_PROXIES = 32
"""Addresses of X-Forwarded-For that are looked at, from the right: those further left are of no
proxy of ours, and 6,000 of them took 40 ms."""


class TrustedProxies:
    """The proxies that `listen.forwarded` names: addresses and networks, or True for everybody."""

    def __init__(self, proxies: Literal[True] | tuple[str, ...]) -> None:
        self.trusts_all = proxies is True
        self._networks = [ip_network(each) for each in proxies] if proxies is not True else []
        self.is_listed = cache_short(4096)(self._is_listed)

    def is_trusted(self, peer: str) -> bool:
        """Return whether what connects from this address is a proxy."""
        return self.trusts_all or self.is_listed(peer)

    def _is_listed(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


class ForwardedMiddleware:
    """An ASGI application with `client` and `scheme` as the client's own."""

    def __init__(self, app: ASGIApp, proxies: Literal[True] | tuple[str, ...]) -> None:
        self._app = app
        self.proxies = TrustedProxies(proxies)
        self._trusts_all, self._is_listed = self.proxies.trusts_all, self.proxies.is_listed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] != "lifespan" and client:
            named = not self._trusts_all and self._is_listed(client[0])
            if named:  # where everybody is believed, anybody could send another's certificate
                tls.store_forwarded_certificate(scope)
            if named or self._trusts_all:
                self._apply_headers(scope)
        await self._app(scope, receive, send)

    def _apply_headers(self, scope: Scope) -> None:
        forwarded: list[str] = []
        scheme = ""
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                forwarded.append(value.decode("latin-1"))
            elif name == b"x-forwarded-proto":
                scheme = value.decode("latin-1").rpartition(",")[2].strip().lower()
        if forwarded:
            addresses = ",".join(forwarded).rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]
            scope["client"] = (self._find_client(addresses, scope["client"][0]), 0)
        if scheme in HTTP_SCHEMES:
            of_socket = scope["type"] == "websocket"
            scope["scheme"] = (
                HTTP_SCHEMES[scheme].replace("http", "ws") if of_socket else HTTP_SCHEMES[scheme]
            )

    def _find_client(self, addresses: list[str], peer: str) -> str:
        """The first from the right that no proxy has; the last that could be read."""
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
    """The address in `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None
