"""Such records as they are in Kafka: librdkafka reads any timestamp."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

LAST_MILLIS = (2**63 - 1) // 1000
"""The last timestamp, in ms, that Spark can read; the first one is the negative of it."""
CHUNK_RECORDS = 1_000
CHUNK_BYTES = 16 * 1024**2
LOOK_RECORDS = 1_000
TIMEOUT_S = 30.0


class Record(NamedTuple):
    """A record that Spark cannot read."""

    offset: int
    timestamp: int  # ms since 1970
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


def is_readable(timestamp: int) -> bool:
    """Return whether Spark can read a record of this timestamp in ms."""
    return -LAST_MILLIS <= timestamp <= LAST_MILLIS


def read_run(
    client: Mapping[str, Any], topic: str, partition: int, offset: int
) -> Iterator[list[Record]]:
    """Yield the records that Spark cannot read from an offset on, up to the first one it can read.

    Only committed records are read. A producer with a wrong clock writes many of them in a row.

    Args:
        client: librdkafka's properties of the cluster.
        topic: The topic's name.
        partition: The number of the partition.
        offset: Where to begin. Nothing is yielded if there is no such record there.

    Yields:
        Chunks of at most `CHUNK_RECORDS` records and about `CHUNK_BYTES`.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    chunk: list[Record] = []
    size = 0
    first = True
    for record in _read(client, topic, partition, offset):
        if is_readable(record.timestamp) or (first and record.offset != offset):
            break
        first = False
        chunk.append(record)
        size += record.size
        if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def find_next(
    client: Mapping[str, Any], topic: str, partition: int, start: int, end: int
) -> int | None:
    """Return the offset of a record that Spark cannot read, if one is near.

    Args:
        client: librdkafka's properties of the cluster.
        topic: The topic's name.
        partition: The number of the partition.
        start: Where to begin.
        end: The offset to stop before. No more than `LOOK_RECORDS` are looked at.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    if start >= end:
        return None
    for record in islice(_read(client, topic, partition, start), LOOK_RECORDS):
        if record.offset >= end:
            return None
        if not is_readable(record.timestamp):
            return record.offset
        if record.offset == end - 1:
            return None
    return None


_READING: Mapping[str, Any] = {
    "group.id": "gateway-unreadable",  # asked for by the library; nothing is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",  # of what retention took
    "fetch.wait.max.ms": 5,  # else the end of a partition is seen after 0.5 s
    "queued.max.messages.kbytes": 4096,
}


def _read(client: Mapping[str, Any], topic: str, partition: int, offset: int) -> Iterator[Record]:
    """Yield the committed records of a partition from an offset to its end."""
    consumer = Consumer({**client, **_READING})
    consumer.assign([TopicPartition(topic, partition, offset)])
    try:
        while (record := _next(consumer)) is not None:
            yield record
    finally:
        consumer.close()


def _next(consumer: Any) -> Record | None:
    """Return the next record; None at the end of the partition."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            headers = list(message.headers() or [])
            _, timestamp = message.timestamp()
            place = message.offset(), timestamp
            return Record(*place, message.key(), message.value(), headers)
        if error.code() == KafkaError._PARTITION_EOF:
            return None
        if error.fatal() or not error.retriable():
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the topic cannot be read"))
