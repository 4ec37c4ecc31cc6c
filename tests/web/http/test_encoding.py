"""Who gets which coding: those who name it and want nothing plainer."""

from __future__ import annotations

import asyncio
import gzip
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from gateway.client_memory import ClientMemory, HeldPart
from gateway.web.http.content import GZIP_HEADERS, negotiate_body, prefers_dcz, prefers_gzip


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


async def test_a_large_body_is_compressed_beside_the_event_loop():
    """A page of a megabyte kept all other clients waiting for as long as it was compressed."""
    route: Any = SimpleNamespace(stream=SimpleNamespace(compression="gzip"))
    request = HTTPConnection({"type": "http", "headers": [(b"accept-encoding", b"gzip")]})
    body = b"".join(b'{"n":%d}\n' % n for n in range(20_000))
    memory = ClientMemory(4 * len(body))
    compressing = asyncio.create_task(negotiate_body(body, route, request, memory))
    await asyncio.sleep(0)
    assert not compressing.done()
    # Bodies that waited were let go of in the account only, and filled the process.
    assert memory.by_part[HeldPart.RESPONSES] == len(body)
    assert await negotiate_body(body, route, request, memory) == (body, {})
    compressed, headers = await compressing
    assert gzip.decompress(compressed) == body and headers == GZIP_HEADERS
    assert not memory.total
