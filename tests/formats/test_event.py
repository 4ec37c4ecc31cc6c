from __future__ import annotations

from base64 import b64decode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.log.record import Record, TopicPartition
from gateway.formats import create_format
from gateway.formats.event import bytes_to_json, create_json_encoder, encode_delete


def bytes_of(shown: Any) -> bytes | None:
    """What a client does to have the bytes back."""
    if isinstance(shown, dict):
        return b64decode(shown["base64"])
    return None if shown is None else shown.encode()


@given(st.none() | st.binary() | st.text().map(lambda s: s.encode(errors="replace")))
def test_bytes_come_back_from_json_without_guessing(data: bytes | None):
    assert bytes_of(orjson.loads(orjson.dumps(bytes_to_json(data)))) == data


def test_a_value_that_looks_like_the_base64_form_is_still_a_string():
    assert bytes_to_json(b'{"base64": "aGk="}') == '{"base64": "aGk="}'


def test_a_tombstone_says_which_key_is_gone():
    record = Record(TopicPartition("orders", 0), 1, 0, 0, b"ada", None)
    assert encode_delete(record) == ("delete", b'{"key":"ada"}')
    assert encode_delete(record._replace(key=None)) == ("delete", b'{"key":null}')
    assert encode_delete(record._replace(key=b"\xff")) == ("delete", b'{"key":{"base64":"/w=="}}')


@pytest.mark.parametrize(
    ("value", "text", "base64"),
    [
        (b'{"n": 1.50}', b'{"n": 1.50}', b'"eyJuIjogMS41MH0="'),
        (b'{\r\n"n":1\n}', b'{  "n":1 }', b'"ew0KIm4iOjEKfQ=="'),
        ("grün".encode(), '"grün"'.encode(), b'"Z3LDvG4="'),
        (b"\xd7m\xf8", None, b'"1234"'),
        (b"\xb6\xbb\x9e", None, b'"true"'),
        (b'\xef\xbb\xbf"\\ud83d"', b'"\\ud83d"', b'"77u/Ilx1ZDgzZCI="'),
        (b"", b'""', b'""'),
    ],
)
def test_payloads_become_json_and_base64_always_a_string(value: bytes, text, base64: bytes):
    """`1234` is the base64 of three bytes, and went out as a number over WebSocket."""
    record = Record(TopicPartition("orders", 0), 1, 0, 0, None, value)
    for binary, expected in (("error", text), ("base64", base64)):
        format = create_format("value", binary=binary)
        name, payload = format(record)
        if expected is not None:
            assert (name, create_json_encoder(format)(payload)) == (None, expected)
