from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from gateway.formats.codec import Format
from gateway.sidecar.v2.media import accepted, of_format, parsed, speaks


@pytest.mark.parametrize("format", list(Format))
def test_a_format_is_what_its_type_says(format):
    assert parsed(of_format(format)) == (format,)


@pytest.mark.parametrize(
    "text", ["application/vnd.kafka.v2+json", "application/vnd.kafka+json; charset=utf-8"]
)
def test_nothing_may_be_embedded(text):
    assert parsed(text) == (None,)


@pytest.mark.parametrize(
    "text",
    ["application/json", "application/vnd.kafka.v3+json", "application/vnd.kafka.v2+xml", ""],
)
def test_others_are_none_of_the_dialect(text):
    assert parsed(text) is None


def test_a_client_speaks_it_by_either_header():
    assert speaks(Headers({"accept": "application/vnd.kafka.v2+json, */*"}))
    assert speaks(Headers({"content-type": "application/vnd.kafka.json.v2+json"}))
    assert not speaks(Headers({"content-type": "application/json", "accept": "*/*"}))


def test_what_is_accepted_comes_best_first_and_refused_types_not_at_all():
    headers = Headers({"accept": "a/a;q=0.1, b/b, c/c;q=0, d/d;q=0.5"})
    assert list(accepted(headers)) == ["b/b", "d/d", "a/a"]
