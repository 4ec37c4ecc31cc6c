"""Define Produce and InitProducerId, the requests of an idempotent producer (KIP-98).

Produce is sent in version 7 only. Every broker since 2.1 speaks it, and what later versions add
(errors of single records, the new leader) is not needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch

from .codec import FieldReader, FieldWriter, write_partitions
from .requests import KafkaRequest, VersionRange

_ACKS_ALL = -1  # the broker answers when all replicas in sync have the batches


class InitProducerIdResponse(NamedTuple):
    """The producer id and epoch to write with, or Kafka's error code."""

    throttle_ms: int
    error: int
    producer: ProducerIdAndEpoch


class AppendResult(NamedTuple):
    """What happened to the batch of a partition.

    Attributes:
        error: Kafka's error code.
        offset: The offset of the first record of the batch; -1 if it was not appended.
    """

    error: int
    offset: int


class ProduceResponse(NamedTuple):
    """What happened to the batch of each partition."""

    throttle_ms: int
    partitions: dict[TopicPartition, AppendResult]


@dataclass(slots=True)
class InitProducerIdRequest(KafkaRequest[InitProducerIdResponse]):
    """Ask for a new producer id, or for that of a transactional id with a new epoch.

    With a transactional id, the producer that had it before is fenced, and the transaction that it
    left open is ended first.

    Attributes:
        transactional_id: The transactional id; None for an idempotent producer without
            transactions.
        timeout_ms: Milliseconds after which Kafka aborts an open transaction.
    """

    API_KEY = 22
    NAME = "InitProducerId"
    VERSIONS = VersionRange(0, 1, 2)

    transactional_id: str | None = None
    timeout_ms: int = (1 << 31) - 1

    def encode(self, version: int) -> bytes:
        """Encode the body of the request."""
        out = FieldWriter(flexible=False)
        out.string(self.transactional_id)
        out.i32(self.timeout_ms)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> InitProducerIdResponse:
        """Decode the body of the response."""
        read = FieldReader(data, pos, flexible=False)
        throttle, error = read.i32(), read.i16()
        return InitProducerIdResponse(throttle, error, ProducerIdAndEpoch(read.i64(), read.i16()))


@dataclass(slots=True)
class ProduceRequest(KafkaRequest[ProduceResponse]):
    """Append batches to partitions that one broker leads.

    Attributes:
        batches: One record batch for each partition, as bytes.
        timeout_ms: Milliseconds that the broker may wait for the replicas.
        transactional_id: The transactional id if the batches are part of a transaction.
    """

    API_KEY = 0
    NAME = "Produce"
    VERSIONS = VersionRange(7, 7, 9)

    batches: Mapping[TopicPartition, bytes]
    timeout_ms: int
    transactional_id: str | None = None

    def encode(self, version: int) -> bytes:
        """Encode the body of the request."""
        out = FieldWriter(flexible=False)
        out.string(self.transactional_id)
        out.i16(_ACKS_ALL)
        out.i32(self.timeout_ms)
        for batch in write_partitions(out, self.batches):
            out.i32(len(batch))
            out.data += batch
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> ProduceResponse:
        """Decode the body of the response."""
        read = FieldReader(data, pos, flexible=False)
        partitions: dict[TopicPartition, AppendResult] = {}
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                tp = TopicPartition(topic, read.i32())
                partitions[tp] = AppendResult(read.i16(), read.i64())
                read.i64()  # log append time
                read.i64()  # log start offset
        return ProduceResponse(read.i32(), partitions)
