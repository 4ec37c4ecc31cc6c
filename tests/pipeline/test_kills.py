"""A job whose whole process tree is killed writes every row once: nothing lost, nothing twice.

Small here, of a job that keeps state. `make kills RECORDS=200000 KILLS=5 JOB=query` is the large
form, of any kind of job: query, sessions, aggregate, join, enrich. The number of writers changes
with each start. The last start is one in the session of the tests.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.jobs import run_until_ended
from support.pipelines import JobHistory, KillResult, OutputTopic, kill_while_writing
from support.worker_groups import SPARK_TEST_TIMEOUT_S

from gateway.config import Kafka, loads
from gateway.config.sections.pipelines import Broadcast, Enrich
from gateway.core.log.record import TopicPartition
from gateway.pipeline.clusters import build_spark_options
from gateway.pipeline.inputs import source
from gateway.pipeline.job_settings import get_inputs
from gateway.pipeline.jobs import enrich
from gateway.pipeline.run import output as encoding
from gateway.pipeline.run import query
from gateway.pipeline.tables import broadcast

RECORDS = int(os.environ.get("GATEWAY_KILLS_RECORDS", "12000"))
KILLS = int(os.environ.get("GATEWAY_KILLS", "1"))
JOB = os.environ.get("GATEWAY_KILLS_JOB", "aggregate")
SEED = int(os.environ.get("GATEWAY_KILLS_SEED", "1"))
LARGE = "GATEWAY_KILLS" in os.environ
PARTITIONS = 2
WRITERS = (2, 3, 1)  # each start has another number
BEGIN = 1_800_000_000_000  # ms
LATER = 86_400_000  # ms; what ends the last windows
LAST = BEGIN + RECORDS * 20 + LATER
END = {"id": -1, "user": "end", "at": LAST, "amount": 0}
FIELDS = {"fields": {"id": "bigint", "user": "string", "at": "timestamp_ms", "amount": "bigint"}}


def settings(kind: str, clicks: str, payments: str, to: str) -> dict[str, Any]:
    """A job of this kind. The watermark is longer than events are out of order: none is late."""
    each = max(500, RECORDS // (4 * KILLS + 4))
    read = {"topic": clicks, "time": "at", "watermark": "90s", "value": FIELDS, "maxRecords": each}
    job: dict[str, Any] = {"name": "kills", "type": kind, "to": {"topic": to}}
    job["state"] = {"partitions": 2}
    if kind == "query":
        job |= {
            "tables": {"clicks": read},
            "sql": "SELECT user, id, at, amount + 1 AS more FROM clicks",
        }
        job["to"]["key"] = ["user"]
    elif kind == "sessions":
        job |= {"from": read, "by": ["user"], "gap": "15s", "measures": {"total": "sum(amount)"}}
    elif kind == "aggregate":
        job |= {"from": read, "by": ["user"], "window": {"size": "10s"}}
        job["measures"] = {"total": "sum(amount)", "events": "count(*)"}
    elif kind == "enrich":
        table = {"kind": "broadcast", "topic": payments, "fields": {"name": "string"}}
        job |= {"from": read, "on": "user", "table": table}
    else:
        value = {"fields": {"of": "bigint", "paid": "timestamp_ms"}}
        right = {**read, "topic": payments, "time": "paid", "value": value}
        job |= {"left": read, "right": right, "on": {"id": "of"}, "kind": "left"}
        job["to"]["key"] = ["id"]
    return job


def events(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keys and values: out of order by up to a minute; the last of all come a day later."""
    chance = random.Random(SEED)
    for number in range(count):
        user = f"user-{chance.randrange(500)}"
        at = BEGIN + number * 20 - chance.randrange(60_000)
        yield user, {"id": number, "user": user, "at": at, "amount": chance.randrange(100)}


def fill(servers: list[str], clicks: str, payments: str) -> None:
    options = {"linger.ms": 20, "queue.buffering.max.messages": 2_000_000}
    producer = Producer({"bootstrap.servers": ",".join(servers), **options})
    if JOB == "enrich":
        for number in range(400):  # of 500
            name = json.dumps({"name": f"name {number}"})
            producer.produce(payments, name, f"user-{number}", partition=number % PARTITIONS)
    for number, (user, event) in enumerate(events(RECORDS)):
        producer.produce(clicks, json.dumps(event), user, partition=number % PARTITIONS)
        if number % 3 and JOB != "enrich":
            paid = {"of": number, "paid": event["at"] + 30_000}
            producer.produce(payments, json.dumps(paid), partition=number % PARTITIONS)
        producer.poll(0)
    for partition in range(PARTITIONS):
        producer.produce(clicks, json.dumps(END), "end", partition=partition)
        if JOB != "enrich":
            paid = {"of": -2, "paid": LAST}
            producer.produce(payments, json.dumps(paid), partition=partition)
    producer.flush(60)


