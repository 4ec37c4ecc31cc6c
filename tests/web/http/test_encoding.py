"""Who gets which coding: those who name it and want nothing plainer."""

from __future__ import annotations

import pytest

from gateway.web.http.encoding import prefers_dcz, prefers_gzip


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br, zstd", True),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("gzip;q=0.001", True),
        ("gzip;q=0", False),
        ("gzip;q=0, x-gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("identity;q=0", False),
        ("identity, gzip", True),
        ("identity, gzip;q=0.9", False),
        ("identity;q=0.5, gzip;q=0.9", True),
        ("identity;q=0, gzip;q=0.1", True),
        ("gzip;q=0.5, *;q=1", False),
        ("*", False),
        ("*;q=0", False),
        ("br, deflate", False),
        ("gzip;q=7", False),
        ("gzip, gzip;q=0", True),
        ("gzipped", False),
    ],
)
def test_gzip_is_for_whoever_names_it_and_wants_nothing_plainer(header: str, expected: bool):
    assert prefers_gzip(header) is expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip, deflate, br, zstd, dcb, dcz", True),
        ("dcz;q=0", False),
        ("dcz;q=0.5, identity;q=0.6", False),
        ("gzip, zstd", False),
        ("*", False),
    ],
)
def test_a_dictionary_is_for_whoever_names_its_coding(header: str, expected: bool):
    assert prefers_dcz(header) is expected
