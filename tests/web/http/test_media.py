from __future__ import annotations

import pytest

from gateway.config import Topic
from gateway.web.http.media import media_of


def media(said: bytes | None, model: str = "bytes") -> str:
    topic = Topic.model_validate({"name": "orders", "value": {"model": model}})
    return media_of([("x", b"y"), ("Content-Type", said)], topic)


@pytest.mark.parametrize(
    "said", ["text/plain", "image/svg+xml", "text/x; charset=utf-8", "multipart/x;a=b; c=d"]
)
def test_the_record_says_its_type(said: str):
    assert media(said.encode()) == said


@pytest.mark.parametrize(
    "said", [None, b"", b"text", b"text/plain\r\nSet-Cookie: a=b", b"text/\xff", b"a b/c"]
)
def test_what_is_no_type_is_that_of_the_topic(said: bytes | None):
    assert media(said) == "application/octet-stream"
    assert media(said, "json") == "application/json"
    assert media(said, "string") == "text/plain; charset=utf-8"
