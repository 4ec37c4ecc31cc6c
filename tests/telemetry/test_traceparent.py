"""W3C Trace Context 3.2: what is a traceparent, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.traceparent import Traceparent, parse, parse_headers

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read_again(trace: int, span: int, sampled: bool):
    told = Traceparent(trace, span, sampled)
    assert parse(str(told).encode()) == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_no_traceparent_is_none(text: str):
    assert parse(text.encode()) is None


def test_of_a_later_version_what_this_one_knows_counts():
    told = parse(f"cc-{TRACE}-{SPAN}-03-what the future brings".encode())
    assert told == Traceparent(int(TRACE, 16), int(SPAN, 16), True)


def test_of_a_records_headers_the_last_one_counts_and_a_null_is_none():
    good = f"00-{TRACE}-{SPAN}-00".encode()
    found = parse_headers([("traceparent", b"junk"), ("a", b"b"), ("traceparent", good)])
    assert found is not None and not found.sampled
    assert parse_headers([("traceparent", good), ("traceparent", None)]) is None
    assert parse_headers([("Traceparent", good)]) is None
    assert parse_headers([]) is None
