"""Numbers that 64 bits cannot hold: written with the digits that they came with."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import FormatError
from gateway.formats.avro.codec import AvroCodec
from gateway.formats.exact_values import ExactJson, has_inexact_number, keep_exact_numbers
from gateway.formats.json_schema import JsonSchemaCodec
from gateway.formats.plain import JsonCodec
from gateway.formats.serialization import SerializationFormat

JSON = {"key": SerializationFormat.JSON, "value": SerializationFormat.JSON}
LONG = (
    "18446744073709551616", "-9223372036854775809", "123456789012345678901234567890",
    "0.1234567890123456789", "1.5e-320", "1e-400", "123456789.0123456789",
)  # fmt: skip


def kept(value: str, formats: Any = JSON) -> Any:
    """Of the only record of a request."""
    data = b'{"records":[{"value":%b,"partition":1}]}' % value.encode()
    body = orjson.loads(data)
    records = body["records"]
    keep_exact_numbers(data, body, records, formats)
    assert records[0]["partition"] == 1
    return records[0]["value"]


@pytest.mark.parametrize("text", LONG)
def test_a_number_that_a_double_cannot_hold_keeps_its_digits(text):
    assert JsonCodec().encode(kept(f'{{"a":[{text}]}}')) == f'{{"a":[{text}]}}'.encode()


@pytest.mark.parametrize(
    "text", ["1.10", "-0", "-0.0", "[1,-0]", '{"price":1.10,"zero":-0}', "5.0"]
)
def test_a_number_keeps_its_digits_whatever_stands_beside_it(text):
    """A fraction lost its last zero, unless a long number stood in the same request."""
    assert JsonCodec().encode(kept(text)) == text.encode()
    beside = f"[{text},18446744073709551616]"
    assert JsonCodec().encode(kept(beside)) == beside.encode()


@pytest.mark.parametrize("text", ['"1.10"', '"a.b-0 v1.20"', "-1.5", "[0.5,-0.25]"])
def test_text_that_looks_like_a_number_is_none(text):
    assert not has_inexact_number(text.encode(), orjson.loads(text))
    assert kept(text) == ExactJson(orjson.loads(text), text.encode())


@pytest.mark.parametrize("text", ["7", "-1.5", "0.1", "123456789012.34", '"18"'])
def test_what_loses_nothing_is_not_read_twice(text):
    escaped = f'["\\/",{text}]'.encode()  # which is written in another way than it came
    assert not has_inexact_number(escaped, orjson.loads(escaped))
    assert kept(text) == ExactJson(orjson.loads(text), text.encode())


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers())
def test_any_number_is_the_same_number_in_kafka(decimal, integer):
    text = f"[{str(decimal).replace('E', 'e')},{integer}]"
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:  # beyond a double: the request is refused
        assert abs(decimal) > 10**308 or abs(integer) > 10**308
        return
    written = JsonCodec().encode(kept(text))
    assert written == text.encode()
    assert json.loads(written, parse_int=Decimal, parse_float=Decimal) == [decimal, integer]


number_texts = st.sampled_from(
    ["0", "7", "-1.5", "19.95", "1.10", "-0", "5.0", "1e2", "1E-3", "0.1", *LONG]
)
json_texts = st.recursive(
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "ignore").decode())
    | number_texts.map(Decimal),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("ab1. é", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def write_json(value: Any, ensure_ascii: bool, space: str) -> str:
    """With the digits of each number, which `json` would not keep."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        inner = f",{space}".join(write_json(each, ensure_ascii, space) for each in value)
        return f"[{space}{inner}]"
    if isinstance(value, dict):
        inner = f",{space}".join(
            f"{json.dumps(name, ensure_ascii=ensure_ascii)}:{space}"
            f"{write_json(each, ensure_ascii, space)}"
            for name, each in value.items()
        )
        return f"{{{space}{inner}}}"
    return json.dumps(value, ensure_ascii=ensure_ascii)


