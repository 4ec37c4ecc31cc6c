"""Represent records that wait for Kafka's answer, encode them, and choose their partitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from aiokafka.partitioner import murmur2
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.core.error_code import AUTHORIZATION_ERRORS
from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed

RECORD_OVERHEAD_BYTES = 64  # about how many bytes a record takes besides its content
MAX_PENDING_BYTES = 32 << 20  # of all records that wait for Kafka's answer
# Of that, by the records of one topic: the others are written while one cannot be.
TOPIC_SHARE = 0.75
# One call counts for no more than this part of it: others have room beside the largest one.
MAX_CALL_DIVISOR = 3

Headers = Sequence[tuple[str, bytes | None]]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODEC_IDS: Mapping[Compression, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


OffsetResults: TypeAlias = list[int | KafkaError]
"""The offset of each record (-1 if Kafka has it but does not say where), or why it has none."""


class ProducerRecord(NamedTuple):
    """A record to write: a value of None is a tombstone, a timestamp (ms) of None is now."""

    tp: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


class PendingBytes:
    """Count the bytes of the calls whose records wait, and refuse calls that are too large.

    A call gets at most half of the room that is left of `limit`, and of TOPIC_SHARE of it for one
    topic: large ones are refused first, and leave room for small ones. One of any size fits when
    nothing else waits; two that are larger than what counts of a call never wait together.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit
        self._max_call = limit // MAX_CALL_DIVISOR + 1
        # Of all calls and by topic, with at most `_max_call` of each call.
        self._counted = 0
        self._by_topic: Counter[str] = Counter()

    def has_room(self, topic: str, size: int) -> bool:
        topic_room = self._limit * TOPIC_SHARE - self._by_topic.get(topic, 0)
        room = min(self._limit - self._counted, topic_room)
        return 2 * min(size, self._max_call) <= room

    def resize_call(self, topic: str, before: int, after: int) -> None:
        """Count a call of a topic with another size; it is 0 before the call and after it."""
        self.total += after - before
        counted = min(after, self._max_call) - min(before, self._max_call)
        self._counted += counted
        self._by_topic[topic] += counted
        if not self._by_topic[topic]:
            del self._by_topic[topic]


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Records whose results are delivered together, with one timer for all of them.

    The producer creates one for each call of `send` or `send_many`. It is not a record batch of
    Kafka: its records may go to several partitions and in several requests. `on_done` is called
    once all results are known, with the results in the caller's order.

    Attributes:
        topic: The one that its bytes count for: that of its first record.
        results: As many as there are records.
        results_left: How many of them are not known yet.
        began_at: When the caller handed the records over, in seconds since 1970.
        records: The records by partition; empty once all results are known.
        timer: Ends the wait of records that were not sent in time; None before it is set, and once
            that time is over.
        pending_bytes: The size of the records without a result.
    """

    topic: str
    results: OffsetResults
    results_left: int
    began_at: float
    on_done: Callable[[OffsetResults], None]
    records: dict[TopicPartition, list[PendingRecord]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    pending_bytes: int = 0

    def set_result(self, index: int, result: int | KafkaError) -> None:
        self.results[index] = result
        self.results_left -= 1
        if not self.results_left:
            if self.timer is not None:
                self.timer.cancel()
            self.records.clear()  # the records refer to this batch: break the cycle
            self.on_done(self.results)


@dataclass(slots=True, eq=False)
class PendingRecord:
    """One record that waits for Kafka's answer. `size` is approximate, `timestamp` in ms."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    size: int
    batch: PendingBatch
    index: int


def estimate_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return about how many bytes a record takes in a batch.

    Raises TypeError or ValueError for a record that cannot be encoded: once in a batch, it would
    keep the whole batch from being sent.
    """
    size = RECORD_OVERHEAD_BYTES
    for name, content in (("", key), ("", value), *headers):
        if not isinstance(content, bytes | None):
            raise TypeError(f"{type(content).__name__} where a record has bytes; encode it")
        size += len(name.encode()) + len(content or b"") + 4
    return size


def encode_batch(
    producer: ProducerIdAndEpoch,
    sequence: int,
    records: Iterable[PendingRecord | ProducerRecord],
    *,
    codec: int = 0,
    is_transactional: bool = False,
) -> bytes:
    """Encode the records as one record batch of Kafka, compressed by the codec id.

    The same pending records under the same producer id give the same bytes, so that a repeated
    batch is a duplicate to Kafka. `sequence` is the number of the first record.
    """
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(is_transactional),
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        batch_size=1 << 30,  # no limit here: the caller has limited the batch
    )
    for index, record in enumerate(records):
        builder.append(index, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def build_refused_error(tp: TopicPartition, code: int, reason: str = "") -> KafkaError:
    if code in AUTHORIZATION_ERRORS:
        return AccessDenied(
            f"the gateway may not write to {tp.topic}; allow it WRITE", topic=tp.topic
        )
    return PartitionFailed(
        f"{tp} refuses the record (code {code}{reason and f': {reason}'})",
        topic=tp.topic,
        partition=tp.partition,
        code=code,
    )


def build_in_doubt_error(tp: TopicPartition, reason: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"{tp} may have been written to, or not: {reason}; without an idempotency key, a repeat "
        "may write it twice",
        timeout=True,
        retry_after=1.0,
    )


_cached_murmur2 = lru_cache(1 << 16)(murmur2)  # aiokafka's is pure Python: 3 us for a short key
_MAX_CACHED_KEY_BYTES = 256  # larger keys would take too much memory in the cache


def compute_partition(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key.

    It is murmur2 of the key's bytes, with the sign bit cleared, modulo the number of partitions, as
    in Java's clients and in librdkafka's `murmur2_random`.
    """
    hashed = _cached_murmur2(key) if len(key) < _MAX_CACHED_KEY_BYTES else murmur2(key)
    return int(hashed & 0x7FFFFFFF) % partition_count
