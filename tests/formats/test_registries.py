"""The client and the codecs on two registries: the tests' own, and a real one (Apicurio)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from support.apicurio import running_apicurio
from support.app_server import running_app
from support.registry import FakeRegistry as Fake

from gateway.config import SchemaRegistry
from gateway.errors import FormatError, RegistryUnavailable
from gateway.formats.codec import (
    SCHEMA_CODECS,
    Codecs,
    SchemaNotLoaded,
    SchemaReference,
    SchemaSelector,
    SerializationFormat,
)

RECORD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WIDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}],
}
PROTO = 'syntax = "proto3";\npackage shop;\n\nmessage Order {\n  int64 id = 1;\n}\n'
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
}
CASES: list[tuple[SerializationFormat, str, Any, Any]] = [
    (SerializationFormat.AVRO, json.dumps(RECORD), {"id": 5}, {"id": "x"}),
    (SerializationFormat.PROTOBUF, PROTO, {"id": "5"}, {"id": "x"}),
    (SerializationFormat.JSONSCHEMA, json.dumps(JSON), {"id": 5}, {"id": "x"}),
]
FORMATS = pytest.mark.parametrize(
    ("format", "text", "value", "bad"), CASES, ids=lambda each: getattr(each, "name", "")
)


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    with running_apicurio() as url:
        yield url


@pytest.fixture(params=["own", pytest.param("apicurio", marks=pytest.mark.needs("maven"))])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "apicurio":
        yield request.getfixturevalue("real")
        return
    async with running_app(Fake().app) as url:
        yield url


@pytest.fixture
async def codecs(url: str) -> AsyncIterator[Codecs]:
    made = codecs_of(url)
    yield made
    await made.close()


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex[:8]}"


def codecs_of(url: str, **options: Any) -> Codecs:
    made = {"type": "schema-registry", "url": url, "timeout": "20s", **options}
    return Codecs(SchemaRegistry.model_validate(made))


@FORMATS
async def test_a_value_is_written_and_read_by_who_knows_only_its_bytes(
    codecs, url, topic, format, text, value, bad
):
    data, id = await codecs.encode(format, topic, False, value, SchemaSelector(text=text))
    assert data is not None and id is not None
    assert data[:5] == b"\0" + id.to_bytes(4, "big")
    other = codecs_of(url)
    with pytest.raises(SchemaNotLoaded):
        other.decode_cached(format, topic, False, data)
    assert await other.decode(format, topic, False, data) == value
    assert other.decode_cached(format, topic, False, data) == value
    assert json.loads(other.decode_text_cached(format, data)) == value
    with pytest.raises(FormatError):
        await other.encode(format, topic, False, bad)
    await other.close()


@FORMATS
async def test_a_schema_is_named_by_text_id_version_or_subject(
    codecs, topic, format, text, value, bad
):
    by_text = await codecs.encode(format, topic, True, value, SchemaSelector(text=text))
    id, subject = by_text.schema_id, f"{topic}-key"
    for ref in (
        SchemaSelector(id=id),
        SchemaSelector(version=1),
        SchemaSelector(),
        SchemaSelector(subject=subject),
        SchemaSelector(subject=subject, version=1),
    ):
        assert await codecs.encode(format, topic, True, value, ref) == by_text
        assert codecs.encode_cached(format, topic, True, value, ref) == by_text


async def test_the_latest_is_of_the_newest_version(url: str, topic: str):
    codecs = codecs_of(url, maxAge="0s")
    first = SchemaSelector(text=json.dumps(RECORD))
    await codecs.encode(SerializationFormat.AVRO, topic, False, {"id": 1}, first)
    second = SchemaSelector(text=json.dumps(WIDER))
    newer = await codecs.encode(
        SerializationFormat.AVRO, topic, False, {"id": 1, "note": "x"}, second
    )
    latest = await codecs.encode(SerializationFormat.AVRO, topic, False, {"id": 1, "note": "x"})
    assert latest == newer
    old = await codecs.encode(
        SerializationFormat.AVRO, topic, False, {"id": 1}, SchemaSelector(version=1)
    )
    assert old.schema_id != newer.schema_id
    await codecs.close()


async def test_what_is_not_there_is_told(codecs: Codecs, topic: str):
    with pytest.raises(FormatError, match=f"no subject '{topic}-value'"):
        await codecs.encode(SerializationFormat.AVRO, topic, False, {"id": 1})
    with pytest.raises(FormatError, match="no schema with the id 999999"):
        await codecs.decode(SerializationFormat.AVRO, topic, False, b"\0\0\x0f\x42\x3fx")
    text = SchemaSelector(text=json.dumps(RECORD))
    await codecs.encode(SerializationFormat.AVRO, topic, False, {"id": 1}, text)
    with pytest.raises(FormatError, match="has no version 9"):
        await codecs.encode(
            SerializationFormat.AVRO, topic, False, {"id": 1}, SchemaSelector(version=9)
        )


async def test_a_schema_of_another_format_is_told(codecs: Codecs, topic: str):
    text = SchemaSelector(text=json.dumps(RECORD))
    data, id = await codecs.encode(SerializationFormat.AVRO, topic, False, {"id": 1}, text)
    with pytest.raises(FormatError, match=f"schema {id} is of format avro, not protobuf"):
        await codecs.decode(SerializationFormat.PROTOBUF, topic, False, data)
    with pytest.raises(FormatError, match=f"schema {id} is of format avro, not jsonschema"):
        await codecs.encode(SerializationFormat.JSONSCHEMA, topic, False, {"id": 1})


async def test_a_text_that_is_no_schema_is_the_callers_fault(codecs: Codecs, topic: str):
    with pytest.raises(FormatError, match="is refused"):
        await codecs.encode(SerializationFormat.AVRO, topic, False, 1, SchemaSelector(text="{"))


async def test_references_are_found(codecs: Codecs, url: str, topic: str):
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    await codecs.encode(
        SerializationFormat.AVRO,
        topic,
        False,
        {"cents": 1},
        SchemaSelector(subject=f"{topic}-m", text=json.dumps(money)),
    )
    order = {"type": "record", "name": "O", "fields": [{"name": "price", "type": "Money"}]}
    used = (SchemaReference("Money", f"{topic}-m", 1),)
    ref = SchemaSelector(text=json.dumps(order), references=used)
    value = {"price": {"cents": 5}}
    data, _ = await codecs.encode(SerializationFormat.AVRO, topic, False, value, ref)
    other = codecs_of(url)
    assert await other.decode(SerializationFormat.AVRO, topic, False, data) == value
    await other.close()


async def test_a_batch_learns_all_of_its_schemas_at_once():
    fake = Fake()
    enums = [{"type": "enum", "name": "E", "symbols": [f"S{n}"]} for n in range(5)]
    ids = [fake.register_schema(f"s{n}", each) for n, each in enumerate(enums)]
    datas = [b"\0" + id.to_bytes(4, "big") + b"\0" for id in ids] * 20
    async with running_app(fake.app) as url:
        codecs = codecs_of(url)
        await codecs.load_schemas(
            SerializationFormat.AVRO, "t", False, [*datas, None, b"", b"unframed"]
        )
        shown = {codecs.decode_cached(SerializationFormat.AVRO, "t", False, data) for data in datas}
        assert shown == {f"S{n}" for n in range(5)}
        assert fake.requests.total() == 5
        fake.error_status = 503
        with pytest.raises(RegistryUnavailable):
            await codecs.load_schemas(SerializationFormat.AVRO, "t", False, [b"\0\0\0\0\x63x"])
        await asyncio.gather(
            *(codecs.decode(SerializationFormat.AVRO, "t", False, each) for each in datas)
        )
        await codecs.close()


LARGE = [
    (
        SerializationFormat.AVRO,
        json.dumps({"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(8000)]}),
        "S5",
    ),
    (
        SerializationFormat.PROTOBUF,
        'syntax = "proto3";' + "".join(f"message M{n} {{ int32 a = 1; }}" for n in range(3000)),
        {"a": 5},
    ),
    (SerializationFormat.JSONSCHEMA, json.dumps({"enum": [f"S{n}" for n in range(8000)]}), "S5"),
    (SerializationFormat.JSONSCHEMA, r'{"p\u0061ttern": "\\p{L}{100}|5"}', "5"),  # takes 20 ms
]


@pytest.mark.needs("process")
@pytest.mark.parametrize(("format", "text", "value"), LARGE, ids=lambda each: str(each)[:9])
async def test_a_slow_schema_is_compiled_once_and_not_in_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, format, text, value
):
    """12,000 messages of Protobuf took the event loop for a second."""
    threads: list[str] = []
    compile_text = SCHEMA_CODECS[format]

    def compile_and_note(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return compile_text(*arguments)

    monkeypatch.setitem(SCHEMA_CODECS, format, compile_and_note)
    fake = Fake()
    kind = format.schema_type or "AVRO"
    id = fake.register_schema("t-value", text, kind)
    async with running_app(fake.app) as url:
        codecs = codecs_of(url)
        written = await asyncio.gather(*(codecs.encode(format, "t", False, value) for _ in "abc"))
        (data,) = {each.data for each in written}
        assert threads == ["schema-compiler"]
        await codecs.close()
        other = codecs_of(url)
        await other.load_schemas(format, "t", False, [data])
        assert other.find_missing_id(data) is None
        assert other.decode_cached(format, "t", False, data) == value
        assert threads == ["schema-compiler"] * 2 and id == 1
        await other.close()


async def test_schemas_that_fill_the_cache_push_each_other_out_and_are_read():
    """Each of them is compiled again for each record, but none is refused."""
    fake = Fake()
    symbol, values = fake.register_large_enums(4)
    async with running_app(fake.app) as url:
        codecs = codecs_of(url)
        for value in values * 2:
            assert await codecs.decode(SerializationFormat.AVRO, "t", False, value) == symbol
        await codecs.close()


async def test_without_a_registry_schemas_are_refused():
    codecs = Codecs()
    for format in (
        SerializationFormat.AVRO,
        SerializationFormat.PROTOBUF,
        SerializationFormat.JSONSCHEMA,
    ):
        with pytest.raises(FormatError, match="needs a schema registry; add one to catalogs"):
            await codecs.encode(format, "t", False, 1)
        with pytest.raises(FormatError, match="needs a schema registry"):
            await codecs.decode(format, "t", False, b"\0\0\0\0\1x")


@pytest.mark.parametrize("data", [b"x", b"\0\0\0", b"\1\0\0\0\1x", b'{"id": 1}'])
async def test_bytes_of_no_registrys_client_are_told_as_that(data: bytes):
    async with running_app(Fake().app) as url:
        codecs = codecs_of(url)
        with pytest.raises(FormatError, match="not with 00 and an id"):
            await codecs.decode(SerializationFormat.AVRO, "t", False, data)
        await codecs.close()
