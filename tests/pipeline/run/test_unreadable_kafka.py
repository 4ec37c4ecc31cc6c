"""Jobs that meet a record whose timestamp Spark cannot read, with a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.jobs import run_until_ended

from gateway.config import Kafka
from gateway.config.sections.pipelines import Aggregate
from gateway.errors import PipelineError
from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.failures import TIMESTAMP_ADVICE
from gateway.pipeline.skew import measure_skew

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = 2**60
BAD = "bad"


def produce(kafka: KafkaCluster, topic: str, partition: int, users: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for user in users:
        timestamp = BEYOND if user == BAD else 0  # now
        producer.produce(topic, json.dumps({"user": user}), user, partition, timestamp=timestamp)
    assert producer.flush(60) == 0


def name_record(topic: str, offset: int) -> str:
    place = f"topic {topic} partition 0 offset {offset}"
    return f"Record at {place} has timestamp value {BEYOND} that overflows"


def values_of(kafka: KafkaCluster, topic: str) -> list[Any]:
    return [json.loads(each.value()) for each in read_committed(kafka, topic)]


@pytest.mark.needs("java17")
def test_the_job_ends_at_each_start_until_the_topic_begins_behind_the_record(
    kafka, spark, tmp_path
):
    """What the topic loses is told as a gap, and nothing else is lost or written twice."""
    topic, to = kafka.create_unique_topic(2, configs=ANY_TIME), kafka.create_unique_topic()
    value = {"fields": {"user": "string"}}
    job = {"name": "query", "type": "query", "trigger": "available-now", "to": {"topic": to}}
    job |= {"tables": {"t": {"topic": topic, "value": value}}, "sql": "SELECT user FROM t"}

    def run() -> str | None:
        return run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason

    produce(kafka, topic, 0, ["a"])
    assert run() is None
    produce(kafka, topic, 0, ["b", BAD, "c"])
    produce(kafka, topic, 1, ["d"])
    for _ in range(2):
        assert run() == f"{name_record(topic, 2)}; {TIMESTAMP_ADVICE}"
        assert [row["user"] for row in values_of(kafka, to)] == ["a"]
    kafka.admin.delete_records(topic, {0: 3})
    for _ in range(2):
        assert run() is None
    assert sorted(row["user"] for row in values_of(kafka, to)) == ["a", "c", "d"]
    gaps = values_of(kafka, f"{to}.gaps")
    assert [(each["partition"], each["from"], each["to"]) for each in gaps] == [(0, 1, 3)]
    for name in (ledger_topic(to), f"{to}.gaps"):
        kafka.admin.delete_topic(name)


@pytest.mark.night
@pytest.mark.needs("java17")
def test_a_sample_of_a_topic_with_such_a_record_names_it(kafka, spark):
    topic = kafka.create_unique_topic(configs=ANY_TIME)
    produce(kafka, topic, 0, ["a", BAD])
    job = Aggregate.model_validate(
        {
            **{"name": "n", "type": "aggregate", "by": ["user"], "measures": {"n": "count(*)"}},
            **{"from": {"topic": topic, "value": {"fields": {"user": "string"}}}},
            **{"window": {"size": "1m"}, "to": {"topic": "n"}},
        }
    )
    cluster = Kafka.model_validate({"servers": kafka.bootstrap})
    with pytest.raises(PipelineError) as raised:
        measure_skew(spark, job, {"": cluster}, {}, 10)
    assert str(raised.value) == f"{name_record(topic, 1)}; {TIMESTAMP_ADVICE}"


@pytest.mark.night
@pytest.mark.needs("java17")
def test_a_table_with_such_a_record_ends_the_job_and_names_it(kafka, spark, tmp_path):
    topic, users, to = (kafka.create_unique_topic(configs=ANY_TIME) for _ in range(3))
    produce(kafka, users, 0, ["a", BAD])
    produce(kafka, topic, 0, ["a"])
    job = {"name": "enriched", "type": "enrich", "trigger": "available-now", "to": {"topic": to}}
    job |= {"from": {"topic": topic, "value": {"fields": {"user": "string"}}}, "on": "user"}
    job |= {"table": {"kind": "broadcast", "topic": users, "fields": {"n": "long"}}}
    reason = run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason
    assert reason is not None
    problem = name_record(users, 1)
    assert reason.startswith(f"the table of job enriched cannot be read: {problem}; ")
    assert reason.endswith("the job does not begin without it")
    assert "kafka-delete-records.sh" not in reason  # Kafka refuses that for a compacted topic
    kafka.admin.delete_topic(ledger_topic(to))
