from __future__ import annotations

import pytest
from starlette.requests import Request

from gateway.web.http.content import Preferences, parse_preferences


def parse_headers(*headers: str) -> Preferences:
    told = [(b"prefer", each.encode()) for each in headers]
    return parse_preferences(Request({"type": "http", "headers": told}))


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ((), Preferences()),
        (("respond-async",), Preferences(respond_async=True)),
        (("wait=10",), Preferences(wait_s=10.0)),
        (("respond-async, wait=10",), Preferences(True, 10.0)),
        (("wait=10; respond-async",), Preferences(True, 10.0)),
        (("Respond-Async", 'WAIT = "7"'), Preferences(True, 7.0)),
        (("wait=0",), Preferences(wait_s=0.0)),
        (("wait=100000",), Preferences(wait_s=300.0)),
        (("wait=1, wait=2",), Preferences(wait_s=1.0)),
        (("wait=-1, handling=lenient",), Preferences()),
        (("wait=1.5",), Preferences()),
        (("wait, , =",), Preferences()),
    ],
)
def test_what_is_understood_is_taken_and_the_rest_passed_over(headers, told):
    assert parse_headers(*headers) == told
