"""Unreadable records of a real Kafka, and their dead letters; without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.dead_letters import get_header, read_committed

from gateway.config import Kafka
from gateway.config.sections.job import Output
from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.topics import TopicDescription
from gateway.pipeline.unreadable.dead_letters import DeadLetterWriter, RecordOrigin
from gateway.pipeline.unreadable.records import (
    MAX_TIMESTAMP_MS,
    UnreadableRecord,
    find_next_unreadable,
    read_run,
)

pytestmark = pytest.mark.night

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = MAX_TIMESTAMP_MS + 1


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """Of offsets 0 to 6; Spark reads 0, 3, 4 and 6."""
    topic = kafka.create_unique_topic(configs=ANY_TIME)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    times = [MAX_TIMESTAMP_MS, BEYOND, -BEYOND, -MAX_TIMESTAMP_MS, 1, BEYOND, 1]
    for number, at in enumerate(times):
        producer.produce(topic, b"%d" % number, timestamp=at)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture
def letters(kafka: KafkaCluster) -> Iterator[DeadLetterWriter]:
    into = Kafka.model_validate({"servers": kafka.bootstrap})
    made = DeadLetterWriter(
        "query-id", Output.model_validate({"topic": kafka.create_unique_topic()}), into
    )
    yield made
    kafka.admin.delete_topic(ledger_topic(made.output.topic))


def test_a_run_of_records_ends_at_the_first_that_spark_reads(kafka: KafkaCluster, topic: str):
    client = {"bootstrap.servers": kafka.bootstrap_servers}

    def run(offset: int) -> list[int]:
        found = read_run(client, topic, 0, offset)
        return [each.offset for chunk in found for each in chunk]

    assert [run(offset) for offset in (0, 1, 2, 5, 7)] == [[], [1, 2], [2], [5], []]
    bounds = [(0, 7), (2, 7), (3, 7), (3, 5), (6, 7), (7, 7)]
    found = [find_next_unreadable(client, topic, 0, *each) for each in bounds]
    assert found == [1, 2, 5, None, None, None]


def test_what_retention_took_is_no_run(kafka: KafkaCluster, topic: str):
    kafka.admin.delete_records(topic, {0: 2})
    assert list(read_run({"bootstrap.servers": kafka.bootstrap_servers}, topic, 0, 1)) == []


def test_letters_that_were_sent_before_a_crash_are_not_sent_again(kafka, letters):
    topic = kafka.create_unique_topic()
    records = [UnreadableRecord(n, BEYOND + n, b"k%d" % n, b"v", [("h", None)]) for n in range(4)]
    origin = RecordOrigin("left", TopicDescription(topic, "id", 1), 0)
    letters.write(origin, records[:2])
    again = DeadLetterWriter(letters.query_id, letters.output, letters.output_cluster)
    again.write(origin, records[:2])
    again.write(origin, records[1:])
    again.write(RecordOrigin("left", TopicDescription(topic, "anew", 1), 0), records[:1])
    again.write(RecordOrigin("right", TopicDescription(topic, "id", 1), 0), records[:1])
    found = read_committed(kafka, f"{topic}.dlq")
    assert [each.key() for each in found] == [b"k0", b"k1", b"k2", b"k3", b"k0", b"k0"]
    assert found[1].headers()[0] == ("h", None)
    told = {name: get_header(found[1], name) for name in ("X-Origin-Topic", "X-Origin-Offset")}
    assert told == {"X-Origin-Topic": topic.encode(), "X-Origin-Offset": b"1"}
    assert get_header(found[1], "X-Origin-Timestamp") == b"%d" % (BEYOND + 1)
    assert get_header(found[1], "X-Origin-Input") == b"left"
    kafka.admin.delete_topic(f"{topic}.dlq")


def test_a_letter_that_is_too_large_is_cut(kafka: KafkaCluster, letters: DeadLetterWriter):
    """Its topic refused it, and so it ended the job."""
    topic = kafka.create_unique_topic()
    large = UnreadableRecord(0, BEYOND, b"k", b"x" * 2_000_000, [])
    letters.write(
        RecordOrigin("t", TopicDescription(topic, "id", 1), 0),
        [large, UnreadableRecord(1, BEYOND, b"l", None, [])],
    )
    first, second = read_committed(kafka, f"{topic}.dlq")
    assert (first.key(), second.key(), second.value()) == (b"k", b"l", None)
    assert 0 < len(first.value()) < 1_000_000
    kafka.admin.delete_topic(f"{topic}.dlq")
