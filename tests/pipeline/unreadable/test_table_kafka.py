"""Tables of a topic whose records Spark cannot all read, with a real Kafka; without Spark."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster

from gateway.pipeline.unreadable.table import TopicReader

pytestmark = pytest.mark.night

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = 2**60


class SparkFails(Exception):
    """As Spark's connector says it; a real one is in `test_skip_kafka`."""


def reader_of(kafka: KafkaCluster, topic: str) -> TopicReader:
    return TopicReader("job", topic, {"bootstrap.servers": kafka.bootstrap_servers})


def produce(
    kafka: KafkaCluster, topic: str, records: list[tuple[str | None, str | None, bool]]
) -> None:
    """Produce records of a key and a value, in two partitions; True for a timestamp beyond."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for key, value, bad in records:
        partition = ord(key[-1]) % 2 if key else 0
        producer.produce(topic, value, key, partition, timestamp=BEYOND if bad else 0)
    assert producer.flush(60) == 0


class Load:
    """Fails where the topic has a record that Spark cannot read. calls: how often it was read."""

    def __init__(self, topic: str) -> None:
        self.topic, self.calls, self.has_unreadable = topic, 0, True

    def __call__(self, raw: Any) -> dict[bytes, bytes | None] | None:
        if raw is not None:
            rows = raw.to_pylist()
            return {each["key"]: each["value"] for each in rows}
        self.calls += 1
        if self.has_unreadable:
            place = f"topic {self.topic} partition 0 offset 0"
            raise SparkFails(f"Record at {place} has timestamp value {BEYOND} that overflows")
        return None


def test_scattered_records_are_left_out_by_one_read(kafka, caplog):
    """Each of them took a whole read by Spark: 97 s for forty."""
    topic = kafka.create_unique_topic(2, configs=ANY_TIME)
    rng = random.Random(7)
    expected: dict[bytes, bytes | None] = {}
    records: list[tuple[str | None, str | None, bool]] = []
    for number in range(20_000):
        key, bad = f"k{rng.randrange(300)}", number % 100 == 0
        value = None if rng.random() < 0.1 else str(number)
        records.append((key, value, bad))
        if not bad:
            expected[key.encode()] = None if value is None else value.encode()
    produce(kafka, topic, [*records, (None, "no key", False)])
    load, reader = Load(topic), reader_of(kafka, topic)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert reader.read(load) == expected
    assert load.calls == 1  # the topic has such records, so Spark is not asked again
    said = [each.getMessage() for each in caplog.records if "leaves out" in each.getMessage()]
    assert len(said) == 1
    assert f"leaves out 200 records of {topic}" in said[0]


def test_spark_reads_a_topic_again_whose_unreadable_records_are_gone(kafka: KafkaCluster):
    topic = kafka.create_unique_topic(2, configs=ANY_TIME)
    produce(kafka, topic, [("a", "1", True), ("b", "2", False)])
    load, reader = Load(topic), reader_of(kafka, topic)
    assert reader.read(load) == {b"b": b"2"}
    kafka.admin.delete_records(topic, {1: 1})
    load.has_unreadable = False
    assert reader.read(load) == {b"b": b"2"}
    assert reader.read(load) is None


def test_a_record_that_is_gone_before_it_is_looked_at_is_no_reason_to_fail(kafka: KafkaCluster):
    topic = kafka.create_unique_topic(2, configs=ANY_TIME)
    produce(kafka, topic, [("b", "2", False)])
    assert reader_of(kafka, topic).read(Load(topic)) == {b"b": b"2"}


def test_another_failure_is_raised(kafka: KafkaCluster):
    topic = kafka.create_unique_topic(2)

    def load(_: Any) -> None:
        raise ValueError("no table")

    with pytest.raises(ValueError, match="no table"):
        reader_of(kafka, topic).read(load)
