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

SECURE = {"http": "http", "https": "https", "ws": "http", "wss": "https"}

MAX_PROXIES = 32
"""Addresses of X-Forwarded-For that are looked at, from the right: those further left are of no
proxy of ours, and 6,000 of them took 40 ms."""


class Proxies:
    """The proxies that `listen.forwarded` names: addresses and networks, or True for everybody."""

    def __init__(self, proxies: Literal[True] | tuple[str, ...]) -> None:
        self.are_all = proxies is True
        self._networks = [ip_network(each) for each in proxies] if proxies is not True else []
        self.names = cache_short(4096)(self._names)

    def believes(self, peer: str) -> bool:
        """Return whether what connects from this address is a proxy."""
        return self.are_all or self.names(peer)

    def _names(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


class Forwarded:
    """An ASGI application with `client` and `scheme` as the client's own."""

    def __init__(self, app: ASGIApp, proxies: Literal[True] | tuple[str, ...]) -> None:
        self._app = app
        self.proxies = Proxies(proxies)
        self._all, self._trusts = self.proxies.are_all, self.proxies.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] != "lifespan" and client:
            named = not self._all and self._trusts(client[0])
            if named:  # where everybody is believed, anybody could send another's certificate
                tls.believe(scope)
            if named or self._all:
                self._believe(scope)
        await self._app(scope, receive, send)

    def _believe(self, scope: Scope) -> None:
        forwarded: list[str] = []
        scheme = ""
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                forwarded.append(value.decode("latin-1"))
            elif name == b"x-forwarded-proto":
                scheme = value.decode("latin-1").rpartition(",")[2].strip().lower()
        if forwarded:
            addresses = ",".join(forwarded).rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]
            scope["client"] = (self._client(addresses, scope["client"][0]), 0)
        if scheme in SECURE:
            of_socket = scope["type"] == "websocket"
            scope["scheme"] = SECURE[scheme].replace("http", "ws") if of_socket else SECURE[scheme]

    def _client(self, addresses: list[str], peer: str) -> str:
        """The first from the right that no proxy has; the last that could be read."""
        client = peer
        for text in reversed(addresses):
            host = _host(text.strip())
            if host is None:
                return client
            client = host
            if self._all or not self._trusts(host):
                return client
        return client


def _host(text: str) -> str | None:
    """The address in `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None
