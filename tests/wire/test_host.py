from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.host import get_requested_host, normalize_host, parse_host


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("localhost", "localhost"),
        ("LocalHost.:8080", "localhost"),
        ("127.0.0.1:8080", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::1]:8080", "::1"),
        ("user@127.0.0.1", "user@127.0.0.1"),
        ("127.0.0.1/evil.example", "127.0.0.1/evil.example"),
        ("", ""),
    ],
)
def test_a_host_is_a_name_or_an_address_without_its_port(value: str, expected: str):
    assert parse_host(value) == expected


def test_an_address_that_is_no_field_value_keeps_its_colons():
    assert normalize_host("::1") == "::1"


def build_scope(*headers: tuple[bytes, bytes], server: tuple[str, int] | None) -> dict[str, Any]:
    return {"headers": headers, "server": server}


def test_a_request_is_for_the_host_that_it_names():
    scope = build_scope((b"accept", b"*/*"), (b"host", b"a.test:80"), server=("127.0.0.1", 80))
    assert get_requested_host(scope) == "a.test"


def test_a_request_without_a_host_is_for_the_address_of_the_server():
    assert get_requested_host(build_scope(server=("127.0.0.1", 80))) == "127.0.0.1"
    assert get_requested_host(build_scope(server=None)) is None
