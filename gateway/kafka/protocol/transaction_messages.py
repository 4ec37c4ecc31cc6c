"""Define the requests that a transactional producer sends beside its records (KIP-98).

They are sent in versions before the flexible ones, which every broker since 2.3 speaks. Later
versions add the members of groups and epochs that grow with every transaction; a producer that is
the only user of its transactional id needs neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch

from .codec import FieldReader, FieldWriter, read_partition_errors, write_partitions
from .requests import KafkaRequest, VersionRange


class TransactionResponse(NamedTuple):
    throttle_ms: int
    error: int


class PartitionErrorsResponse(NamedTuple):
    throttle_ms: int
    errors: dict[TopicPartition, int]


class TransactionalIdentity(NamedTuple):
    """A transactional id, with the producer id and epoch that Kafka gave it."""

    transactional_id: str
    id_and_epoch: ProducerIdAndEpoch


@dataclass(slots=True)
class AddPartitionsToTxnRequest(KafkaRequest[PartitionErrorsResponse]):
    API_KEY = 24
    NAME = "AddPartitionsToTxn"
    VERSIONS = VersionRange(0, 2, 3)

    producer: TransactionalIdentity
    tps: Collection[TopicPartition]

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        _write_producer(out, self.producer)
        for _ in write_partitions(out, dict.fromkeys(self.tps)):
            pass  # a partition has no other fields
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> PartitionErrorsResponse:
        return _decode_partition_errors(data, pos)


@dataclass(slots=True)
class AddOffsetsToTxnRequest(KafkaRequest[TransactionResponse]):
    """Add the group to a transaction whose offsets it will commit."""

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
    """Commit offsets of a group within a transaction; sent to the coordinator of the group.

    They become the group's offsets when the transaction is committed.
    """

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
        for offset in write_partitions(out, self.offsets):
            out.i64(offset)
            if version >= 2:
                out.i32(-1)  # the leader epoch is not known
            out.string("")  # metadata
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> PartitionErrorsResponse:
        return _decode_partition_errors(data, pos)


@dataclass(slots=True)
class EndTxnRequest(KafkaRequest[TransactionResponse]):
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
