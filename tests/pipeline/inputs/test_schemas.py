"""Values with a schema, through Spark: bytes in, columns, bytes out."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest
from support.app_server import running_app
from support.dead_letters import get_header, read_committed
from support.registry import FakeRegistry

from gateway.config import Kafka, SchemaRegistry
from gateway.config.sections.job import Input, Output
from gateway.errors import ExtraMissing
from gateway.formats.codec import Codecs, SerializationFormat
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.clusters import build_client_config
from gateway.pipeline.exactly_once import ExactlyOnceOutput
from gateway.pipeline.inputs.schemas import decode_values, resolve_fields
from gateway.pipeline.inputs.source import parse_records, select_invalid_records
from gateway.pipeline.run.job_run import classify_error
from gateway.pipeline.run.output import encode_rows
from gateway.pipeline.run.query import build_sink_options

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "n", "type": ["null", "long"], "default": None},
    ],
}
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
AT = "2026-01-02T03:04:05.678Z"
GIVEN = {"topic": "orders", "value": {"model": "avro", "catalog": "r"}, "time": "at"}


async def test_avro_becomes_columns_of_its_schema_and_rows_become_avro(spark):
    registry = FakeRegistry()
    registry.register_schema("orders-value", ORDER)
    registry.register_schema("out-value", ORDER)
    async with running_app(registry.app) as url:
        catalogs = {"r": SchemaRegistry(type="schema-registry", url=[url], timeout="60s")}
        codecs = Codecs(catalogs["r"])
        order = {"id": "a", "at": AT, "n": 2**60}
        value = (await codecs.encode(SerializationFormat.AVRO, "orders", False, order)).data
        values = [value, b"\0\0\0\0\1", b"nothing framed", None]
        rows = [(None, each, "orders", 0, n, datetime.now(UTC)) for n, each in enumerate(values)]
        found, wrong, out = await asyncio.to_thread(through, spark, rows, catalogs)
        assert [(row.id, row.at, row.n) for row in found] == [
            ("a", datetime(2026, 1, 2, 3, 4, 5, 678000), 2**60)
        ]
        assert [row.offset for row in wrong] == [1, 2]
        assert all(row.value == bytearray(values[row.offset]) for row in wrong)
        assert "not avro as a schema registry's clients write it" in wrong[1]["_reason"]
        (row,) = out
        assert row.key == "a"
        written = await codecs.decode(SerializationFormat.AVRO, "out", False, bytes(row.value))
        assert json.loads(json.dumps(written)) == order
        await codecs.close()


def through(spark, rows, catalogs):
    raw = spark.createDataFrame(rows, SCHEMA)
    given = resolve_fields(Input.model_validate(GIVEN), catalogs)
    table = parse_records(raw, given, catalogs)
    output = Output(topic="out", model="avro", catalog="r")
    records = encode_rows(table, output, ("id",), catalogs)
    return (
        table.collect(),
        select_invalid_records(raw, given, catalogs).collect(),
        records.collect(),
    )


async def test_only_its_bytes_decide_whether_a_value_is_invalid(spark):
    """The registry's answer of the moment did: a value whose schema it did not have yet was invalid
    for the batch, and valid when dead letters were looked for, so that it was written nowhere. So
    was a value that does not fit the columns of the query, but those of a later schema."""
    registry = FakeRegistry()
    registry.register_schema("orders-value", ORDER)
    text_schema = json.dumps(ORDER).replace('["null", "long"]', '["null", "string"]')
    async with running_app(registry.app) as url:
        catalogs = {"r": SchemaRegistry(type="schema-registry", url=[url], timeout="60s")}
        given = await asyncio.to_thread(resolve_fields, Input.model_validate(GIVEN), catalogs)

        def read(schema_id: int, values: bytes) -> list[Any]:
            value = b"\0" + schema_id.to_bytes(4, "big") + values
            row = (None, value, "orders", 3, 17, datetime.now(UTC))
            raw = spark.createDataFrame([row], SCHEMA)
            return select_invalid_records(raw, given, catalogs).collect()

        with pytest.raises(
            Exception, match=r"orders partition 3 offset 17: .* the id 9 "
        ) as caught:
            await asyncio.to_thread(read, 9, b"")
        assert classify_error(caught.value).is_transient
        registry.register_schema("orders-value", text_schema)
        # The id "a", a time, and the text "x".
        assert await asyncio.to_thread(read, 2, b"\x02a" + b"\0" + b"\x02\x02x")


def test_a_worker_without_the_library_of_the_model_ends_the_job(monkeypatch):
    """It took all values for invalid, and another worker, which looked for dead letters, none."""
    pytest.importorskip("pyarrow")
    monkeypatch.setitem(sys.modules, "fastavro", None)
    raw = Mock(schema=[])
    catalog = SchemaRegistry(type="schema-registry", url=["http://nowhere"])
    decode_values(raw, Input.model_validate(GIVEN), {"r": catalog})
    decode_batches, _ = raw.mapInArrow.call_args.args
    with pytest.raises(ExtraMissing, match="a worker of a job with model avro needs fastavro"):
        list(decode_batches([]))


PRICE = {
    "type": "record",
    "name": "Price",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "small", "type": "int"},
        {"name": "single", "type": "float"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}
PRICES = """
SELECT * FROM VALUES
  ('good', 1L, 1.5D, DATE'2026-01-02'),
  ('null', CAST(NULL AS BIGINT), 1.5D, DATE'2026-01-02'),
  ('range', 3000000000L, 1.5D, DATE'2026-01-02'),
  ('float', 1L, 1e39D, DATE'2026-01-02'),
  ('day', 1L, 1.5D, DATE'+12026-01-02'),
  (CAST(X'FF' AS STRING), 1L, 1.5D, CAST(NULL AS DATE)),
  ('last', 2L, 2.5D, DATE'9999-12-31')