@given(
    st.lists(st.fixed_dictionaries({}, optional={"key": json_texts, "value": json_texts})),
    st.booleans(),
    st.sampled_from(["", " ", "\n\t"]),
)
def test_values_are_written_alike_however_their_request_is(records, ensure_ascii, space):
    """Kafka gets no whitespace, no escapes that are not needed, and all digits."""
    data = write_json({"records": records}, ensure_ascii, space).encode()
    body = orjson.loads(data)
    keep_exact_numbers(data, body, body["records"], JSON)
    encode = JsonCodec().encode
    written = [{name: encode(value) for name, value in each.items()} for each in body["records"]]
    assert written == [
        {name: write_json(value, False, "").encode() for name, value in record.items()}
        for record in records
    ]


@pytest.mark.parametrize("number", ["1e-05", "9e-07", "1e+16", "1.5E-9"])
def test_a_number_keeps_its_digits_beside_an_escape(number):
    """Python's `json`, by which such bodies are compared, writes it in another way than orjson."""
    written = JsonCodec().encode(kept(f'{{"name":"\\u00e9","n":{number}}}'))
    assert written == f'{{"name":"é","n":{number}}}'.encode()


def test_of_a_name_that_comes_twice_the_last_value_is_written():
    assert JsonCodec().encode(kept('{"a":1,"b":2,"a":3}')) == b'{"a":3,"b":2}'
    assert JsonCodec().encode(kept('{"a":1.10,"b":2,"a":1.20}')) == b'{"a":1.20,"b":2}'


def test_other_formats_and_other_members_are_let_be():
    value = "18446744073709551616"
    assert kept(
        value, {"key": SerializationFormat.JSON, "value": SerializationFormat.PROTOBUF}
    ) == float(value)
    line = b'{"key":%b,"records":[],"timestamp":1}' % value.encode()
    record = orjson.loads(line)
    keep_exact_numbers(line, record, [record], JSON, select_records=lambda parsed: [parsed])
    assert record == {"key": ExactJson(float(value), value.encode()), "records": [], "timestamp": 1}


def test_a_schema_is_held_against_the_number_and_its_digits_are_written():
    schema = JsonSchemaCodec('{"type":"integer","minimum":18446744073709551616}', {})
    assert schema.encode(kept("18446744073709551617")) == b"18446744073709551617"
    with pytest.raises(FormatError, match="minimum"):
        schema.encode(kept("-18446744073709551617"))


@pytest.mark.parametrize("text", ["99999999999999999.99", "1e5", "-0.10"])
def test_decimals_of_avro_are_not_rounded(text):
    """123456789012345678901234 became 123456789012345690000000 without a word."""
    avro = SerializationFormat.AVRO
    decimal = '{"type":"bytes","logicalType":"decimal","precision":38,"scale":2}'
    value = kept(text, {"key": SerializationFormat.JSON, "value": avro})
    written = AvroCodec(decimal, {}).encode(value)
    assert Decimal(AvroCodec(decimal, {}).decode(written)) == Decimal(text)
    assert AvroCodec('"double"', {}).encode(value) == AvroCodec('"double"', {}).encode(float(text))


def test_what_is_nested_too_deep_is_refused_as_without_long_numbers():
    for number in ("1", "18446744073709551616"):
        for depth in (300, 1000):
            with pytest.raises(FormatError, match="cannot be written as JSON"):
                JsonCodec().encode(kept("[" * depth + number + "]" * depth))


@pytest.mark.parametrize(
    "text", ["5e2b8f10-3d43-4b6e-9a0c-2c7cf1f2b7a4", "x12345678901234567", "7e1"]
)
def test_what_only_looks_like_such_a_number_within_a_string_is_not_read_again(text):
    data = b'{"slash": "\\/", "id": "%b", "price": 19.95}' % text.encode()
    assert not has_inexact_number(data, orjson.loads(data))


def test_many_places_that_look_like_such_numbers_are_not_all_looked_at():
    data = b'{"records": [{"value": "x%b", "key": 1e2}]}' % (b"0e-" * 5000)
    body = orjson.loads(data)
    records = body["records"]
    keep_exact_numbers(
        data, body, records, {"key": SerializationFormat.JSON, "value": SerializationFormat.JSON}
    )
    assert records[0]["key"].text == b"1e2"
