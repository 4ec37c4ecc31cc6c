"""Unreadable records of a real Kafka, and their dead letters; without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from support.brokers import Broker
from support.letters import committed, header

from gateway.config import Kafka
from gateway.config.sections.pipeline import Output
from gateway.pipeline.exactly_once.ledger import topic_of
from gateway.pipeline.topics import Topic
from gateway.pipeline.unreadable.letters import DeadLetters, Origin
from gateway.pipeline.unreadable.log import LAST_MILLIS, Record, find_next, read_run

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = LAST_MILLIS + 1


@pytest.fixture
def topic(kafka: Broker) -> str:
    """Of offsets 0 to 6; Spark reads 0, 3, 4 and 6."""
    topic = kafka.topic(configs=ANY_TIME)
    producer = Producer({"bootstrap.servers": kafka.servers})
    times = [LAST_MILLIS, BEYOND, -BEYOND, -LAST_MILLIS, 1, BEYOND, 1]
    for number, at in enumerate(times):
        producer.produce(topic, b"%d" % number, timestamp=at)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture
def letters(kafka: Broker) -> Iterator[DeadLetters]:
    into = Kafka.model_validate({"servers": kafka.bootstrap})
    made = DeadLetters("query-id", Output.model_validate({"topic": kafka.topic()}), into)
    yield made
    kafka.admin.delete_topic(topic_of(made.output.topic))


def test_a_run_of_records_ends_at_the_first_that_spark_reads(kafka: Broker, topic: str):
    client = {"bootstrap.servers": kafka.servers}

    def run(offset: int) -> list[int]:
        found = read_run(client, topic, 0, offset)
        return [each.offset for chunk in found for each in chunk]

    assert [run(offset) for offset in (0, 1, 2, 5, 7)] == [[], [1, 2], [2], [5], []]
    bounds = [(0, 7), (2, 7), (3, 7), (3, 5), (6, 7), (7, 7)]
    found = [find_next(client, topic, 0, *each) for each in bounds]
    assert found == [1, 2, 5, None, None, None]


def test_what_retention_took_is_no_run(kafka: Broker, topic: str):
    kafka.admin.delete_records(topic, {0: 2})
    assert list(read_run({"bootstrap.servers": kafka.servers}, topic, 0, 1)) == []


def test_letters_that_were_sent_before_a_crash_are_not_sent_again(
    kafka: Broker, letters: DeadLetters
):
    topic = kafka.topic()
    records = [Record(n, BEYOND + n, b"k%d" % n, b"v", [("h", None)]) for n in range(4)]
    origin = Origin("left", Topic(topic, "id", 1), 0)
    letters.send(origin, records[:2])
    again = DeadLetters(letters.query, letters.output, letters.into)
    again.send(origin, records[:2])
    again.send(origin, records[1:])
    again.send(Origin("left", Topic(topic, "anew", 1), 0), records[:1])
    again.send(Origin("right", Topic(topic, "id", 1), 0), records[:1])
    found = committed(kafka, f"{topic}.dlq")
    assert [each.key() for each in found] == [b"k0", b"k1", b"k2", b"k3", b"k0", b"k0"]
    assert found[1].headers()[0] == ("h", None)
    told = {name: header(found[1], name) for name in ("X-Origin-Topic", "X-Origin-Offset")}
    assert told == {"X-Origin-Topic": topic.encode(), "X-Origin-Offset": b"1"}
    assert header(found[1], "X-Origin-Timestamp") == b"%d" % (BEYOND + 1)
    assert header(found[1], "X-Origin-Input") == b"left"
    kafka.admin.delete_topic(f"{topic}.dlq")


def test_a_letter_that_is_too_large_is_cut(kafka: Broker, letters: DeadLetters):
    """Its topic refused it, and so it ended the job."""
    topic = kafka.topic()
    large = Record(0, BEYOND, b"k", b"x" * 2_000_000, [])
    letters.send(Origin("t", Topic(topic, "id", 1), 0), [large, Record(1, BEYOND, b"l", None, [])])
    first, second = committed(kafka, f"{topic}.dlq")
    assert (first.key(), second.key(), second.value()) == (b"k", b"l", None)
    assert 0 < len(first.value()) < 1_000_000
    kafka.admin.delete_topic(f"{topic}.dlq")
