"""Generated values of each format, over HTTP into a real broker and back: another client's
bytes are decoded by other means, and the consumer gives what the producer was given."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from typing import Any, NamedTuple

import httpx
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.app_server import running_app
from support.dead_letters import read_committed
from support.instances import ConsumerInstance
from support.registry import FakeRegistry
from support.sidecars import running_sidecar, wait_until_ready

COUNT = 20 * settings().max_examples  # 1,000 by day, 20,000 by night
AT_ONCE = 1_000
DRAWN = 50  # at once: longer lists are too large for hypothesis
TEXT = st.text(max_size=12)
DOUBLE = st.floats(allow_nan=False, allow_infinity=False)
RECORD = st.tuples(
    st.integers(-(2**63), 2**63 - 1), DOUBLE, st.none() | TEXT, st.booleans(),
    st.lists(TEXT, max_size=3),
)  # fmt: skip
PLAIN = st.none() | st.booleans() | st.integers() | TEXT | DOUBLE
# Strategies, and in how many lists of them are 5,000 values: some come again.
VALUES: dict[str, tuple[int, st.SearchStrategy[Any]]] = {
    "text": (260, TEXT),
    "bytes": (280, st.binary(max_size=40)),
    "json": (280, PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(TEXT, PLAIN, max_size=2)),
    "record": (225, RECORD.map(lambda five: dict(zip("nxsbl", five, strict=True)))),
}
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
    "type": "object",
    "properties": {"n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}},
    "required": ["n", "x", "s", "b", "l"],
}


def drawn(examples: int, strategy: st.SearchStrategy[Any]) -> list[Any]:
    """So many, no two the same."""
    found: dict[str, Any] = {}

    @settings(
        max_examples=examples * COUNT // 5_000, phases=[Phase.generate], derandomize=True,
        deadline=None, database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(strategy, min_size=DRAWN, max_size=DRAWN, unique_by=repr))
    def draw(some: list[Any]) -> None:
        found.update((repr(each), each) for each in some)

    draw()
    assert len(found) >= COUNT
    return list(found.values())[:COUNT]


@pytest.fixture(scope="module")
def values() -> dict[str, list[Any]]:
    """Those that were drawn, by the name of their kind."""
    return {}


@pytest.fixture
async def http(kafka: Any) -> AsyncIterator[httpx.AsyncClient]:
    large = {"requestMaxBytes": "4MiB", "maxPartitionFetchBytes": "2MiB", "maxPollRecords": 2000}
    async with (
        running_app(FakeRegistry().app) as url,
        running_sidecar(
            kafka.bootstrap, catalogs={"registry0": {"type": "schema-registry", "url": url}},
            producer={"maxBytes": "4MiB"}, consumer=large,
        ) as http,
    ):  # fmt: skip
        await wait_until_ready(http)
        yield http


def avro_by_another(data: bytes) -> Any:
    """By the letter of Avro's specification, for this schema alone."""
    read = BytesIO(data[5:])

    def number() -> int:
        found = shift = 0
        while (byte := read.read(1)[0]) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
        found |= byte << shift
        return (found >> 1) ^ -(found & 1)

    def text() -> str:
        return read.read(number()).decode()

    n, (x,) = number(), struct.unpack("<d", read.read(8))
    s, b, lines = text() if number() else None, read.read(1) == b"\1", []
    while count := number():
        assert count > 0
        lines += [text() for _ in range(count)]
    assert not read.read()
    return {"n": n, "x": x, "s": s, "b": b, "l": lines}


def _message() -> Any:
    """Its class, with no .proto file read."""
    file = descriptor_pb2.FileDescriptorProto(name="v.proto", syntax="proto3")
    message = file.message_type.add(name="V")
    message.oneof_decl.add(name="_s")
    fields = (("n", 18, 1), ("x", 1, 1), ("s", 9, 1), ("b", 8, 1), ("l", 9, 3))
    for number, (name, kind, label) in enumerate(fields, 1):
        field = message.field.add(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
        if name == "s":
            field.proto3_optional, field.oneof_index = True, 0
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
    """Its own JSON: 64-bit integers are text, and what is not set is not there."""
    shown = {**value, "n": str(value["n"])}
    if value["s"] is None:
        del shown["s"]
    return shown


class Case(NamedTuple):
    """kind: of VALUES. given: what stands in the request and in the answer. by: of the bytes."""

    kind: str
    given: Callable[[Any], Any]
    by: Callable[[bytes], Any]
    schema: str | None = None


def same(value: Any) -> Any:
    return value


CASES = {
    "binary": Case("bytes", lambda value: base64.b64encode(value).decode(), same),
    "avro": Case("record", same, avro_by_another, json.dumps(AVRO)),
    "json": Case("json", same, json.loads),
    "jsonschema": Case("record", same, lambda data: json.loads(data[5:]), json.dumps(JSON)),
    "protobuf": Case("record", as_protobuf, protobuf_by_another, PROTO),
    "string": Case("text", same, bytes.decode),
}


def exactly(value: Any) -> str:
    """1, 1.0 and True are equal, and no two of them are the same JSON."""
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


@pytest.mark.parametrize("format", CASES)
async def test_generated_values_are_what_another_client_reads_and_come_back(
    http, kafka, topic, values, format
):
    kind, given_, by, schema = CASES[format]
    if kind not in values:
        values[kind] = drawn(*VALUES[kind])
    sent = [given_(value) for value in values[kind]]
    name = topic()
    for start in range(0, COUNT, AT_ONCE):
        records = [{"value": each, "partition": 0} for each in sent[start : start + AT_ONCE]]
        how = {} if schema is None else {"valueSchema": schema}
        wanted = {"valueFormat": format, "records": records, **how}
        content = json.dumps(wanted, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json"}
        answer = await http.post(f"/producers/{name}", content=content, headers=headers)
        assert answer.status_code == 200, answer.text[:1000]
        told = [each["offset"] for each in answer.json()["offsets"]]
        assert told == list(range(start, start + AT_ONCE))
    written = [message.value() for message in read_committed(kafka, name)]
    assert [exactly(None if data is None else by(data)) for data in written] == [
        exactly(value) for value in values[kind]
    ]
    instance = await ConsumerInstance.create_instance(http, valueFormat=format)
    await instance.assign(name, 0)
    got = await instance.poll_until(COUNT, max_bytes=1 << 22)
    assert not any("error" in each for each in got)
    assert [exactly(each["value"]) for each in got] == list(map(exactly, sent))
