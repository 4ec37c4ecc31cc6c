"""Values with a schema, through Spark: bytes in, columns, bytes out."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

from support.registry import Registry
from support.served import served

from gateway.config import SchemaRegistry
from gateway.config.pipeline import Input, Output
from gateway.formats.codec import Codecs, Format
from gateway.pipeline.output import encoded
from gateway.pipeline.source import invalid, typed

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
    registry = Registry()
    registry.register("orders-value", ORDER)
    registry.register("out-value", ORDER)
    async with served(registry.app) as url:
        catalogs = {"r": SchemaRegistry(type="schema-registry", url=[url])}
        codecs = Codecs(catalogs["r"])
        order = {"id": "a", "at": AT, "n": 2**60}
        value = (await codecs.encode(Format.AVRO, "orders", False, order)).data
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
        written = await codecs.decode(Format.AVRO, "out", False, bytes(row.value))
        assert json.loads(json.dumps(written)) == order
        await codecs.close()


def through(spark, rows, catalogs):
    raw = spark.createDataFrame(rows, SCHEMA)
    given = Input.model_validate(GIVEN)
    table = typed(raw, given, catalogs)
    output = Output(topic="out", model="avro", catalog="r")
    records = encoded(table, output, ("id",), catalogs)
    return table.collect(), invalid(raw, given, catalogs).collect(), records.collect()
