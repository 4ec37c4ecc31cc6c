"""Jobs whose input topics are deleted and recreated, with a real Kafka."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import Broker
from support.jobs import job_loop, run_job
from support.letters import committed
from support.redis import RedisServer

from gateway.pipeline.exactly_once.ledger import topic_of
from gateway.pipeline.tables.redis import Redis, Server

BEYOND = 2**60
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
TELLING = {"exactly-once": True, "at-least-once": False, "at-least-once, told": True}


def query_of(topic: str, to: str, guarantee: str, trigger: str = "available-now") -> dict[str, Any]:
    read = {"topic": topic, "value": {"fields": {"n": "bigint"}}}
    name, _, told = guarantee.partition(", ")
    if told:
        read["onDataLoss"] = "gap"
    into = {"topic": to, "guarantee": name}
    made = {"name": "query", "type": "query", "trigger": trigger, "to": into}
    return made | {"tables": {"t": read}, "sql": "SELECT n FROM t"}


def produce(kafka: Broker, topic: str, numbers: range, *, timestamp: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers})
    for number in numbers:
        producer.produce(topic, json.dumps({"n": number}), str(number), timestamp=timestamp)
    assert producer.flush(30) == 0


def recreate(kafka: Broker, topic: str) -> None:
    kafka.admin.delete_topic(topic)
    kafka.create_topic(topic, configs=ANY_TIME)


def rows_of(kafka: Broker, to: str) -> list[int]:
    return sorted(json.loads(each.value())["n"] for each in committed(kafka, to))


def gaps_of(kafka: Broker, to: str) -> list[tuple[int, int, str]]:
    if not kafka.admin.exists(f"{to}.gaps"):
        return []
    told = [json.loads(each.value()) for each in committed(kafka, f"{to}.gaps")]
    return [(each["from"], each["to"], each["reason"]) for each in told]


@pytest.fixture
def places(kafka: Broker) -> Any:
    """A topic that takes any timestamp, and an output."""
    topic, to = kafka.topic(configs=ANY_TIME), kafka.topic()
    yield topic, to
    for name in (topic_of(to), f"{to}.gaps", f"{topic}.dlq"):
        kafka.admin.delete_topic(name)


@pytest.mark.needs("java17")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", TELLING)
def test_a_new_topic_is_read_from_its_begin(
    kafka: Broker,
    spark: Any,
    tmp_path: Path,
    places: tuple[str, str],
    guarantee: str,
    caplog: pytest.LogCaptureFixture,
):
    """At least once, what it had before the old position was lost without a word."""
    topic, to = places
    job = query_of(topic, to, guarantee)
    produce(kafka, topic, range(10))
    assert run_job(spark, [kafka.servers], tmp_path, job).reason is None
    recreate(kafka, topic)
    produce(kafka, topic, range(100, 112))
    with caplog.at_level(logging.WARNING):
        assert run_job(spark, [kafka.servers], tmp_path, job).reason is None
    assert rows_of(kafka, to) == [*range(10), *range(100, 112)]
    assert gaps_of(kafka, to) == ([(10, 0, "recreated")] if TELLING[guarantee] else [])
    said = [each.getMessage() for each in caplog.records if "gateway" in each.name]
    assert any("recreated" in each for each in said)
    assert run_job(spark, [kafka.servers], tmp_path, job).reason is None
    assert rows_of(kafka, to) == [*range(10), *range(100, 112)]


@pytest.mark.needs("java17")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", TELLING)
@pytest.mark.parametrize("count", [3, 40])
def test_a_query_that_runs_begins_again(
    kafka: Broker, spark: Any, tmp_path: Path, places: tuple[str, str], guarantee: str, count: int
):
    """The new topic is shorter than the old one, or longer."""
    topic, to = places
    produce(kafka, topic, range(10))
    with job_loop(spark, [kafka.servers], tmp_path, query_of(topic, to, guarantee, "0s")) as job:
        job.look_until(lambda: len(rows_of(kafka, to)) >= 10, "rows of the old topic")
        recreate(kafka, topic)
        produce(kafka, topic, range(100, 100 + count))
        due = {*range(10), *range(100, 100 + count)}
        job.look_until(lambda: due <= set(rows_of(kafka, to)), "rows of the new topic")
        produce(kafka, topic, range(200, 201))
        job.look_until(lambda: 200 in rows_of(kafka, to), "row of the last record")
    assert run_job(spark, [kafka.servers], tmp_path, query_of(topic, to, guarantee)).reason is None
    if guarantee == "exactly-once":
        assert rows_of(kafka, to) == sorted([*due, 200])
    assert gaps_of(kafka, to) == ([(10, 0, "recreated")] if TELLING[guarantee] else [])


@pytest.mark.needs("java17")
@pytest.mark.timeout(600)
def test_unreadable_records_of_a_new_topic_are_told_once_each(
    kafka: Broker, spark: Any, tmp_path: Path, places: tuple[str, str]
):
    """The record was passed over by the offsets of the old topic, which lost a dead letter."""
    topic, to = places
    produce(kafka, topic, range(4))
    with job_loop(
        spark, [kafka.servers], tmp_path, query_of(topic, to, "exactly-once", "0s")
    ) as job:
        job.look_until(lambda: len(rows_of(kafka, to)) == 4, "rows of the old topic")
        recreate(kafka, topic)
        produce(kafka, topic, range(100, 103), timestamp=BEYOND)
        produce(kafka, topic, range(103, 105))
        produce(kafka, topic, range(105, 107), timestamp=BEYOND)
        produce(kafka, topic, range(107, 108))
        job.look_until(lambda: 107 in rows_of(kafka, to), "row of the last record")
    assert rows_of(kafka, to) == [*range(4), 103, 104, 107]
    letters = [int(each.key()) for each in committed(kafka, f"{topic}.dlq")]
    assert letters == [100, 101, 102, 105, 106]
    assert gaps_of(kafka, to) == [(4, 0, "recreated")]


@pytest.mark.needs("java17")
@pytest.mark.timeout(600)
def test_a_table_is_loaded_from_the_begin_of_a_new_topic(
    kafka: Broker,
    spark: Any,
    tmp_path: Path,
    places: tuple[str, str],
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
):
    topic, _ = places
    into = {"kind": "redis", "url": redis_server.url, "prefix": "users:", "fields": {"n": "long"}}
    job = {"name": "load", "type": "load", "trigger": "available-now", "into": into}
    job |= {"from": {"topic": topic}}
    produce(kafka, topic, range(10))
    assert run_job(spark, [kafka.servers], tmp_path, job).reason is None
    recreate(kafka, topic)
    produce(kafka, topic, range(20, 32))
    with caplog.at_level(logging.WARNING):
        assert run_job(spark, [kafka.servers], tmp_path, job).reason is None
    redis = Redis(Server(redis_server.url, "users:", chunk=50))
    keys = [str(each) for each in range(32)]
    values = [value for _, chunk, _ in redis.values(keys) for value in chunk]
    assert [key for key, value in zip(keys, values, strict=True) if value is None] == keys[10:20]
    assert any("recreated" in each.getMessage() for each in caplog.records)