AS t(id, small, single, day)
"""
PROTO = """
syntax = "proto3";
message Price { string id = 1; int32 small = 2; float single = 3; string day = 4; }
"""


@pytest.mark.needs("java17")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize(
    ("model", "schema", "refused"),
    [
        ("avro", PRICE, {"null", "range", "float", "day", "\ufffd"}),
        ("protobuf", PROTO, {"range", "float"}),
    ],
)
async def test_rows_that_their_schema_refuses_are_dead_letters(
    kafka, spark, tmp_path, guarantee, model, schema, refused
):
    """One of them ended the job, at each start again."""
    topic = kafka.create_unique_topic()
    kafka.create_topic(f"{topic}.dlq")
    registry = FakeRegistry()
    registry.register_schema(f"{topic}-value", schema, model.upper())
    async with running_app(registry.app) as url:
        given = {"r": SchemaRegistry(type="schema-registry", url=[url], timeout="60s")}
        to = Output(topic=topic, model=model, catalog="r", guarantee=guarantee)
        await asyncio.to_thread(write, spark, kafka.bootstrap_servers, to, given, tmp_path)
        codecs, format = Codecs(given["r"]), SerializationFormat.parse(model)
        rows = [
            await codecs.decode(format, topic, False, each.value())
            for each in read_committed(kafka, topic)
        ]
        await codecs.close()
    letters = {
        json.loads(each.value())["id"]: each for each in read_committed(kafka, f"{topic}.dlq")
    }
    assert letters.keys() == refused
    every = {"good", "null", "range", "float", "day", "\ufffd", "last"}
    assert sorted(row["id"] for row in rows) == sorted(every - refused)
    assert get_header(letters["range"], "X-Origin-Topic") == topic.encode()
    assert b"small" in get_header(letters["range"], "X-Reason")


def write(spark, servers, to, catalogs, directory):
    """One batch of `PRICES`, as jobs of either guarantee write it."""
    rows = encode_rows(spark.sql(PRICES), to, ("id",), catalogs)
    kafka = Kafka(servers=[servers])
    if to.guarantee == "at-least-once":
        rows.write.format("kafka").options(**build_sink_options(to, kafka)).save()
        return
    write = ExactlyOnceOutput(
        "q", to, build_client_config(kafka), checkpoint=Checkpoint(str(directory))
    )
    assert write(rows, 0) == 7


AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}
AMOUNTS = {
    "type": "record",
    "name": "Amounts",
    "fields": [
        {"name": "fraction", "type": ["null", AMOUNT]},
        {"name": "whole", "type": {**AMOUNT, "scale": 0}},
        {"name": "double", "type": "double"},
        {"name": "long", "type": "long"},
    ],
}
AMOUNTS_ROW = """SELECT CAST(123456789012345678.91 AS DECIMAL(38,18)) AS fraction,
  12345678901234567890BD AS whole, 1.234567890123456789BD AS double,
  CAST(123456789012345679 AS DECIMAL(38,18)) AS long"""


@pytest.mark.parametrize(
    ("model", "schema"), [("avro", AMOUNTS), ("jsonschema", {"type": "object"})]
)
async def test_outputs_with_a_schema_keep_the_digits_of_decimals(spark, model, schema):
    """Decimals were rounded to doubles on their way to the codec."""
    registry = FakeRegistry()
    registry.register_schema("out-value", schema, "AVRO" if model == "avro" else "JSON")
    async with running_app(registry.app) as url:
        given = {"r": SchemaRegistry(type="schema-registry", url=[url], timeout="60s")}
        to = Output(topic="out", model=model, catalog="r")
        rows = encode_rows(spark.sql(AMOUNTS_ROW), to, (), given)
        (row,) = await asyncio.to_thread(rows.collect)
        codecs = Codecs(given["r"])
        text = codecs.decode_text_cached
        format = SerializationFormat.parse(model)
        await codecs.load_schemas(format, "", False, [bytes(row.value)])
        written = json.loads(text(format, bytes(row.value)), parse_float=str, parse_int=str)
        await codecs.close()
    assert row.topic == "out", row.headers
    assert written["fraction"] == "123456789012345678.910000000000000000"
    assert written["whole"] == "12345678901234567890"
    assert written["double"][:17] == "1.234567890123456"
    assert written["long"][:18] == "123456789012345679"


async def test_a_schema_that_is_missing_ends_the_job(spark):
    """Else all rows would become dead letters where only the registry is to be corrected."""
    registry = FakeRegistry()
    async with running_app(registry.app) as url:
        given = {"r": SchemaRegistry(type="schema-registry", url=[url], timeout="60s")}
        to = Output(topic="none", model="avro", catalog="r")
        rows = encode_rows(spark.sql(PRICES), to, ("id",), given)
        with pytest.raises(Exception, match="the registry has no subject 'none-value'"):
            await asyncio.to_thread(rows.collect)


async def test_registries_that_differ_in_their_password_only_are_asked_each_with_its_own(spark):
    """Settings print passwords as asterisks and were told apart by their text: rows of one job
    were encoded with the connection and the schemas of another."""
    registry = FakeRegistry(username="gateway", password="right")
    registry.register_schema("out-value", PRICE)
    to = Output(topic="out", model="avro", catalog="r")
    async with running_app(registry.app) as url:

        def encode(password: str) -> int:
            settings = {"type": "schema-registry", "url": [url], "username": "gateway"}
            catalogs = {"r": SchemaRegistry(**settings, password=password)}
            prices = spark.sql(PRICES).where("id IN ('good', 'last')").coalesce(1)
            return len(encode_rows(prices, to, ("id",), catalogs).collect())

        assert await asyncio.to_thread(encode, "right") == 2
        with pytest.raises(Exception, match="401"):
            await asyncio.to_thread(encode, "wrong")
        assert await asyncio.to_thread(encode, "right") == 2