def expected(spark: Any, story: JobHistory) -> Counter[tuple[bytes | None, bytes | None]]:
    """The same job in one batch."""
    settings = loads(json.dumps(story.build_settings()))
    assert settings.pipelines is not None
    job, kafka = settings.pipelines.jobs[0], Kafka(servers=story.servers)
    ends = {name: KafkaCluster(story.servers).admin for name in get_inputs(job)}
    tables = {}
    for name, each in get_inputs(job).items():
        ranges = {
            TopicPartition(each.topic, partition): (
                0,
                ends[name].get_high_watermark(each.topic, partition),
            )
            for partition in range(PARTITIONS)
        }
        tables[name] = source.parse_records(source.read_raw_range(spark, kafka, ranges), each)
    if isinstance(job, Enrich) and isinstance(job.table, Broadcast):
        tables[enrich.TABLE_INPUT] = broadcast.load_table(
            job.table, spark, build_spark_options(kafka)
        )
    rows = encoding.encode_rows(
        query.import_job_module(job).build(job, tables), job.to, encoding.get_key_columns(job)
    )
    return Counter((_bytes(row.key), _bytes(row.value)) for row in rows.collect())


def _bytes(value: str | bytes | bytearray | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)


def answers() -> Counter[tuple[bytes | None, bytes | None]]:
    """What the query says of the events, without Spark."""

    def row(event: Mapping[str, Any]) -> bytes:
        at = datetime.fromtimestamp(event["at"] / 1000, UTC).isoformat(timespec="milliseconds")
        told = {"user": event["user"], "id": event["id"], "at": at.replace("+00:00", "Z")}
        return orjson.dumps({**told, "more": event["amount"] + 1})

    given = [*events(RECORDS), *[("end", END)] * PARTITIONS]
    return Counter((key.encode(), row(event)) for key, event in given)


def without_ends(found: Mapping[Any, int]) -> Counter[Any]:
    """What ends the last windows has not ended itself."""
    return Counter(
        {
            (key, value): count
            for (key, value), count in found.items()
            if b'"user":"end"' not in (value or b"")
        }
    )


@pytest.mark.needs("java17")
@pytest.mark.timeout(0 if LARGE else SPARK_TEST_TIMEOUT_S)
def test_a_job_killed_at_random_moments_writes_each_row_once(kafka, spark, tmp_path):
    clicks, payments, to = (kafka.create_unique_topic(partitions=PARTITIONS) for _ in range(3))
    fill(kafka.bootstrap, clicks, payments)
    story = JobHistory(settings(JOB, clicks, payments, to), kafka.bootstrap, tmp_path)
    output, seed = OutputTopic(kafka.bootstrap, to, PARTITIONS), random.Random(SEED)
    killed: list[KillResult] = []
    try:
        for count in range(KILLS):
            with story.running_job(writers=WRITERS[count % 3]) as run:
                killed.append(kill_while_writing(run, output, seed, in_transaction=count % 2 == 0))
        (last,) = story.build_settings(writers=WRITERS[KILLS % 3])["pipelines"]["jobs"]
        run = run_until_ended(spark, kafka.bootstrap, story.checkpoints, last)
        assert run.failure_reason is None
        found = output.read_committed()
        repeated = output.count_all() - found.total()
    finally:
        output.close()
    if JOB == "query":
        committed, wanted = found, answers()
    else:
        of_batch = expected(spark, story)
        committed, wanted = without_ends(found), without_ends(of_batch)
    inside = sum(each.is_transaction_open for each in killed)
    lost, twice = wanted - committed, committed - wanted
    print(
        f"{JOB}: {wanted.total()} rows, {sum(each.was_killed for each in killed)} kills, "
        f"{inside} inside a transaction, {repeated} records aborted, "
        f"{lost.total()} lost, {twice.total()} twice"
    )
    assert not lost
    assert not twice
    assert all(each.was_killed for each in killed)
    assert inside >= len(killed[::2])  # each second one, from the first on
