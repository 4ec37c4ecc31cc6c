from __future__ import annotations

import pytest
from starlette.requests import Request

from gateway.web.http.prefer import Preferences, preferences


def asked(*headers: str) -> Preferences:
    told = [(b"prefer", each.encode()) for each in headers]
    return preferences(Request({"type": "http", "headers": told}))


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ((), Preferences()),
        (("respond-async",), Preferences(respond_async=True)),
        (("wait=10",), Preferences(wait=10.0)),
        (("respond-async, wait=10",), Preferences(True, 10.0)),
        (("wait=10; respond-async",), Preferences(True, 10.0)),
        (("Respond-Async", 'WAIT = "7"'), Preferences(True, 7.0)),
        (("wait=0",), Preferences(wait=0.0)),
        (("wait=100000",), Preferences(wait=300.0)),
        (("wait=1, wait=2",), Preferences(wait=1.0)),
        (("wait=-1, handling=lenient",), Preferences()),
        (("wait=1.5",), Preferences()),
        (("wait, , =",), Preferences()),
    ],
)
def test_what_is_understood_is_taken_and_the_rest_passed_over(
    headers: tuple[str, ...], told: Preferences
):
    assert asked(*headers) == told
