"""Jobs whose input topics are deleted and recreated, with a real Kafka."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from support import fake_checkpoint
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.jobs import create_job_loop, run_until_ended
from support.pipelines import JobHistory
from support.waiting import block_until

from gateway.errors import PipelineError
from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.state import recovery
from gateway.pipeline.state.files import open_files
from gateway.pipeline.tables.redis import RedisConfig, RedisTable

pytestmark = pytest.mark.night

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


def produce(
    kafka: KafkaCluster, topic: str, numbers: range, *, partition: int = 0, timestamp: int = 0
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        value = json.dumps({"n": number})
        producer.produce(topic, value, str(number), partition, timestamp=timestamp)
    assert producer.flush(30) == 0


def recreate(kafka: KafkaCluster, topic: str, partitions: int = 1) -> None:
    kafka.admin.delete_topic(topic)
    kafka.create_topic(topic, partitions, configs=ANY_TIME)


def rows_of(kafka: KafkaCluster, to: str) -> list[int]:
    return sorted(json.loads(each.value())["n"] for each in read_committed(kafka, to))


def gaps_of(kafka: KafkaCluster, to: str) -> list[tuple[int, int, str]]:
    if not kafka.admin.topic_exists(f"{to}.gaps"):
        return []
    told = [json.loads(each.value()) for each in read_committed(kafka, f"{to}.gaps")]
    return [(each["from"], each["to"], each["reason"]) for each in told]


@pytest.fixture
def places(kafka: KafkaCluster) -> Any:
    """A topic that takes any timestamp, and an output."""
    topic, to = kafka.create_unique_topic(configs=ANY_TIME), kafka.create_unique_topic()
    yield topic, to
    for name in (ledger_topic(to), f"{to}.gaps", f"{topic}.dlq"):
        kafka.admin.delete_topic(name)


@pytest.mark.needs("java17")
@pytest.mark.parametrize("guarantee", TELLING)
def test_a_new_topic_is_read_from_its_begin(kafka, spark, tmp_path, places, guarantee, caplog):
    """At least once, what it had before the old position was lost without a word."""
    topic, to = places
    job = query_of(topic, to, guarantee)
    produce(kafka, topic, range(10))
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    recreate(kafka, topic)
    produce(kafka, topic, range(100, 112))
    with caplog.at_level(logging.WARNING):
        assert (
            run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
        )
    assert rows_of(kafka, to) == [*range(10), *range(100, 112)]
    assert gaps_of(kafka, to) == ([(10, 0, "recreated")] if TELLING[guarantee] else [])
    said = [each.getMessage() for each in caplog.records if "gateway" in each.name]
    assert any("recreated" in each for each in said)
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    assert rows_of(kafka, to) == [*range(10), *range(100, 112)]


@pytest.mark.needs("java17")
@pytest.mark.parametrize("guarantee", TELLING)
@pytest.mark.parametrize("count", [3, 40])
def test_a_query_that_runs_begins_again(kafka, spark, tmp_path, places, guarantee, count):
    """The new topic is shorter than the old one, or longer."""
    topic, to = places
    produce(kafka, topic, range(10))
    with create_job_loop(
        spark, [kafka.bootstrap_servers], tmp_path, query_of(topic, to, guarantee, "0s")
    ) as job:
        job.poll_until(lambda: len(rows_of(kafka, to)) >= 10, "rows of the old topic")
        recreate(kafka, topic)
        produce(kafka, topic, range(100, 100 + count))
        due = {*range(10), *range(100, 100 + count)}
        job.poll_until(lambda: due <= set(rows_of(kafka, to)), "rows of the new topic")
        produce(kafka, topic, range(200, 201))
        job.poll_until(lambda: 200 in rows_of(kafka, to), "row of the last record")
    assert (
        run_until_ended(
            spark, [kafka.bootstrap_servers], tmp_path, query_of(topic, to, guarantee)
        ).failure_reason
        is None
    )
    if guarantee == "exactly-once":
        assert rows_of(kafka, to) == sorted([*due, 200])
    assert gaps_of(kafka, to) == ([(10, 0, "recreated")] if TELLING[guarantee] else [])


@pytest.mark.needs("java17")
def test_a_batch_that_read_a_topic_while_it_was_recreated_is_not_committed(kafka, spark, tmp_path):
    """Its rows of the new topic were written, and again by the next batch."""
    partitions = 4  # two cores: the last ones are read after the first
    topic, to = kafka.create_unique_topic(partitions), kafka.create_unique_topic()
    for each in range(partitions):
        produce(kafka, topic, range(100 * each, 100 * each + 8), partition=each)
    job = query_of(topic, to, "exactly-once", "0s")
    job["sql"] = (
        "SELECT n FROM t WHERE java_method('java.util.concurrent.locks.LockSupport', 'parkNanos', "
        "CAST(1000000000 AS BIGINT)) IS NOT NULL"
    )
    with create_job_loop(spark, [kafka.bootstrap_servers], tmp_path, job) as loop:
        started = tmp_path / "query" / "v1" / "offsets" / "0"
        loop.poll_until(started.exists, "first batch")
        deadline = time.monotonic() + 4  # into the batch, which takes 16 s
        loop.poll_until(lambda: time.monotonic() > deadline, "time")
        recreate(kafka, topic, partitions)
        for each in range(partitions):
            produce(kafka, topic, range(1000 + 100 * each, 1009 + 100 * each), partition=each)
        due = [1000 + 100 * part + each for part in range(partitions) for each in range(9)]
        loop.poll_until(lambda: set(due) <= set(rows_of(kafka, to)), "rows of the new topic")
    assert [each for each in rows_of(kafka, to) if each >= 1000] == due
    kafka.admin.delete_topic(ledger_topic(to))
    kafka.admin.delete_topic(f"{to}.gaps")


@pytest.mark.needs("java17")
def test_a_new_topic_that_ends_where_the_old_one_did_is_read(kafka, spark, tmp_path, places):
    """Spark plans no batch for it, and topics were compared in batches only: the job stalled."""
    topic, to = places
    produce(kafka, topic, range(10))
    with create_job_loop(
        spark, [kafka.bootstrap_servers], tmp_path, query_of(topic, to, "exactly-once", "8s")
    ) as job:
        job.poll_until((tmp_path / "query" / "v1" / "commits" / "0").exists, "first batch")
        recreate(kafka, topic)
        produce(kafka, topic, range(100, 110))
        job.poll_until(lambda: 109 in rows_of(kafka, to), "rows of the new topic")
    assert rows_of(kafka, to) == [*range(10), *range(100, 110)]


@pytest.mark.needs("java17")
def test_a_topic_is_known_before_the_first_batch_is_planned(kafka, spark, tmp_path, places):
    """A job that failed before its first batch read the new topic from the old end."""
    topic, to = places
    produce(kafka, topic, range(10))
    table, read = tmp_path / "table", {"topic": topic, "value": {"fields": {"n": "bigint"}}}
    held = {"kind": "broadcast", "path": str(table), "key": "n", "fields": {"x": "string"}}
    job = {"name": "query", "type": "enrich", "trigger": "available-now", "from": read}
    job |= {"on": "n", "table": held, "to": {"topic": to}}
    reason = run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason
    assert reason is not None
    assert "table" in reason
    recreate(kafka, topic)
    spark.sql("SELECT CAST(1 AS BIGINT) n, 'x' x").write.parquet(str(table))
    produce(kafka, topic, range(100, 103))
    for last in (103, 115):
        produce(kafka, topic, range(last, last + 1))
        assert (
            run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
        )
    assert rows_of(kafka, to) == [100, 101, 102, 103, 115]
    assert gaps_of(kafka, to) == [(0, 0, "recreated")]


@pytest.mark.needs("java17")
def test_state_of_a_topic_that_is_gone_is_not_made_again_of_another(kafka, spark, tmp_path, places):
    """Batches were done again with records of the new topic, and counted 51 of 56."""
    topic, to = places
    job = query_of(topic, to, "exactly-once")
    job |= {"sql": "SELECT 1 AS k, count(*) AS n FROM t GROUP BY 1", "emit": "updates"}
    for first in (0, 10, 20):
        produce(kafka, topic, range(first, first + 10))
        assert (
            run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
        )
    recreate(kafka, topic)
    produce(kafka, topic, range(25))
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    assert rows_of(kafka, to)[-1] == 55
    location = tmp_path / "query" / "v1"
    for each in sorted((location / "state").rglob("*")):
        version = each.name.split(".")[0].split("_")[0]
        if each.suffix in (".changelog", ".zip") and version.isdigit() and int(version) >= 2:
            fake_checkpoint.truncate_file(each)
    with pytest.raises(PipelineError, match="read a topic that was recreated since"):
        recovery.recover_state(
            open_files(str(location), spark), "query", lambda: None, is_damaged=True
        )


@dataclass
class Endless(JobHistory):
    """Its job runs until it is ended."""

    def build_settings(self, **changed: Any) -> dict[str, Any]:
        found = super().build_settings(**changed)
        found["pipelines"]["jobs"][0]["trigger"] = "0s"
        return found


@pytest.mark.needs("java17")
def test_a_job_waits_for_a_topic_that_is_away(kafka, tmp_path, places):
    """Spark gives up after 3 s; the job was at its end then, and its process perhaps not."""
    topic, to = places
    produce(kafka, topic, range(10))
    story = Endless(query_of(topic, to, "exactly-once"), [kafka.bootstrap_servers], tmp_path)
    with story.running_job() as run:
        block_until(lambda: run.is_ended or len(rows_of(kafka, to)) >= 10, "rows of the old topic")
        kafka.admin.delete_topic(topic)
        block_until(lambda: run.is_ended or run.has_logged("begins again"), "a job that waits")
        kafka.create_topic(topic, configs=ANY_TIME)
        produce(kafka, topic, range(100, 112))
        block_until(lambda: run.is_ended or len(rows_of(kafka, to)) >= 22, "rows of the new topic")
        assert not run.is_ended, run.read_log_tail()
    assert rows_of(kafka, to) == [*range(10), *range(100, 112)]


@pytest.mark.needs("java17")
def test_unreadable_records_of_a_new_topic_are_told_once_each(kafka, spark, tmp_path, places):
    """The record was passed over by the offsets of the old topic, which lost a dead letter."""
    topic, to = places
    produce(kafka, topic, range(4))
    with create_job_loop(
        spark, [kafka.bootstrap_servers], tmp_path, query_of(topic, to, "exactly-once", "0s")
    ) as job:
        job.poll_until(lambda: len(rows_of(kafka, to)) == 4, "rows of the old topic")
        recreate(kafka, topic)
        produce(kafka, topic, range(100, 103), timestamp=BEYOND)
        produce(kafka, topic, range(103, 105))
        produce(kafka, topic, range(105, 107), timestamp=BEYOND)
        produce(kafka, topic, range(107, 108))
        job.poll_until(lambda: 107 in rows_of(kafka, to), "row of the last record")
    assert rows_of(kafka, to) == [*range(4), 103, 104, 107]
    letters = [int(each.key()) for each in read_committed(kafka, f"{topic}.dlq")]
    assert letters == [100, 101, 102, 105, 106]
    assert gaps_of(kafka, to) == [(4, 0, "recreated")]


@pytest.mark.needs("java17")
def test_a_table_is_loaded_from_the_begin_of_a_new_topic(
    kafka, spark, tmp_path, places, redis_server, caplog
):
    topic, _ = places
    into = {"kind": "redis", "url": redis_server.url, "prefix": "users:", "fields": {"n": "long"}}
    job = {"name": "load", "type": "load", "trigger": "available-now", "into": into}
    job |= {"from": {"topic": topic}}
    produce(kafka, topic, range(10))
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    recreate(kafka, topic)
    produce(kafka, topic, range(20, 32))
    with caplog.at_level(logging.WARNING):
        assert (
            run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
        )
    redis = RedisTable(RedisConfig(redis_server.url, "users:", keys_per_command=50))
    keys = [str(each) for each in range(32)]
    values = [value for _, chunk, _ in redis.fetch_values(keys) for value in chunk]
    assert [key for key, value in zip(keys, values, strict=True) if value is None] == keys[10:20]
    assert any("recreated" in each.getMessage() for each in caplog.records)
