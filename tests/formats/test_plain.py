"""Base64, JSON and text: values without a schema."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.errors import FormatError
from gateway.formats.codec import Codecs, SerializationFormat
from gateway.formats.plain import PLAIN_CODECS

JSON = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner | st.none(), max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=8,
)


def round_trip(format: SerializationFormat, value: Any) -> tuple[bytes | None, Any]:
    codecs = Codecs()
    data, schema_id = codecs.encode_cached(format, "orders", False, value)
    assert schema_id is None
    return data, codecs.decode_cached(format, "orders", False, data)


@given(st.binary())
def test_binary_is_the_bytes_that_base64_says(data: bytes):
    assert round_trip(SerializationFormat.BINARY, b64encode(data).decode()) == (
        data,
        b64encode(data).decode(),
    )


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_is_its_utf_8(text: str):
    assert round_trip(SerializationFormat.STRING, text) == (text.encode(), text)


@given(JSON)
def test_json_is_what_another_parser_reads(value: Any):
    data, back = round_trip(SerializationFormat.JSON, value)
    assert data is not None
    assert json.loads(data) == back == value


@pytest.mark.parametrize("format", SERIALIZATION_FORMATS.values())
def test_null_is_a_tombstone_and_no_bytes_are_an_empty_text(format: SerializationFormat):
    codecs = Codecs()
    assert codecs.encode_cached(format, "orders", False, None) == (None, None)
    assert codecs.decode_cached(format, "orders", False, None) is None
    assert codecs.decode_cached(format, "orders", False, b"") == ""


@pytest.mark.parametrize("format", [SerializationFormat.BINARY, SerializationFormat.STRING])
def test_an_empty_text_is_no_bytes(format: SerializationFormat):
    assert round_trip(format, "") == (b"", "")


@pytest.mark.parametrize("text", ["a", "a===", "!!!!", "YQ=", "YQ==\n", "Y Q==", "é"])
def test_what_is_not_quite_base64_is_refused(text: str):
    with pytest.raises(FormatError, match=r"not base64.*; encode the bytes"):
        Codecs().encode_cached(SerializationFormat.BINARY, "orders", False, text)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1, "a number"), (1.5, "a number"), (True, "a boolean"), ([], "an array"), ({}, "an object")],
)
def test_what_is_no_text_is_named_as_json_calls_it(value: Any, kind: str):
    with pytest.raises(FormatError, match=f"format string takes text, not {kind}; write"):
        Codecs().encode_cached(SerializationFormat.STRING, "orders", False, value)


@pytest.mark.parametrize("data", [b"{", b"NaN", b"\xff", b'"\xed\xa0\x80"'])
def test_bytes_that_are_not_json_are_refused(data: bytes):
    with pytest.raises(FormatError, match="not JSON"):
        Codecs().decode_cached(SerializationFormat.JSON, "orders", False, data)


def test_json_that_only_browsers_read_keeps_its_text():
    fragment = PLAIN_CODECS[SerializationFormat.JSON].decode_fragment(b'\xef\xbb\xbf["\\ud83d"]')
    assert orjson.dumps(fragment) == b'["\\ud83d"]'


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(FormatError, match="not UTF-8"):
        Codecs().decode_cached(SerializationFormat.STRING, "orders", False, b"\xff")
