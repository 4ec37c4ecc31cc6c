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

DENIED = frozenset({29, 31})
OVERHEAD = 64  # bytes of a record beside its content, about

Headers = Sequence[tuple[str, bytes | None]]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: Mapping[Compression, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


Results: TypeAlias = list[int | KafkaError]
"""Offsets (-1 where Kafka has it and does not say where), or why there is none."""


class Item(NamedTuple):
    """A record to be written. timestamp: milliseconds since 1970; None for now."""

    tp: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


class Parcel:
    """Records that are told of together, with one timer for all of them.

    told: given once each has its offset, or why it has none, in the order they were handed over.
    """

    __slots__ = ("_left", "_results", "_told", "began", "letters", "timer")

    def __init__(self, count: int, began: float, told: Callable[[Results], None]) -> None:
        self.letters: dict[TopicPartition, list[Letter]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.began = began  # seconds since 1970
        self._results: Results = [-1] * count
        self._left = count
        self._told = told

    def land(self, place: int, result: int | KafkaError) -> None:
        """One of them is known."""
        self._results[place] = result
        self._left -= 1
        if not self._left:
            if self.timer is not None:
                self.timer.cancel()
            self.letters.clear()  # or each would keep the other
            self._told(self._results)


@dataclass(slots=True, eq=False)
class Letter:
    """One record on its way; place: in its parcel."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    size: int
    parcel: Parcel
    place: int


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
