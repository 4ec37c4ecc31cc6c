"""The rules of RFC 9110 12.5.1, by its own example and the odd headers of the world."""

from __future__ import annotations

import pytest

from gateway.web.http.content import NOT_ACCEPTABLE, MediaPreference, get_media_preference


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", (1.0, 0)),
        ("*/*", (1.0, 0)),
        ("text/*", (1.0, 1)),
        ("text/plain", (1.0, 2)),
        ("TEXT/Plain", (1.0, 2)),
        ("text/plain;q=0.5", (0.5, 2)),
        ("text/plain ; Q=0.5 ", (0.5, 2)),
        ("text/plain;charset=utf-8;q=0.7", (0.7, 2)),
        ("application/json, text/plain;q=0.2, */*;q=0.9", (0.2, 2)),
        ("text/*;q=0.3, text/plain;q=0.7, */*;q=0.5", (0.7, 2)),
        ("text/html, text/*;q=0.3, */*;q=0.5", (0.3, 1)),
        ('audio/basic;title="a, text/plain;q=0", */*;q=0.1', (0.1, 0)),
        ("text/plain;q=0, */*", (0.0, 0)),
        ("text/html", (0.0, 0)),
        ("text/plain;q=2", (0.0, 0)),
        ("text/plain;q=nan, */*;q=0.1", (0.1, 0)),
        ("text/plain;q=0.1234", (0.0, 0)),
        (",,;, text/plain", (1.0, 2)),
        ("text/plain, text/plain;q=0.1", (1.0, 2)),
        ('"', (0.0, 0)),
    ],
)
def test_the_most_specific_range_decides(header: str, expected: tuple[float, int]):
    assert get_media_preference(header, "text/plain") == MediaPreference(*expected)
    assert (get_media_preference(header, "text/plain") == NOT_ACCEPTABLE) is (expected[0] == 0)


def test_a_header_as_long_as_a_head_may_be_is_read_at_once():
    for piece in (",", '"', '\\"', "a,", ";q=", "*/*;q=0.001,"):
        assert get_media_preference(piece * (64_000 // len(piece)), "text/plain").quality <= 0.001
