from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.sidecar.v2.media import (
    build_media_type,
    is_confluent_request,
    iter_accepted_types,
    parse_media_type,
)


@pytest.mark.parametrize("format", SERIALIZATION_FORMATS.values())
def test_a_format_is_what_its_type_says(format):
    assert parse_media_type(build_media_type(format)) == (format,)


@pytest.mark.parametrize(
    "text", ["application/vnd.kafka.v2+json", "application/vnd.kafka+json; charset=utf-8"]
)
def test_nothing_may_be_embedded(text):
    assert parse_media_type(text) == (None,)


@pytest.mark.parametrize(
    "text",
    ["application/json", "application/vnd.kafka.v3+json", "application/vnd.kafka.v2+xml", ""],
)
def test_others_are_none_of_the_dialect(text):
    assert parse_media_type(text) is None


def test_a_client_speaks_it_by_either_header():
    assert is_confluent_request(Headers({"accept": "application/vnd.kafka.v2+json, */*"}))
    assert is_confluent_request(Headers({"content-type": "application/vnd.kafka.json.v2+json"}))
    assert not is_confluent_request(Headers({"content-type": "application/json", "accept": "*/*"}))


def test_what_is_accepted_comes_best_first_and_refused_types_not_at_all():
    headers = Headers({"accept": "a/a;q=0.1, b/b, c/c;q=0, d/d;q=0.5"})
    assert list(iter_accepted_types(headers)) == ["b/b", "d/d", "a/a"]
