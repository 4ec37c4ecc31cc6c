"""Read records that Spark cannot read from Kafka: librdkafka reads any timestamp.

The functions raise KafkaException if Kafka does not answer, or refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import methodcaller
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
"""The greatest timestamp in ms that Spark can read; the least one is its negative."""
MAX_CHUNK_RECORDS = 1_000
MAX_CHUNK_BYTES = 16 * 1024**2
MAX_LOOK_AHEAD_RECORDS = 1_000
READ_TIMEOUT_S = 30.0


class UnreadableRecord(NamedTuple):
    """A record that Spark cannot read, without headers if the client cannot read them."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    has_unreadable_headers: bool = False

    @property
    def size(self) -> int:
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


def is_readable(timestamp_ms: int) -> bool:
    return -MAX_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS


def read_run(
    client_config: Mapping[str, Any],
    topic: str,
    partition: int,
    offset: int,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[UnreadableRecord]]:
    """Yield the records that Spark cannot read from an offset on, up to the first one it can read.

    Only committed records are read. Nothing is yielded if the record at `offset` can be read or is
    gone. A producer with a wrong clock writes many such records in a row, and may write them faster
    than they are read here.

    Args:
        should_stop: Called after each record. If it returns True, the record and those before are
            yielded, and no more are read.

    Yields:
        Chunks of at most `MAX_CHUNK_RECORDS` records and about `MAX_CHUNK_BYTES`.
    """
    chunk: list[UnreadableRecord] = []
    size = 0
    first = True
    for message in _read_messages(client_config, topic, partition, offset):
        if _is_message_readable(message) or (first and message.offset() != offset):
            break
        first = False
        chunk.append(_parse_record(message))
        size += chunk[-1].size
        stop = should_stop()
        if stop or len(chunk) >= MAX_CHUNK_RECORDS or size >= MAX_CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        if stop:
            break
    if chunk:
        yield chunk


def find_next_unreadable(
    client_config: Mapping[str, Any], topic: str, partition: int, start: int, end: int
) -> int | None:
    """Return the next unreadable offset before `end`, within `MAX_LOOK_AHEAD_RECORDS`."""
    if start >= end:
        return None
    for message in islice(
        _read_messages(client_config, topic, partition, start), MAX_LOOK_AHEAD_RECORDS
    ):
        offset: int = message.offset()
        if offset >= end:
            return None
        if not _is_message_readable(message):
            return offset
        if offset == end - 1:  # do not wait for a record after the range, or for its end
            return None
    return None


def read_to_end(client_config: Mapping[str, Any], topic: str, partitions: int) -> Iterator[Any]:
    """Yield the committed records of a topic as messages, up to where it ends at the call."""
    consumer = Consumer({**client_config, **_CONSUMER_CONFIG, "queued.max.messages.kbytes": 65536})
    try:
        tps = [
            TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)
        ]
        ends: dict[int, int] = {}
        for tp in tps:
            _, ends[tp.partition] = consumer.get_watermark_offsets(tp, timeout=READ_TIMEOUT_S)
        unread = {partition for partition, end in ends.items() if end > 0}
        consumer.assign([tp for tp in tps if tp.partition in unread])
        deadline = time.monotonic() + READ_TIMEOUT_S
        while unread:
            messages = consumer.consume(MAX_CHUNK_RECORDS, 0.5)
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise _build_timeout_error()
            for message in messages:
                has_ended, partition = _has_ended(message), message.partition()
                if partition not in unread:  # fetched before the partition was unassigned
                    continue
                if message.error() is None:
                    yield message
                    has_ended = (message.offset() or 0) >= ends[partition] - 1
                if has_ended:
                    unread.remove(partition)
                    consumer.incremental_unassign([TopicPartition(topic, partition)])
    finally:
        consumer.close()


_CONSUMER_CONFIG: Mapping[str, Any] = {
    "group.id": "gateway-unreadable",  # the library requires one; no offset is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",  # used if retention has deleted the offset
    "fetch.wait.max.ms": 5,  # with the default, the end of a partition is seen after 0.5 s
    "queued.max.messages.kbytes": 4096,
}


def _read_messages(
    client_config: Mapping[str, Any], topic: str, partition: int, offset: int
) -> Iterator[Any]:
    consumer = Consumer({**client_config, **_CONSUMER_CONFIG})
    consumer.assign([TopicPartition(topic, partition, offset)])
    try:
        while (message := _poll_message(consumer)) is not None:
            yield message
    finally:
        consumer.close()


def _poll_message(consumer: Any) -> Any:
    """Return the next message, or None at the end of the partition."""
    deadline = time.monotonic() + READ_TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if _has_ended(message):
            return None
        if message.error() is None:
            return message
    raise _build_timeout_error()


def _has_ended(message: Any) -> bool:
    """Return whether a message says that its partition has ended."""
    error = message.error()
    if error is None:
        return False
    if error.code() != KafkaError._PARTITION_EOF and (error.fatal() or not error.retriable()):
        raise KafkaException(error)
    return bool(error.code() == KafkaError._PARTITION_EOF)


def _build_timeout_error() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "the topic cannot be read"))


def _is_message_readable(message: Any) -> bool:
    _, timestamp = message.timestamp()
    return is_readable(timestamp)


def _parse_record(message: Any) -> UnreadableRecord:
    _, timestamp = message.timestamp()
    headers = _read_headers(message)
    position = message.offset(), timestamp
    return UnreadableRecord(
        *position, message.key(), message.value(), headers or [], headers is None
    )


_get_headers = methodcaller("headers")


def _read_headers(message: Any) -> list[tuple[str, bytes | None]] | None:
    """Return the headers of a message, or None if the client cannot read them.

    Kafka takes any bytes as the name of a header. confluent_kafka (2.16.1) decodes all names of a
    record or none. If a name is not UTF-8, its method returns a result and also sets
    UnicodeDecodeError, which is a bug. If Python checks for that, as in a call by `methodcaller`,
    it raises SystemError. In a call that it has specialised (PEP 659) it does not check, and the
    next call raises the error. So the method must be called by `methodcaller`.
    """
    try:
        return list(_get_headers(message) or [])
    except (SystemError, UnicodeError):
        return None
