from __future__ import annotations

from base64 import b64decode

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.log.record import Record, TopicPartition
from gateway.formats import create_format

RECORD = Record(TopicPartition("orders", 3), 42, 0, 1_700_000_000_000, b"ada", b"{}")


@given(st.text().map(lambda s: s.encode(errors="replace")))
def test_text_is_sent_as_it_is(text: bytes):
    assert create_format("value")(RECORD._replace(value=text)) == (None, text)


@pytest.mark.parametrize("value", [b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"caf\xe9"])
def test_bytes_that_are_no_utf8_give_an_error_event_that_says_where_they_are(value: bytes):
    name, data = create_format("value")(RECORD._replace(value=value))
    told = orjson.loads(data)
    assert name == "error"
    assert (told["topic"], told["partition"], told["offset"]) == ("orders", 3, 42)
    assert "binary: base64" in told["message"]


@given(st.binary())
def test_a_base64_route_sends_every_value_so_text_too(value: bytes):
    name, data = create_format("value", binary="base64")(RECORD._replace(value=value))
    assert (name, b64decode(data)) == (None, value)


@pytest.mark.parametrize("binary", ["error", "base64"])
def test_a_tombstone_is_a_delete_and_an_empty_value_is_not(binary):
    form = create_format("value", binary=binary)
    assert form(RECORD._replace(value=None)) == ("delete", b'{"key":"ada"}')
    assert form(RECORD._replace(value=b"")) == (None, b"")
