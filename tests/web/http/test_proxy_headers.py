from __future__ import annotations

from typing import Any

import pytest

from gateway.web.http.asgi_middleware import ForwardedMiddleware
from gateway.web.streams.middleware import get_encoded_path
from gateway.web.streams.responses import build_next_link

PROXIES = ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/64")


async def get_client(
    proxies: Any, peer: str | None, *headers: tuple[str, str], kind: str = "http"
) -> tuple[str | None, str]:
    """The client's address and the scheme, as the application sees them."""
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    scope = {
        "type": kind,
        "scheme": "ws" if kind == "websocket" else "http",
        "client": None if peer is None else (peer, 1234),
        "headers": [(name.encode(), text.encode("latin-1")) for name, text in headers],
    }
    await ForwardedMiddleware(app, proxies)(scope, None, None)  # type: ignore[arg-type]
    client = scopes[0]["client"]
    return client and client[0], scopes[0]["scheme"]


def build_headers(*addresses: str) -> list[tuple[str, str]]:
    return [("x-forwarded-for", each) for each in addresses]


CASES: list[tuple[Any, str | None, list[tuple[str, str]], str | None]] = [
    # Of proxies that are named, as far as they vouch for it.
    (PROXIES, "10.1.2.3", build_headers("198.51.100.1"), "198.51.100.1"),
    (PROXIES, "10.1.2.3", build_headers("203.0.113.9, 198.51.100.1"), "198.51.100.1"),
    (PROXIES, "10.1.2.3", build_headers("198.51.100.1, 192.0.2.7,10.9.9.9"), "198.51.100.1"),
    (PROXIES, "10.1.2.3", build_headers("198.51.100.1", "192.0.2.7"), "198.51.100.1"),
    (PROXIES, "::ffff:10.1.2.3", build_headers("198.51.100.1"), "198.51.100.1"),
    (PROXIES, "2001:db8::5", build_headers("[2001:db8:1::1]:443"), "2001:db8:1::1"),
    (PROXIES, "10.1.2.3", build_headers("198.51.100.1:5555"), "198.51.100.1"),
    (PROXIES, "10.1.2.3", build_headers("10.7.7.7, 10.8.8.8"), "10.7.7.7"),  # all of them proxies
    (PROXIES, "10.1.2.3", build_headers("198.51.100.1" + ", 10.7.7.7" * 31), "198.51.100.1"),
    (PROXIES, "10.1.2.3", build_headers("198.51.100.1" + ", 10.7.7.7" * 6000), "10.7.7.7"),
    # Of nobody else.
    (PROXIES, "198.51.100.1", build_headers("203.0.113.9"), "198.51.100.1"),
    (PROXIES, None, build_headers("203.0.113.9"), None),
    (PROXIES, "unix", build_headers("203.0.113.9"), "unix"),
    # What cannot be read ends it: what stands before is no proxy's word.
    (PROXIES, "10.1.2.3", build_headers("203.0.113.9, unknown"), "10.1.2.3"),
    (PROXIES, "10.1.2.3", build_headers("203.0.113.9, <x>, 192.0.2.7"), "192.0.2.7"),
    (PROXIES, "10.1.2.3", build_headers(""), "10.1.2.3"),
    (PROXIES, "10.1.2.3", build_headers("é" * 9000), "10.1.2.3"),
    (PROXIES, "10.1.2.3", [], "10.1.2.3"),
    # Of whoever connects, as of one proxy: a client that adds to the header is not believed.
    (True, "198.51.100.1", build_headers("203.0.113.9"), "203.0.113.9"),
    (True, "198.51.100.1", build_headers("192.0.2.1, 203.0.113.9"), "203.0.113.9"),
    (True, "198.51.100.1", [], "198.51.100.1"),
]


@pytest.mark.parametrize(("proxies", "peer", "headers", "client"), CASES)
async def test_the_client_is_whom_trusted_proxies_name(proxies, peer, headers, client):
    assert (await get_client(proxies, peer, *headers))[0] == client


@pytest.mark.parametrize(
    ("kind", "peer", "said", "scheme"),
    [
        ("http", "10.0.0.1", "https", "https"),
        ("http", "10.0.0.1", "HTTPS", "https"),
        ("http", "10.0.0.1", "http, https", "https"),
        ("websocket", "10.0.0.1", "https", "wss"),
        ("websocket", "10.0.0.1", "wss", "wss"),
        ("websocket", "10.0.0.1", "http", "ws"),
        ("http", "10.0.0.1", "javascript", "http"),
        ("http", "198.51.100.1", "https", "http"),
    ],
)
async def test_the_scheme_is_what_trusted_proxies_say(kind: str, peer: str, said: str, scheme: str):
    assert (await get_client(PROXIES, peer, ("x-forwarded-proto", said), kind=kind))[1] == scheme


async def test_the_start_and_end_of_the_application_pass():
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    await ForwardedMiddleware(app, True)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert scopes == [{"type": "lifespan"}]


@pytest.mark.parametrize(
    ("peer", "prefix", "root_path"),
    [
        ("10.1.2.3", "/stream", "/stream"),
        ("10.1.2.3", "/a/b-c/", "/a/b-c"),
        ("10.1.2.3", "/", ""),
        ("10.1.2.3", "//other.example", ""),
        ("10.1.2.3", "https://other.example", ""),
        ("10.1.2.3", "/a b", ""),
        ("198.51.100.1", "/stream", ""),
    ],
)
async def test_a_prefix_that_a_proxy_took_off_is_in_links_again(
    peer: str, prefix: str, root_path: str
):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope.get("root_path", "") == root_path
        assert scope["path"] == f"{root_path}/stream/orders"
        assert build_next_link(scope, "t") == f"{root_path}/stream/orders?lastEventId=t"
        assert get_encoded_path(scope) == "/stream/orders"

    scope = {
        "type": "http", "scheme": "http", "client": (peer, 1), "query_string": b"",
        "path": "/stream/orders", "raw_path": b"/stream/orders",
        "headers": [(b"x-forwarded-prefix", prefix.encode())],
    }  # fmt: skip
    await ForwardedMiddleware(app, PROXIES)(scope, None, None)  # type: ignore[arg-type]
