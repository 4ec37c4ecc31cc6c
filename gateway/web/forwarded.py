"""Who a proxy says that it asks for: `X-Forwarded-For`, `X-Forwarded-Proto` and, of the proxies
that are named, `X-Forwarded-Client-Cert`.

Anybody can send these headers, so they are believed of the proxies that are named, and only as
far as those vouch for them: read from the right, the first address that is none of theirs is the
client; what stands before it, that client may have invented. Where everybody is believed
(`listen.forwarded: true`), whoever connects is taken to be the one proxy there is.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from . import tls

SECURE = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


class Forwarded:
    """An ASGI application with `client` and `scheme` as the client's own.

    proxies: addresses and networks, or True for whoever connects.
    """

    def __init__(self, app: ASGIApp, proxies: Literal[True] | tuple[str, ...]) -> None:
        self._app = app
        self._all = proxies is True
        self._networks = [ip_network(each) for each in proxies] if proxies is not True else []
        self._trusts = lru_cache(4096)(self._is_proxy)

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
        addresses: list[str] = []
        scheme = ""
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                addresses += value.decode("latin-1").split(",")
            elif name == b"x-forwarded-proto":
                scheme = value.decode("latin-1").rpartition(",")[2].strip().lower()
        if addresses:
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

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


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
