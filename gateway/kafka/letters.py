"""One record on its way to Kafka, and what is said of it when it cannot get there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.core.outbox import Outbox
from gateway.core.record import TopicPartition
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed

DENIED = frozenset({29, 31})
OVERHEAD = 64  # bytes of a record beside its content, about

Headers = Sequence[tuple[str, bytes | None]]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: Mapping[Compression, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(slots=True, eq=False)
class Letter:
    """One record on its way. written: its offset, or why it has none."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    size: int
    written: asyncio.Future[int]
    timer: asyncio.TimerHandle | None = None


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """About. Raises TypeError or ValueError for what cannot be a record: met later, it would keep
    the batch that it came to be in from being sent."""
    size = OVERHEAD
    for name, content in (("", key), ("", value), *headers):
        if not isinstance(content, bytes | None):
            raise TypeError(f"{type(content).__name__} where a record has bytes; encode it")
        size += len(name.encode()) + len(content or b"") + 4
    return size


def encoded(outbox: Outbox[Letter], letters: Iterable[Letter], codec: int = 0) -> bytes:
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
    for index, letter in enumerate(letters):
        builder.append(index, letter.timestamp, letter.key, letter.value, list(letter.headers))
    return bytes(builder.build())


def refusal(tp: TopicPartition, code: int) -> KafkaError:
    if code in DENIED:
        return AccessDenied(
            f"the gateway may not write to {tp.topic}; allow it WRITE", topic=tp.topic
        )
    return PartitionFailed(
        f"{tp} refuses the record (code {code})", topic=tp.topic, partition=tp.partition, code=code
    )


def doubt(tp: TopicPartition, why: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"{tp} may have been written to, or not: {why}; repeat it with its idempotency key",
        timeout=True,
        retry_after=1.0,
    )
