"""Dead letters as reactive groups leave them, and topics as another client reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from support.brokers import Broker

from gateway.core.log.record import TopicPartition as Place
from gateway.sidecar.reactive.letter import Letter

LATE = 60.0  # s


def seal(
    kafka: Broker, topic: str, numbers: Sequence[int], group: str, *, partitions: int = 2
) -> None:
    """A letter of each number `n`, which is its offset; in turns over the partitions."""
    producer = Producer({"bootstrap.servers": kafka.servers})
    for number in numbers:
        origin = Place(topic, number % partitions)
        letter = Letter(
            origin, number, int(time.time() * 1000) - 60_000, f"k{number}".encode(),
            json.dumps({"n": number}).encode(), (("h", b"1"), ("h", None)), group, "Boom", "c", "",
        )  # fmt: skip
        producer.produce(
            letter.topic, letter.value, letter.key, origin.partition, headers=letter.sealed()
        )
    assert producer.flush(LATE) == 0


def committed(kafka: Broker, topic: str, partitions: int = 1) -> list[Any]:
    """Every record that a reader of committed ones sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    found, ends = [], 0
    try:
        while ends < partitions:
            message = consumer.poll(LATE)
            assert message is not None, f"{topic} has no end"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ends += 1
    finally:
        consumer.close()
    return found


def header(message: Any, name: str) -> bytes:
    """The first of that name."""
    return next(value for each, value in message.headers() if each == name)
