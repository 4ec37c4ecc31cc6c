"""What a transactional writer says beside its records (KIP-98).

In versions before the flexible ones: every broker since 2.3 speaks them, and what later ones add
(members of groups, epochs that grow with every transaction) is not needed by whoever has a
transactional id to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch

from .codec import FieldReader, FieldWriter, group_by_topic, read_partition_errors
from .requests import KafkaRequest, VersionRange


class TransactionResponse(NamedTuple):
    """Kafka's code for all that was asked."""

    throttle_ms: int
    error: int


class PartitionErrorsResponse(NamedTuple):
    throttle_ms: int
    errors: dict[TopicPartition, int]


class TransactionalIdentity(NamedTuple):
    """Who writes."""

    transactional_id: str
    id_and_epoch: ProducerIdAndEpoch


@dataclass(slots=True)
class AddPartitionsToTxnRequest(KafkaRequest[PartitionErrorsResponse]):
    """AddPartitionsToTxn: what will be written to."""

    API_KEY = 24
    NAME = "AddPartitionsToTxn"
    VERSIONS = VersionRange(0, 2, 3)

    producer: TransactionalIdentity
    tps: Collection[TopicPartition]

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        _write_producer(out, self.producer)
        topics = group_by_topic(dict.fromkeys(self.tps))
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            out.array(len(partitions))
            for partition, _ in partitions:
                out.i32(partition)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> PartitionErrorsResponse:
        return _decode_partition_errors(data, pos)


@dataclass(slots=True)
class AddOffsetsToTxnRequest(KafkaRequest[TransactionResponse]):
    """AddOffsetsToTxn: the group whose offsets will be committed."""

    API_KEY = 25
    NAME = "AddOffsetsToTxn"
    VERSIONS = VersionRange(0, 2, 3)

    producer: TransactionalIdentity
    group: str

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        _write_producer(out, self.producer)
        out.string(self.group)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> TransactionResponse:
        read = FieldReader(data, pos, flexible=False)
        return TransactionResponse(read.i32(), read.i16())


@dataclass(slots=True)
class TxnOffsetCommitRequest(KafkaRequest[PartitionErrorsResponse]):
    """TxnOffsetCommit: to the group's coordinator; there with the transaction."""

    API_KEY = 28
    NAME = "TxnOffsetCommit"
    VERSIONS = VersionRange(0, 2, 3)

    producer: TransactionalIdentity
    group: str
    offsets: Mapping[TopicPartition, int]

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        out.string(self.producer.transactional_id)
        out.string(self.group)
        out.i64(self.producer.id_and_epoch.id)
        out.i16(self.producer.id_and_epoch.epoch)
        topics = group_by_topic(self.offsets)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            out.array(len(partitions))
            for partition, offset in partitions:
                out.i32(partition)
                out.i64(offset)
                if version >= 2:
                    out.i32(-1)  # the leader epoch is not known
                out.string("")
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> PartitionErrorsResponse:
        return _decode_partition_errors(data, pos)


@dataclass(slots=True)
class EndTxnRequest(KafkaRequest[TransactionResponse]):
    """EndTxn: all of it is there now, or nothing."""

    API_KEY = 26
    NAME = "EndTxn"
    VERSIONS = VersionRange(0, 2, 3)

    producer: TransactionalIdentity
    commit: bool

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        _write_producer(out, self.producer)
        out.i8(self.commit)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> TransactionResponse:
        read = FieldReader(data, pos, flexible=False)
        return TransactionResponse(read.i32(), read.i16())


def _write_producer(out: FieldWriter, producer: TransactionalIdentity) -> None:
    out.string(producer.transactional_id)
    out.i64(producer.id_and_epoch.id)
    out.i16(producer.id_and_epoch.epoch)


def _decode_partition_errors(data: bytes, pos: int) -> PartitionErrorsResponse:
    read = FieldReader(data, pos, flexible=False)
    return PartitionErrorsResponse(read.i32(), read_partition_errors(read))
