"""Whatever records a topic has: all good ones become rows, all bad ones are told, no job ends.

GATEWAY_POISON=20000 generates so many records, with another seed each time.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from support.poison import COLUMN_TYPES, generate_records

from gateway.config.sections.pipelines import AnyJob
from gateway.pipeline.inputs.source import parse_records, select_invalid_records
from gateway.pipeline.job_settings import get_inputs
from gateway.pipeline.jobs import enrich
from gateway.pipeline.run import output
from gateway.pipeline.run.query import import_job_module
from gateway.pipeline.tables.broadcast import KEY_COLUMN

MANY = os.environ.get("GATEWAY_POISON")
COUNT, SEED = (int(MANY), random.randrange(2**32)) if MANY else (150, 1)
RAW = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
FROM = {
    "topic": "clicks",
    "time": "at",
    "watermark": "1s",
    "value": {"fields": {"user": "string", "at": "timestamp_ms", **COLUMN_TYPES}},
}
KEPT = {name: f"last({name})" for name in COLUMN_TYPES}
PLAIN = {
    f"max_{n}": f"max({n})" for n in COLUMN_TYPES if n not in ("many", "times", "by_name", "inner")
}
JOBS = {
    "query": {"tables": {"t": FROM}, "sql": "SELECT *, CAST(_key AS STRING) AS k FROM t"},
    "aggregate": {"from": FROM, "by": ["user"], "window": {"size": "1m"}, "measures": PLAIN},
    "sessions": {"from": FROM, "by": ["user"], "gap": "1s", "measures": KEPT | PLAIN},
    "updates": {
        **{"from": FROM, "by": ["user"], "gap": "1s", "emit": "updates"},
        "measures": {**KEPT, **PLAIN, "k": "last(CAST(_key AS STRING))"},
    },
    "enrich": {
        **{"from": FROM, "on": "user"},
        "table": {"kind": "broadcast", "topic": "users", "fields": {"n": "int"}},
    },
    "join": {
        **{"left": FROM, "right": FROM, "on": {"user": "user"}, "before": "0s", "after": "0s"},
        "select": {"user": "left.user", "many": "right.many", "key": "CAST(left._key AS STRING)"},
    },
}


@pytest.fixture(scope="module")
def topic(session_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The records, and a directory that has them as Kafka's columns."""
    records = generate_records(COUNT, SEED)
    rows = [
        (bytearray(each.key), bytearray(each.value.encode()), "clicks", 0, number, None)
        for number, each in enumerate(records)
    ]
    directory = str(tmp_path_factory.mktemp("poison") / "topic")
    session_spark.createDataFrame(rows, RAW).coalesce(1).write.parquet(directory)
    return records, directory


def test_all_bad_records_are_told_once(spark: Any, topic: tuple[Any, str]):
    records, directory = topic
    input = get_inputs(job("query"))["t"]
    found = sorted(
        row.offset for row in select_invalid_records(spark.read.parquet(directory), input).collect()
    )
    assert found == [n for n, each in enumerate(records) if not each.is_good], f"seed {SEED}"


@pytest.mark.parametrize("kind", JOBS)
def test_all_good_records_are_rows_and_no_job_ends(spark, topic, tmp_path, kind):
    records, directory = topic
    made = job(kind)
    raw = spark.readStream.schema(RAW).parquet(directory)
    if kind != "updates":  # Spark's own operators are the same in batch, and faster
        raw = spark.read.parquet(directory)
    tables = {
        name: parse_records(raw, input).withWatermark(input.time, "1 second")
        for name, input in get_inputs(made).items()
    }
    if kind == "enrich":
        tables[enrich.TABLE_INPUT] = spark.createDataFrame(
            [("u1", 1)], f"{KEY_COLUMN} string, n int"
        )
    rows = import_job_module(made).build(made, tables)
    encoded = output.encode_rows(rows, made.to, output.get_key_columns(made))
    values = streamed(encoded, tmp_path) if raw.isStreaming else encoded.collect()
    found = sorted(json.loads(row.value)["user"] for row in values)
    assert found == sorted(each.user_id for each in records if each.is_good), f"seed {SEED}"


def job(kind: str) -> Any:
    named = {
        "name": kind,
        "type": "sessions" if kind == "updates" else kind,
        "to": {"topic": "out"},
    }
    return TypeAdapter(AnyJob).validate_python({**named, **JOBS[kind]})


def streamed(rows: Any, directory: Path) -> list[Any]:
    """All rows of a stream that ends."""
    found: list[Any] = []
    writer = rows.writeStream.outputMode("update").trigger(availableNow=True)
    writer = writer.foreachBatch(lambda batch, _: found.extend(batch.select("value").collect()))
    writer.option("checkpointLocation", str(directory)).start().awaitTermination()
    return [row for row in found if json.loads(row.value)["state"] == "open"]
