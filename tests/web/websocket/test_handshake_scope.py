from __future__ import annotations

from typing import Any

import pytest

from gateway.web.websocket.handshake import HandshakeScope

SCOPE: dict[str, Any] = {
    "type": "websocket",
    "scheme": "wss",
    "server": ("127.0.0.1", 8080),
    "client": ("127.0.0.1", 50000),
    "root_path": "",
    "path": "/ws",
    "raw_path": b"/ws",
    "query_string": b"a=b",
    "headers": [(b"host", b"test:80"), (b"x-empty", b""), (b"cookie", b"a=b"), (b"cookie", b"c")],
    "subprotocols": ["gateway.v1"],
    "state": {"since": 1},
    "user": object(),  # of a middleware
    "extensions": {"take": print},
}


def test_what_was_packed_comes_back_as_it_was_but_for_the_extensions():
    connection = HandshakeScope(SCOPE).build_connection()
    assert dict(connection.scope) == {k: v for k, v in SCOPE.items() if k != "extensions"}
    assert connection.headers["host"] == "test:80"


@pytest.mark.parametrize("headers", [[], [(b"host", b"a")]])
def test_any_number_of_headers_comes_back(headers: list[tuple[bytes, bytes]]):
    assert (
        HandshakeScope({**SCOPE, "headers": headers}).build_connection().scope["headers"] == headers
    )


def test_what_is_equal_for_all_is_held_once():
    one, other = (HandshakeScope({**SCOPE, "server": ("127.0.0.1", 8080)}) for _ in range(2))
    assert one.build_connection().scope["server"] is other.build_connection().scope["server"]
