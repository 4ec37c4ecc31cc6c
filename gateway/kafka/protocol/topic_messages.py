"""Define the requests about topics and their logs.

Topics are created and their configs described, the ends of logs and of leader epochs looked up,
records deleted, and batches appended, also within transactions (KIP-98).

Produce is sent in version 7 only. Every broker since 2.1 speaks it, and the additions of later
versions (errors of single records, the new leader) are not needed here.

The requests of transactions are sent in versions before the flexible ones, which every broker since
2.3 speaks. Later versions add the members of groups and epochs that grow with every transaction; a
producer that is the only user of its transactional id needs neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch

from .group_messages import OffsetAndMetadata
from .requests import (
    CONSUMER_REPLICA_ID,
    Api,
    ErrorResponse,
    FieldReader,
    FieldWriter,
    KafkaRequest,
    PartitionErrors,
)

T = TypeVar("T")  # the answer for one partition

BROKER_DEFAULT = -1  # for the number of partitions or replicas: the broker's default (KIP-464)
MAX_REQUEST_BYTES = 90 << 20
"""Of all batches of a request. A broker closes the connection where one is larger than its
`socket.request.max.bytes`, by default 100 MiB, and no answer says why."""

_TOPIC_RESOURCE_TYPE = 2
_ACKS_ALL = -1  # the broker answers when all replicas in sync have the batches


class CreateTopicsResponse(NamedTuple):
    error: int
    message: str


@dataclass(slots=True)
class CreateTopicsRequest(KafkaRequest[CreateTopicsResponse]):
    API = Api(key=19, name="CreateTopics", lowest=2, highest=7, first_flexible=5)

    topic: str
    partitions: int = BROKER_DEFAULT
    replicas: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = 5000

    def write_body(self, out: FieldWriter, version: int) -> None:
        # Before version 4 the broker refuses -1 (KIP-464).
        without_defaults = version < 4
        out.array(1)
        out.string(self.topic)
        out.i32(1 if without_defaults and self.partitions == BROKER_DEFAULT else self.partitions)
        out.i16(1 if without_defaults and self.replicas == BROKER_DEFAULT else self.replicas)
        out.array(0)  # assignments
        out.array(len(self.configs))
        for name, value in self.configs.items():
            out.string(name)
            out.string(value)
            out.tags()
        out.tags()
        out.i32(self.timeout_ms)
        out.i8(0)  # validate only

    def read_body(self, read: FieldReader, version: int) -> CreateTopicsResponse:
        read.i32()  # throttle time
        response = CreateTopicsResponse(-1, "the broker's answer does not mention it")
        for _ in range(read.array()):
            read.string()  # name
            if version >= 7:
                read.uuid()
            response = CreateTopicsResponse(read.i16(), read.string() or "")
            if version < 5:
                continue
            read.i32()  # number of partitions
            read.i16()  # number of replicas
            for _ in range(read.array()):
                read.string()  # name of a config
                read.string()  # its value
                read.i8()  # read only
                read.i8()  # source
                read.i8()  # sensitive
                read.tags()
            read.tags()
        return response


class DescribeConfigsResponse(NamedTuple):
    """The configs of one topic; none without the permission DESCRIBE_CONFIGS."""

    throttle_ms: int
    error: int
    values: dict[str, str | None]


@dataclass(slots=True)
class DescribeConfigsRequest(KafkaRequest[DescribeConfigsResponse]):
    """Ask for configs of one topic, such as its cleanup policy; unset ones have their defaults."""

    API = Api(key=32, name="DescribeConfigs", lowest=1, highest=2, first_flexible=4)

    topic: str
    names: Sequence[str] | None

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.array(1)
        out.i8(_TOPIC_RESOURCE_TYPE)
        out.string(self.topic)
        out.array(-1 if self.names is None else len(self.names))
        for name in self.names or ():
            out.string(name)
        out.i8(0)  # no synonyms

    def read_body(self, read: FieldReader, version: int) -> DescribeConfigsResponse:
        throttle, error = read.i32(), 0
        values: dict[str, str | None] = {}
        for _ in range(read.array()):
            error = read.i16()
            read.string()  # error message
            read.i8()  # resource type
            read.string()  # resource name
            for _ in range(read.array()):
                name = read.string() or ""
                values[name] = read.string()
                read.i8()  # read only
                read.i8()  # source
                read.i8()  # sensitive
                for _ in range(read.array()):  # synonyms
                    read.string()
                    read.string()
                    read.i8()
        return DescribeConfigsResponse(throttle, error, values)


class LeaderQuery(NamedTuple):
    """A value to look up in the log of a partition; the leader refuses an epoch of another one."""

    value: int
    leader_epoch: int


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up.

    Attributes:
        offset: -1 if no record is as late as the requested time.
        timestamp: Of the record, in ms since 1970; -1 for an end of the log.
        epoch: The leader epoch of that record; -1 if it is not known.
    """

    offset: int
    timestamp: int
    epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch that is not above the requested one, and its end; -1 if there is none."""

    epoch: int
    end_offset: int


class LookupResponse(NamedTuple, Generic[T]):
    """The answer for each partition, or an error code."""

    throttle_ms: int
    answers: dict[TopicPartition, T | int]


@dataclass(slots=True)
class ListOffsetsRequest(KafkaRequest[LookupResponse[OffsetAndTimestamp]]):
    """Ask a leader for an end of its logs, or for the first offset at or after a time.

    The value of a query is -1 for the latest offset, -2 for the earliest, or a time in ms. With
    isolation level 1 (READ_COMMITTED), the latest offset is the last stable offset.
    """

    API = Api(key=2, name="ListOffsets", lowest=4, highest=7, first_flexible=6)

    queries: Mapping[TopicPartition, LeaderQuery]
    isolation_level: int = 1

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.i32(CONSUMER_REPLICA_ID)
        out.i8(self.isolation_level)
        for query in out.partitions(self.queries):
            out.i32(query.leader_epoch)
            out.i64(query.value)

    def read_body(self, read: FieldReader, version: int) -> LookupResponse[OffsetAndTimestamp]:
        throttle, answers = read.i32(), dict[TopicPartition, OffsetAndTimestamp | int]()
        for tp in read.partitions():
            error, timestamp, offset, epoch = read.i16(), read.i64(), read.i64(), read.i32()
            answers[tp] = error or OffsetAndTimestamp(offset, timestamp, epoch)
        return LookupResponse(throttle, answers)


@dataclass(slots=True)
class OffsetForLeaderEpochRequest(KafkaRequest[LookupResponse[EpochEnd]]):
    """Ask a leader where leader epochs ended in its logs (KIP-320)."""

    API = Api(key=23, name="OffsetForLeaderEpoch", lowest=2, highest=4, first_flexible=4)

    queries: Mapping[TopicPartition, LeaderQuery]

    def write_body(self, out: FieldWriter, version: int) -> None:
        if version >= 3:
            out.i32(CONSUMER_REPLICA_ID)
        for query in out.partitions(self.queries):
            out.i32(query.leader_epoch)
            out.i32(query.value)

    def read_body(self, read: FieldReader, version: int) -> LookupResponse[EpochEnd]:
        throttle, answers = read.i32(), dict[TopicPartition, EpochEnd | int]()
        for topic in read.topics():
            for _ in range(read.array()):
                # Unlike in ListOffsets, the error is before the partition.
                error, tp = read.i16(), TopicPartition(topic, read.i32())
                end = EpochEnd(read.i32(), read.i64())
                answers[tp] = error or end
                read.tags()
        return LookupResponse(throttle, answers)


class InitProducerIdResponse(NamedTuple):
    throttle_ms: int
    error: int
    producer: ProducerIdAndEpoch


class AppendResult(NamedTuple):
    """The fate of one batch.

    Attributes:
        offset: That of its first record, or -1 if it was not appended.
        record_errors: What is wrong with single records, by their index in the batch, if the broker
            says for which of them it refuses the batch (KIP-467).
    """

    error: int
    offset: int = -1
    record_errors: Mapping[int, str] = {}


class ProduceResponse(NamedTuple):
    throttle_ms: int
    partitions: dict[TopicPartition, AppendResult]


@dataclass(slots=True)
class InitProducerIdRequest(KafkaRequest[InitProducerIdResponse]):
    """Ask for a new producer id, or for that of a transactional id with a new epoch.

    With a transactional id, the producer that had it before is fenced, and the transaction that it
    left open is ended first. Kafka aborts an open transaction after `timeout_ms`.
    """

    API = Api(key=22, name="InitProducerId", lowest=0, highest=1, first_flexible=2)

    transactional_id: str | None = None
    timeout_ms: int = (1 << 31) - 1

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.string(self.transactional_id)
        out.i32(self.timeout_ms)

    def read_body(self, read: FieldReader, version: int) -> InitProducerIdResponse:
        throttle, error = read.i32(), read.i16()
        return InitProducerIdResponse(throttle, error, ProducerIdAndEpoch(read.i64(), read.i16()))


@dataclass(slots=True)
class ProduceRequest(KafkaRequest[ProduceResponse]):
    """Append one record batch each to partitions; the broker waits `timeout_ms` for replicas."""

    API = Api(key=0, name="Produce", lowest=7, highest=8, first_flexible=9)

    batches: Mapping[TopicPartition, bytes]
    timeout_ms: int
    transactional_id: str | None = None

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.string(self.transactional_id)
        out.i16(_ACKS_ALL)
        out.i32(self.timeout_ms)
        for batch in out.partitions(self.batches):
            out.i32(len(batch))
            out.data += batch

    def read_body(self, read: FieldReader, version: int) -> ProduceResponse:
        partitions: dict[TopicPartition, AppendResult] = {}
        for tp in read.partitions():
            error, offset = read.i16(), read.i64()
            read.i64()  # log append time
            read.i64()  # log start offset
            record_errors: dict[int, str] = {}
            if version >= 8:
                record_errors = {read.i32(): read.string() or "" for _ in range(read.array())}
                read.string()  # what is wrong with the batch
            partitions[tp] = AppendResult(error, offset, record_errors)
        return ProduceResponse(read.i32(), partitions)


class TransactionalIdentity(NamedTuple):
    """A transactional id, with the producer id and epoch that Kafka gave it."""

    transactional_id: str
    id_and_epoch: ProducerIdAndEpoch

    def write_to(self, out: FieldWriter) -> None:
        out.string(self.transactional_id)
        out.i64(self.id_and_epoch.id)
        out.i16(self.id_and_epoch.epoch)


@dataclass(slots=True)
class AddPartitionsToTxnRequest(KafkaRequest[PartitionErrors]):
    API = Api(key=24, name="AddPartitionsToTxn", lowest=0, highest=2, first_flexible=3)

    producer: TransactionalIdentity
    tps: Collection[TopicPartition]

    def write_body(self, out: FieldWriter, version: int) -> None:
        self.producer.write_to(out)
        for _ in out.partitions(dict.fromkeys(self.tps)):
            pass  # a partition has no other fields

    def read_body(self, read: FieldReader, version: int) -> PartitionErrors:
        return PartitionErrors(read.i32(), read.partition_errors())


@dataclass(slots=True)
class AddOffsetsToTxnRequest(KafkaRequest[ErrorResponse]):
    """Add the group to a transaction whose offsets it will commit."""

    API = Api(key=25, name="AddOffsetsToTxn", lowest=0, highest=2, first_flexible=3)

    producer: TransactionalIdentity
    group: str

    def write_body(self, out: FieldWriter, version: int) -> None:
        self.producer.write_to(out)
        out.string(self.group)

    def read_body(self, read: FieldReader, version: int) -> ErrorResponse:
        return ErrorResponse(read.i32(), read.i16())


@dataclass(slots=True)
class TxnOffsetCommitRequest(KafkaRequest[PartitionErrors]):
    """Commit offsets of a group within a transaction; sent to the coordinator of the group.

    They become the group's offsets when the transaction is committed.
    """

    API = Api(key=28, name="TxnOffsetCommit", lowest=0, highest=2, first_flexible=3)

    producer: TransactionalIdentity
    group: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.string(self.producer.transactional_id)
        out.string(self.group)
        out.i64(self.producer.id_and_epoch.id)
        out.i16(self.producer.id_and_epoch.epoch)
        for committed in out.partitions(self.offsets):
            out.i64(committed.offset)
            if version >= 2:
                out.i32(committed.epoch)
            out.string(committed.metadata)

    def read_body(self, read: FieldReader, version: int) -> PartitionErrors:
        return PartitionErrors(read.i32(), read.partition_errors())


@dataclass(slots=True)
class EndTxnRequest(KafkaRequest[ErrorResponse]):
    API = Api(key=26, name="EndTxn", lowest=0, highest=2, first_flexible=3)

    producer: TransactionalIdentity
    commit: bool

    def write_body(self, out: FieldWriter, version: int) -> None:
        self.producer.write_to(out)
        out.i8(self.commit)

    def read_body(self, read: FieldReader, version: int) -> ErrorResponse:
        return ErrorResponse(read.i32(), read.i16())
