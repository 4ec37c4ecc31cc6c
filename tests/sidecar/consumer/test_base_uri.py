from __future__ import annotations

import pytest
from starlette.requests import Request

from gateway.sidecar.consumer.base_uri import build_base_uri


def build_request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "scheme": "http", "path": "/", "query_string": b"", "headers": raw}
    return Request({**scope, "server": ("10.0.0.1", 81)})


PATH = "/consumers/g/instances/i"


@pytest.mark.parametrize(
    ("headers", "begins"),
    [
        ({"host": "here:8080"}, "http://here:8080"),
        ({}, "http://10.0.0.1:81"),
        ({"host": "a b"}, "http://10.0.0.1:81"),
        ({"host": "h", "forwarded": "host=out:443;proto=https, host=in"}, "https://out:443"),
        ({"host": "h", "forwarded": 'for=1.2.3.4;host="[::1]:443"'}, "http://[::1]:443"),
        ({"host": "h", "x_forwarded_host": "out, in", "x_forwarded_proto": "https"}, "https://out"),
        ({"host": "h", "forwarded": "host=out;proto=mqtt"}, "http://out"),
        ({"host": "h", "x_forwarded_path": "/bridge/consumers/g"}, "http://h/bridge"),
        ({"host": "h", "x_forwarded_prefix": "/bridge/"}, "http://h/bridge"),
        ({"host": "h", "x_forwarded_host": "bad/host"}, "http://h"),
        ({"host": "h", "x_forwarded_path": "/<x>/consumers/g"}, "http://h"),
    ],
)
def test_the_base_uri_is_what_the_client_asked(headers, begins):
    assert build_base_uri(build_request(**headers), None, "g", "i") == begins + PATH


def test_the_configured_one_beats_all_and_names_are_quoted():
    uri = build_base_uri(build_request(host="h"), "https://this.example/", "a group", "i")
    assert uri == "https://this.example/consumers/a%20group/instances/i"
