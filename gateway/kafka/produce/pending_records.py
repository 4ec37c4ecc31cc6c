"""One record on its way to Kafka, and what is said of it when it cannot get there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import Outbox
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed

DENIED_CODES = frozenset({29, 31})
RECORD_OVERHEAD_BYTES = 64  # bytes of a record beside its content, about

Headers = Sequence[tuple[str, bytes | None]]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODEC_IDS: Mapping[Compression, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


OffsetResults: TypeAlias = list[int | KafkaError]
"""Offsets (-1 where Kafka has it and does not say where), or why there is none."""


class ProducerRecord(NamedTuple):
    """A record to be written. timestamp: milliseconds since 1970; None for now."""

    tp: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


class PendingBatch:
    """Records that are told of together, with one timer for all of them.

    told: given once each has its offset, or why it has none, in the order they were handed over.
    """

    __slots__ = ("_on_done", "_records_left", "_results", "began_at", "records", "timer")

    def __init__(
        self, count: int, began_at: float, on_done: Callable[[OffsetResults], None]
    ) -> None:
        self.records: dict[TopicPartition, list[PendingRecord]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.began_at = began_at  # seconds since 1970
        self._results: OffsetResults = [-1] * count
        self._records_left = count
        self._on_done = on_done

    def set_result(self, index: int, result: int | KafkaError) -> None:
        """One of them is known."""
        self._results[index] = result
        self._records_left -= 1
        if not self._records_left:
            if self.timer is not None:
                self.timer.cancel()
            self.records.clear()  # or each would keep the other
            self._on_done(self._results)


@dataclass(slots=True, eq=False)
class PendingRecord:
    """One record on its way; place: in its parcel."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    size: int
    batch: PendingBatch
    index: int


def estimate_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """About. Raises TypeError or ValueError for what cannot be a record: met later, it would keep
    the batch that it came to be in from being sent."""
    size = RECORD_OVERHEAD_BYTES
    for name, content in (("", key), ("", value), *headers):
        if not isinstance(content, bytes | None):
            raise TypeError(f"{type(content).__name__} where a record has bytes; encode it")
        size += len(name.encode()) + len(content or b"") + 4
    return size


def encode_batch(
    outbox: Outbox[PendingRecord], records: Iterable[PendingRecord], codec: int = 0
) -> bytes:
    """As one batch; the same letters under the same producer id give the same bytes."""
    assert outbox.producer is not None
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=outbox.producer.id,
        producer_epoch=outbox.producer.epoch,
        base_sequence=outbox.sequence,
        batch_size=1 << 30,  # the outbox has cut it
    )
    for index, letter in enumerate(records):
        builder.append(index, letter.timestamp, letter.key, letter.value, list(letter.headers))
    return bytes(builder.build())


def build_refused_error(tp: TopicPartition, code: int) -> KafkaError:
    if code in DENIED_CODES:
        return AccessDenied(
            f"the gateway may not write to {tp.topic}; allow it WRITE", topic=tp.topic
        )
    return PartitionFailed(
        f"{tp} refuses the record (code {code})", topic=tp.topic, partition=tp.partition, code=code
    )


def build_in_doubt_error(tp: TopicPartition, reason: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"{tp} may have been written to, or not: {reason}; repeat it with its idempotency key",
        timeout=True,
        retry_after=1.0,
    )
