from __future__ import annotations

import json
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.channel.exact_json import normalize_number, parse_exact, parse_json, parse_number

numerals = st.from_regex(
    r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", fullmatch=True
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'"thanks \ud83d"', "thanks \ufffd"),
        (rb'"\\ud83d \ud83d\ude00 \uDE00\ud83d!"', "\\ud83d \U0001f600 \ufffd\ufffd!"),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b"[1e400, -1e400]", [float("inf"), float("-inf")]),
        (b"[1e400, 123456789012345678901]", [float("inf"), 123456789012345678901.0]),
    ],
)
def test_what_a_browser_parses_is_json(text: bytes, value: object):
    """Half an emoji, as JavaScript writes it, made a value unreadable for filters and fields."""
    assert parse_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"NaN", rb'{"a": -Infinity, "b": "\ud83d"}', b"plain", b"", b'"\xff\\ud83d"', rb'"\ud8zz"',
        b'"\xed\xa0\xbd"', b"\xef\xbb\xbf\xef\xbb\xbf1", "{}".encode("utf-16"), b"[" * 5000,
        b'"\\ud83d\n"', b"[1e400, " + b"[" * 1020,
    ],
)  # fmt: skip
def test_what_no_browser_parses_is_none(text: bytes):
    with pytest.raises(orjson.JSONDecodeError):
        parse_json(text)


def test_numbers_are_read_as_they_are_written():
    data = b'{"a": [1.50, -0, 18446744073709551617], "b": "1.50", "c": 1E5}'
    assert parse_exact(data) == {
        "a": ["1.50", "-0", "18446744073709551617"],
        "b": "1.50",
        "c": "1E5",
    }
    again = orjson.dumps(parse_exact(data, orjson.Fragment))
    assert again == b'{"a":[1.50,-0,18446744073709551617],"b":"1.50","c":1E5}'


@given(numerals)
def test_a_numeral_is_its_number_exactly(text: str):
    number = parse_number(text)
    assert number is not None
    assert json.loads(text, parse_float=Decimal, parse_int=Decimal) == number


@pytest.mark.parametrize(
    "text",
    ["", "a", "01", "1.", ".5", "+1", "0x10", "1_0", " 1", "1 ", "1\n", "NaN", "Infinity", "--1",
     "1e", "\u0661", "1e" + "9" * 30],
)  # fmt: skip
def test_what_json_has_not_as_a_number_is_none(text: str):
    assert parse_number(text) is None


@given(st.integers(-(10**50), 10**50).filter(bool), st.integers(-60, 60), st.integers(0, 9))
def test_equal_numbers_are_one_value_however_they_are_written(digits, exponent, zeros):
    number = parse_number(f"{digits}e{exponent}")
    wider = parse_number(f"{digits}{'0' * zeros}e{exponent - zeros}")
    assert number is not None and wider is not None
    assert normalize_number(number) == normalize_number(wider) == number
    assert repr(normalize_number(number)) == repr(normalize_number(wider))


def test_an_int_of_any_length_is_kept_whole():
    for digits in (1, 39, 40, 41, 400):
        assert normalize_number(10**digits + 7) == 10**digits + 7
        assert repr(normalize_number(10**digits)) == repr(normalize_number(Decimal(f"1e{digits}")))
