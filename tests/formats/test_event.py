from __future__ import annotations

from base64 import b64decode
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.record import Record, TopicPartition
from gateway.formats.event import delete, json_of


def bytes_of(shown: Any) -> bytes | None:
    """What a client does to have the bytes back."""
    if isinstance(shown, dict):
        return b64decode(shown["base64"])
    return None if shown is None else shown.encode()


@given(st.none() | st.binary() | st.text().map(lambda s: s.encode(errors="replace")))
def test_bytes_come_back_from_json_without_guessing(data: bytes | None):
    assert bytes_of(orjson.loads(orjson.dumps(json_of(data)))) == data


def test_a_value_that_looks_like_the_base64_form_is_still_a_string():
    assert json_of(b'{"base64": "aGk="}') == '{"base64": "aGk="}'


def test_a_tombstone_says_which_key_is_gone():
    record = Record(TopicPartition("orders", 0), 1, 0, 0, b"ada", None)
    assert delete(record) == ("delete", b'{"key":"ada"}')
    assert delete(record._replace(key=None)) == ("delete", b'{"key":null}')
    assert delete(record._replace(key=b"\xff")) == ("delete", b'{"key":{"base64":"/w=="}}')
