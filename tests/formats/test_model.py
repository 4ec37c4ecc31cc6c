"""Models of keys and values: bytes to what is shown, and back."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest
from support.app_server import running_app
from support.registry import FakeRegistry

from gateway.config import SchemaRegistry
from gateway.errors import FormatError
from gateway.formats.codec import Codecs
from gateway.formats.model import Model


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("int", b"\xff\xff\xff\xfe", b"-2"),
        ("long", (2**62).to_bytes(8, "big"), b"4611686018427387904"),
        ("float", struct.pack(">f", 1.5), b"1.5"),
        ("double", struct.pack(">d", float("-inf")), b'"-Infinity"'),
        ("boolean", b"\1", b"true"),
        ("boolean", b"\0", b"false"),
    ],
)
async def test_numbers_are_as_kafkas_own_serializers_write_them(name, data, text):
    model = Model(name)
    assert model.decode(data) == text
    assert await model.encode("t", text) == data


@pytest.mark.parametrize(
    ("name", "data"),
    [("int", b"\0"), ("long", b"\0" * 4), ("boolean", b"\2"), ("boolean", b""), ("double", b"1.5")],
)
def test_bytes_of_another_length_are_none_of_the_model(name: str, data: bytes):
    with pytest.raises(FormatError):
        Model(name).decode(data)


@pytest.mark.parametrize(
    ("name", "text"),
    [("int", b"x"), ("int", b"1.5"), ("int", b"true"), ("int", b"4294967296"), ("boolean", b"1"),
     ("float", b"1e300"), ("double", b'"x"'), ("long", b"null")],
)  # fmt: skip
async def test_what_is_none_of_the_model_is_not_written(name: str, text: bytes):
    with pytest.raises(FormatError):
        await Model(name).encode("t", text)


@pytest.fixture
async def codecs() -> AsyncIterator[Codecs]:
    fake = FakeRegistry()
    fake.register_schema("words-key", '"string"')
    fields = [{"name": "x", "type": "int"}]
    fake.register_schema("points-key", {"type": "record", "name": "P", "fields": fields})
    fake.register_schema(
        "prices-value", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    )
    async with running_app(fake.app) as url:
        made = Codecs(SchemaRegistry.model_validate({"type": "schema-registry", "url": url}))
        yield made
        await made.close()


async def test_a_key_that_is_text_has_no_quotes(codecs: Codecs):
    model = Model("avro", codecs, is_key=True)
    for text in (b"ada", b"42", b'"quoted"', "é".encode(), b"null"):
        data = await model.encode("words", text)
        assert model.decode(data) == text
    data = await model.encode("points", b'{"x": 5}')
    assert model.decode(data) == b'{"x":5}'


async def test_a_decimal_is_written_with_all_its_digits(codecs: Codecs):
    model = Model("avro", codecs)
    assert model.decode(await model.encode("prices", b"99999999999999999.99")) == (
        b'"99999999999999999.99"'
    )


async def test_a_value_that_is_text_has_quotes(codecs: Codecs):
    model = Model("avro", codecs)
    assert model.find_missing_id(b"\0\0\0\0\1\x06ada") == 1
    await model.load_schema_ids([1])
    assert model.find_missing_id(b"\0\0\0\0\1\x06ada") is None
    assert model.decode(b"\0\0\0\0\1\x06ada") == b'"ada"'
