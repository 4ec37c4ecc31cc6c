"""Jobs whose input topics are deleted and recreated, with a real Kafka."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.jobs import create_job_loop, run_until_ended
from support.pipelines import JobHistory
from support.waiting import block_until

from gateway.pipeline.exactly_once.ledger import ledger_topic

pytestmark = pytest.mark.night

# The last one writes by Spark's own sink, without a call of Python in each batch.
GUARANTEES = ("exactly-once", "at-least-once, told", "at-least-once")


def query_of(topic: str, to: str, guarantee: str, trigger: str = "available-now") -> dict[str, Any]:
    read = {"topic": topic, "value": {"fields": {"n": "bigint"}}}
    name, _, told = guarantee.partition(", ")
    if told:
        read["onDataLoss"] = "gap"
    into = {"topic": to, "guarantee": name}
    made = {"name": "query", "type": "query", "trigger": trigger, "to": into}
    return made | {"tables": {"t": read}, "sql": "SELECT n FROM t"}


def produce(kafka: KafkaCluster, topic: str, numbers: range, *, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        producer.produce(topic, json.dumps({"n": number}), str(number), partition)
    assert producer.flush(30) == 0


def recreate(kafka: KafkaCluster, topic: str, partitions: int = 1) -> None:
    kafka.admin.delete_topic(topic)
    kafka.create_topic(topic, partitions)


def rows_of(kafka: KafkaCluster, to: str) -> list[int]:
    return sorted(json.loads(each.value())["n"] for each in read_committed(kafka, to))


def is_told(reason: str | None, topic: str) -> bool:
    return reason is not None and f"topic {topic} was" in reason and "--fresh" in reason


@pytest.fixture
def places(kafka: KafkaCluster) -> Any:
    """A topic and an output."""
    topic, to = kafka.create_unique_topic(), kafka.create_unique_topic()
    yield topic, to
    kafka.admin.delete_topic(ledger_topic(to))


@pytest.mark.needs("java17")
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_new_topic_ends_each_start_until_a_fresh_one_reads_it(
    kafka, spark, tmp_path, places, guarantee
):
    """What it had before the old position was lost without a word."""
    topic, to = places
    job, servers = query_of(topic, to, guarantee), [kafka.bootstrap_servers]
    produce(kafka, topic, range(10))
    assert run_until_ended(spark, servers, tmp_path / "old", job).failure_reason is None
    recreate(kafka, topic)
    produce(kafka, topic, range(100, 112))
    for _ in range(2):
        assert is_told(run_until_ended(spark, servers, tmp_path / "old", job).failure_reason, topic)
    assert rows_of(kafka, to) == [*range(10)]
    assert run_until_ended(spark, servers, tmp_path / "old", job, fresh=True).failure_reason is None
    assert rows_of(kafka, to) == [*range(10), *range(100, 112)]


@pytest.mark.needs("java17")
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("count", [3, 10, 40])
def test_a_query_that_runs_ends(kafka, spark, tmp_path, places, guarantee, count):
    """The new topic is shorter than the old one, as long, or longer. Spark plans no batch for one
    that is as long, and topics were compared in batches only: the job stalled."""
    topic, to = places
    produce(kafka, topic, range(10))
    settings = query_of(topic, to, guarantee, "0s")
    with create_job_loop(spark, [kafka.bootstrap_servers], tmp_path, settings) as job:
        job.poll_until((tmp_path / "query" / "v1" / "commits" / "0").exists, "first batch")
        recreate(kafka, topic)
        produce(kafka, topic, range(100, 100 + count))
        block_until(lambda: job.run.poll() or job.run.is_done, "the end of the job")
        assert is_told(job.run.failure_reason, topic)
    if guarantee == "exactly-once":
        assert rows_of(kafka, to) == [*range(10)]


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
        block_until(lambda: loop.run.poll() or loop.run.is_done, "the end of the job")
        assert is_told(loop.run.failure_reason, topic)
    assert rows_of(kafka, to) == []
    kafka.admin.delete_topic(ledger_topic(to))


@dataclass
class Endless(JobHistory):
    """Its job runs until it is ended."""

    def build_settings(self, **changed: Any) -> dict[str, Any]:
        found = super().build_settings(**changed)
        found["pipelines"]["jobs"][0]["trigger"] = "0s"
        return found


@pytest.mark.needs("java17")
def test_a_job_waits_for_a_topic_that_is_away_and_ends_when_it_is_another(kafka, tmp_path, places):
    """Spark gives up after 3 s; the job was at its end then, and its process perhaps not."""
    topic, to = places
    produce(kafka, topic, range(10))
    story = Endless(query_of(topic, to, "exactly-once"), [kafka.bootstrap_servers], tmp_path)
    with story.running_job() as run:
        block_until(lambda: run.is_ended or len(rows_of(kafka, to)) >= 10, "rows of the old topic")
        kafka.admin.delete_topic(topic)
        block_until(lambda: run.is_ended or run.has_logged("begins again"), "a job that waits")
        assert not run.is_ended, run.read_log_tail()
        kafka.create_topic(topic)
        produce(kafka, topic, range(100, 112))
        block_until(lambda: run.is_ended, "the end of the job")
        assert run.has_logged(f"topic {topic} was deleted and created again")
    assert rows_of(kafka, to) == [*range(10)]
