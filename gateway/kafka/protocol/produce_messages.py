"""Define the requests of idempotent and of transactional producers (KIP-98).

Produce is sent in version 7 only. Every broker since 2.1 speaks it, and the additions of later
versions (errors of single records, the new leader) are not needed here.

The requests of transactions are sent in versions before the flexible ones, which every broker since
2.3 speaks. Later versions add the members of groups and epochs that grow with every transaction; a
producer that is the only user of its transactional id needs neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch

from .codec import FieldReader, FieldWriter, read_partition_errors, write_partitions
from .requests import KafkaRequest, VersionRange

MAX_REQUEST_BYTES = 90 << 20
"""Of all batches of a request. A broker closes the connection where one is larger than its
`socket.request.max.bytes`, by default 100 MiB, and no answer says why."""

_ACKS_ALL = -1  # the broker answers when all replicas in sync have the batches


class InitProducerIdResponse(NamedTuple):
    throttle_ms: int
    error: int
    producer: ProducerIdAndEpoch


class AppendResult(NamedTuple):
    """The fate of one batch; `offset` is that of its first record, or -1 if it was not appended."""

    error: int
    offset: int


class ProduceResponse(NamedTuple):
    throttle_ms: int
    partitions: dict[TopicPartition, AppendResult]


@dataclass(slots=True)
class InitProducerIdRequest(KafkaRequest[InitProducerIdResponse]):
    """Ask for a new producer id, or for that of a transactional id with a new epoch.

    With a transactional id, the producer that had it before is fenced, and the transaction that it
    left open is ended first. Kafka aborts an open transaction after `timeout_ms`.
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
    """Append one record batch each to partitions; the broker waits `timeout_ms` for replicas."""

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
        for batch in write_partitions(out, self.batches):
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
                read.i64()  # log append time
                read.i64()  # log start offset
        return ProduceResponse(read.i32(), partitions)


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
