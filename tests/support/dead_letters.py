"""Dead letters as reactive groups leave them, and topics as another client reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from support.brokers import KafkaCluster

from gateway.core.log.record import TopicPartition as Place
from gateway.sidecar.reactive.dead_letters import DeadLetterMessage

READ_TIMEOUT_S = 60.0  # s


def write_dead_letters(
    kafka: KafkaCluster, topic: str, numbers: Sequence[int], group: str, *, partition_count: int = 2
) -> None:
    """A letter of each number `n`, which is its offset; in turns over the partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        origin = Place(topic, number % partition_count)
        letter = DeadLetterMessage(
            origin, number, int(time.time() * 1000) - 60_000, f"k{number}".encode(),
            json.dumps({"n": number}).encode(), (("h", b"1"), ("h", None)), group, "Boom", "c", "",
        )  # fmt: skip
        producer.produce(
            f"{letter.origin.topic}.dlq",
            letter.value,
            letter.key,
            origin.partition,
            headers=letter.to_headers(),
        )
    assert producer.flush(READ_TIMEOUT_S) == 0


def read_committed(kafka: KafkaCluster, topic: str, partition_count: int = 1) -> list[Any]:
    """Every record that a reader of committed ones sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partition_count)])
    found, ends = [], 0
    try:
        while ends < partition_count:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"{topic} has no end"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ends += 1
    finally:
        consumer.close()
    return found


def get_header(message: Any, name: str) -> bytes:
    """The first of that name."""
    return next(value for each, value in message.headers() if each == name)
