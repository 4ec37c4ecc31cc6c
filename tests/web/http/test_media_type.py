from __future__ import annotations

import pytest

from gateway.config import Topic
from gateway.web.http.content import get_media_type


def parse_media(content_type: bytes | None, model: str = "bytes") -> str:
    topic = Topic.model_validate({"name": "orders", "value": {"model": model}})
    return get_media_type([("x", b"y"), ("Content-Type", content_type)], topic)


@pytest.mark.parametrize(
    "said", ["text/plain", "image/svg+xml", "text/x; charset=utf-8", "multipart/x;a=b; c=d"]
)
def test_the_record_says_its_type(said: str):
    assert parse_media(said.encode()) == said


def test_a_decoded_value_is_json_whatever_its_bytes_were():
    topic = Topic.model_validate({"name": "o", "value": {"model": "avro", "catalog": "r"}})
    for said, expected in (
        (b"application/avro", "application/json"),
        (b"application/vnd.o+json; v=1", "application/vnd.o+json; v=1"),
    ):
        assert get_media_type([("content-type", said)], topic) == expected


@pytest.mark.parametrize(
    "said", [None, b"", b"text", b"text/plain\r\nSet-Cookie: a=b", b"text/\xff", b"a b/c"]
)
def test_what_is_no_type_is_that_of_the_topic(said: bytes | None):
    assert parse_media(said) == "application/octet-stream"
    assert parse_media(said, "json") == "application/json"
    assert parse_media(said, "string") == "text/plain; charset=utf-8"
