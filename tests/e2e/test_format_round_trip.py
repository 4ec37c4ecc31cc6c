"""10,000 generated values of each format: written, through Kafka, and read; the bytes are held
against another client's. Values are drawn in parts and put together, 500 of each draw."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from io import BytesIO
from typing import Any

import fastavro
import orjson
import pytest
from confluent_kafka import Consumer, TopicPartition
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import Sent, produce
from support.registry import Registry
from support.served import served

from gateway.config import SchemaRegistry
from gateway.formats.codec import Codecs, Format, SchemaRef
from gateway.kafka.embedded import EmbeddedKafka

COUNT = 10_000
AT_ONCE = 500
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONG = st.integers(-(2**63), 2**63 - 1)
DOUBLE = st.floats(allow_nan=False, allow_infinity=False)
AVRO = {
    "type": "record",
    "name": "V",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "x", "type": "double"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "b", "type": "boolean"},
        {"name": "l", "type": {"type": "array", "items": "string"}},
    ],
}
PROTO = """syntax = "proto3";
message V { sint64 n = 1; double x = 2; optional string s = 3; bool b = 4; repeated string l = 5; }
"""
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}},
    "required": ["n", "x", "s", "b", "l"],
}
Pools = tuple[list[int], list[float], list[str | None], list[list[str]]]
POOLS: st.SearchStrategy[Pools] = st.tuples(
    st.lists(LONG, min_size=20, max_size=20),
    st.lists(DOUBLE, min_size=20, max_size=20),
    st.lists(st.none() | TEXT, min_size=20, max_size=20),
    st.lists(st.lists(TEXT, max_size=3), min_size=20, max_size=20),
)


def values(count: int) -> list[dict[str, Any]]:
    """So many, out of what hypothesis draws."""
    found: list[dict[str, Any]] = []

    @settings(
        max_examples=4 * count // AT_ONCE,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(POOLS, st.integers())
    def draw(pools: Pools, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(AT_ONCE):
            n, x, s, lines = map(chance.choice, pools)
            found.append({"n": n, "x": x, "s": s, "b": chance.random() < 0.5, "l": lines})

    draw()
    chance = random.Random(0)
    chance.shuffle(found)
    assert len({orjson.dumps(each) for each in found[:count]}) > count // 2
    return found[:count]


@pytest.fixture(scope="module")
def generated() -> list[dict[str, Any]]:
    return values(COUNT)


def avro_by_another(data: bytes) -> Any:
    return fastavro.schemaless_reader(BytesIO(data[5:]), AVRO, None)


def _message() -> Any:
    """Its class, with no .proto file read."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="v.proto", syntax="proto3")
    message = file.message_type.add(name="V")
    message.oneof_decl.add(name="_s")
    fields = (("n", 18, 1), ("x", 1, 1), ("s", 9, 1), ("b", 8, 1), ("l", 9, 3))
    for number, (name, kind, label) in enumerate(fields, 1):
        field = message.field.add(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
        if name == "s":
            field.proto3_optional, field.oneof_index = True, 0
    assert kinds.TYPE_SINT64 == 18
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("V"))


MESSAGE = _message()


def protobuf_by_another(data: bytes) -> Any:
    assert data[5:6] == b"\0"
    made = MESSAGE.FromString(data[6:])
    s = made.s if made.HasField("s") else None
    return {"n": made.n, "x": made.x, "s": s, "b": made.b, "l": list(made.l)}


def as_protobuf(value: dict[str, Any]) -> dict[str, Any]:
    shown = {**value, "n": str(value["n"])}
    if value["s"] is None:
        del shown["s"]
    return shown


def as_text(value: dict[str, Any]) -> str:
    return orjson.dumps(value).decode()


def as_base64(value: dict[str, Any]) -> str:
    return base64.b64encode(orjson.dumps(value)).decode()


By = Callable[[bytes], Any]
CASES: list[tuple[Format, str | None, Callable[[dict[str, Any]], Any], By]] = [
    (Format.BINARY, None, as_base64, json.loads),
    (Format.AVRO, json.dumps(AVRO), dict, avro_by_another),
    (Format.JSON, None, dict, json.loads),
    (Format.JSONSCHEMA, json.dumps(JSON), dict, lambda data: json.loads(data[5:])),
    (Format.PROTOBUF, PROTO, as_protobuf, protobuf_by_another),
    (Format.STRING, None, as_text, json.loads),
]


@pytest.fixture
async def codecs() -> AsyncIterator[Codecs]:
    async with served(Registry().app) as url:
        made = Codecs(SchemaRegistry.model_validate({"type": "schema-registry", "url": url}))
        yield made
        await made.close()


def read(bootstrap: Sequence[str], topic: str, count: int) -> list[bytes]:
    """By librdkafka."""
    consumer = Consumer({"bootstrap.servers": ",".join(bootstrap), "group.id": "g"})
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(found) < count:
            messages = consumer.consume(1_000, timeout=60.0)
            assert messages, f"{len(found)} of {count}"
            found += [message.value() for message in messages]
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(
    ("format", "text", "shown", "by"), CASES, ids=[case[0].name.lower() for case in CASES]
)
async def test_ten_thousand_values_are_what_another_client_reads(
    generated: list[dict[str, Any]],
    embedded: EmbeddedKafka,
    codecs: Codecs,
    format: Format,
    text: str | None,
    shown: Callable[[dict[str, Any]], Any],
    by: By,
):
    embedded.create_topic("values", 1)
    ref = SchemaRef(text=text)
    for start in range(0, COUNT, 2_000):  # the mock cluster keeps little
        some = generated[start : start + 2_000]
        await codecs.encode(format, "values", False, shown(some[0]), ref)
        sent = [codecs.encode_known(format, "values", False, shown(each), ref) for each in some]
        await produce(embedded.bootstrap, "values", [Sent(each.data) for each in sent])
    got = read(embedded.bootstrap, "values", COUNT)
    assert [by(data) for data in got] == generated
    back = [codecs.decode_known(format, "values", False, data) for data in got]
    assert back == list(map(shown, generated))
