from __future__ import annotations

from typing import Any

import pytest

from gateway.config.sections.listen import Listen
from gateway.web.http.asgi_middleware import HostCheckMiddleware, get_allowed_names


def build_listen(**options: Any) -> Listen:
    return Listen.model_validate(options)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"127.0.0.1"}),
        ({"host": "localhost"}, {"localhost"}),
        ({"host": "::1"}, {"::1"}),
        ({"host": "0.0.0.0"}, None),
        ({"host": "192.0.2.1"}, None),
        ({"host": "192.0.2.1", "hosts": ["Shop.example."]}, {"shop.example", "192.0.2.1"}),
        ({"hosts": ["shop.example"]}, {"shop.example", "127.0.0.1"}),
        ({"hosts": ["*"]}, None),
    ],
)
def test_the_names_are_those_of_the_file_and_the_address(options: Any, names: set[str] | None):
    assert get_allowed_names(build_listen(**options)) == names


async def get_status(check: HostCheckMiddleware, host: str | None, kind: str = "http") -> int:
    headers = [(b"accept", b"*/*"), *([] if host is None else [(b"host", host.encode())])]
    scope = {"type": kind, "path": "/", "headers": headers, "client": ("192.0.2.9", 1)}
    scope["extensions"] = {"websocket.http.response": {}}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("it is answered by its head")

    await check(scope, receive, send)
    return int(sent[0]["status"]) if sent else 200


async def ignore_request(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers nothing."""


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("shop.example", 200), ("SHOP.example.:8080", 200), ("localhost:1", 200),
        ("app.localhost", 200), ("127.0.0.1:8080", 200), ("127.8.8.8", 200), ("[::1]:8080", 200),
        ("[::1]", 200), ("10.1.2.3:8080", 200), ("[2001:db8::1]:80", 200), (None, 200), ("", 200),
        ("evil.example", 421), ("evil.example:8080", 421), ("shop.example.evil.example", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("1" * 60_000, 421),
        ("127.0.0.1.", 200), ("xlocalhost", 421),
    ],
)  # fmt: skip
async def test_a_name_of_others_is_refused(kind: str, host: str | None, status: int):
    check = HostCheckMiddleware(ignore_request, frozenset({"shop.example"}), lambda peer: False)
    assert await get_status(check, host, kind) == status


async def test_a_proxy_has_looked_at_the_name():
    check = HostCheckMiddleware(ignore_request, frozenset(), lambda peer: peer == "192.0.2.9")
    assert await get_status(check, "shop.example") == 200
