"""Produce and InitProducerId: what an idempotent writer says (KIP-98).

Produce in version 7 alone: every broker since 2.1 speaks it, and what later ones add (words on
single records, the new leader) is not needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch

from .codec import FieldReader, FieldWriter, group_by_topic
from .requests import KafkaRequest, VersionRange

_ACKS_ALL = -1  # acks: of all replicas in sync


class InitProducerIdResponse(NamedTuple):
    throttle_ms: int
    error: int
    producer: ProducerIdAndEpoch


class AppendResult(NamedTuple):
    """Kafka's code, and the offset of the batch's first record (-1 where it was not appended)."""

    error: int
    offset: int


class ProduceResponse(NamedTuple):
    throttle_ms: int
    partitions: dict[TopicPartition, AppendResult]


@dataclass(slots=True)
class InitProducerIdRequest(KafkaRequest[InitProducerIdResponse]):
    """A producer id of one's own; with a transactional id that one's and a new epoch.

    Whoever had the transactional id is fenced, and what it left open is ended first.
    timeout: milliseconds after which Kafka ends a transaction itself.
    """

    API_KEY = 22
    NAME = "InitProducerId"
    VERSIONS = VersionRange(0, 1, 2)

    transactional_id: str | None = None
    timeout_ms: int = (1 << 31) - 1

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        out.string(self.transactional_id)
        out.i32(self.timeout_ms)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> InitProducerIdResponse:
        read = FieldReader(data, pos, flexible=False)
        throttle, error = read.i32(), read.i16()
        return InitProducerIdResponse(throttle, error, ProducerIdAndEpoch(read.i64(), read.i16()))


@dataclass(slots=True)
class ProduceRequest(KafkaRequest[ProduceResponse]):
    """One batch each of some partitions.

    timeout: milliseconds that the broker waits for its replicas.
    transactional_id: of batches that are part of a transaction.
    """

    API_KEY = 0
    NAME = "Produce"
    VERSIONS = VersionRange(7, 7, 9)

    batches: Mapping[TopicPartition, bytes]
    timeout_ms: int
    transactional_id: str | None = None

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        out.string(self.transactional_id)
        out.i16(_ACKS_ALL)
        out.i32(self.timeout_ms)
        topics = group_by_topic(self.batches)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            out.array(len(partitions))
            for partition, batch in partitions:
                out.i32(partition)
                out.i32(len(batch))
                out.data += batch
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> ProduceResponse:
        read = FieldReader(data, pos, flexible=False)
        partitions: dict[TopicPartition, AppendResult] = {}
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                tp = TopicPartition(topic, read.i32())
                partitions[tp] = AppendResult(read.i16(), read.i64())
                read.i64()  # when it was appended
                read.i64()  # the log start
        return ProduceResponse(read.i32(), partitions)
