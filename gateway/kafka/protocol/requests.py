"""Requests of our own, for aiokafka's connections.

aiokafka's own messages stop at Metadata v5 and Fetch v11 with leader epoch -1: no topic
ids, no epochs, so neither a recreated topic nor a truncated log can be told. These go to
Metadata v12, ListOffsets v7 and OffsetForLeaderEpoch v4, and down to what Kafka 2.3 and
librdkafka's mock cluster speak.

`AIOKafkaConnection.send` wants five things of a request: `prepare(versions)`, whose result
has `build_request_header`, `encode`, `parse_response_header` and `RESPONSE_TYPE.decode`.
That is an internal interface of aiokafka; `Request` and `Frame` are all that touches it,
and tests/kafka/protocol/test_requests.py says when it changes.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO
from typing import ClassVar, Generic, NamedTuple, TypeVar
from uuid import UUID

from gateway.errors import KafkaError

from .codec import FieldReader, FieldWriter, read_tags

R = TypeVar("R")

_PARTITION_STRUCT = struct.Struct(">hiii")

CONSUMER_REPLICA_ID = -1  # replica id of one who is no replica
_OPERATIONS_NOT_REQUESTED = -(1 << 31)  # operations that nobody asked for (KIP-430)


class VersionRange(NamedTuple):
    lowest: int
    highest: int
    first_flexible: int  # from this one on


class KafkaRequest(ABC, Generic[R]):
    """One request of the protocol, in every version of it that we speak."""

    API_KEY: ClassVar[int]
    NAME: ClassVar[str]
    VERSIONS: ClassVar[VersionRange]

    @abstractmethod
    def encode(self, version: int) -> bytes:
        """The body, without header."""

    @abstractmethod
    def decode(self, version: int, data: bytes, pos: int) -> R:
        """The answer, whose body starts at `pos`. Raises on malformed bytes."""

    def choose_version(self, versions: Mapping[int, tuple[int, int]]) -> int:
        """The highest version that a broker with `versions` and we speak."""
        low, high = versions.get(self.API_KEY, (0, -1))
        version = min(high, self.VERSIONS.highest)
        if version < max(low, self.VERSIONS.lowest):
            raise KafkaError(
                f"the broker speaks {self.NAME} {low} to {high}, the gateway "
                f"{self.VERSIONS.lowest} to {self.VERSIONS.highest}; use Kafka 2.3 or later"
            )
        return version

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> PreparedRequest[R]:
        version = self.choose_version(versions)
        return PreparedRequest(self, version, version >= self.VERSIONS.first_flexible)


class _EncodedHeader(NamedTuple):
    data: bytes

    def encode(self) -> bytes:
        return self.data


class _ResponseHeader(NamedTuple):
    correlation_id: int


@dataclass(slots=True)
class PreparedRequest(Generic[R]):
    """A request in one version: what aiokafka's connection asks of a RequestStruct."""

    request: KafkaRequest[R]
    version: int
    flexible: bool

    @property
    def RESPONSE_TYPE(self) -> PreparedRequest[R]:
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _EncodedHeader:
        name = client_id.encode()
        head = struct.pack(">hhih", self.request.API_KEY, self.version, correlation_id, len(name))
        # The client id keeps its old form in the flexible header, KIP-482.
        return _EncodedHeader(head + name + (b"\0" if self.flexible else b""))

    def encode(self) -> bytes:
        return self.request.encode(self.version)

    def parse_response_header(self, stream: BytesIO) -> _ResponseHeader:
        data = stream.getvalue()  # no copy: the stream still shares the bytes it was made of
        (correlation_id,) = struct.unpack_from(">i", data)
        stream.seek(read_tags(data, 4)[1] if self.flexible else 4)
        return _ResponseHeader(correlation_id)

    def decode(self, stream: BytesIO) -> R:
        return self.request.decode(self.version, stream.getvalue(), stream.tell())


class BrokerMetadata(NamedTuple):
    node: int
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """`leader` -1: none. `leader_epoch` -1: not told. `error`: Kafka's code."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int


class TopicOperation(IntEnum):
    """Kafka's codes of what one may do with a topic; the others are of no use here."""

    READ = 3
    WRITE = 4


class TopicMetadata(NamedTuple):
    """`operations`: a bit for each code that is allowed (KIP-430); None where it is not told."""

    name: str
    topic_id: UUID | None
    error: int
    partitions: dict[int, PartitionMetadata]
    authorized_operations: int | None = None

    def is_allowed(self, operation: TopicOperation) -> bool | None:
        """Who asked, do that; None where the broker does not tell."""
        return (
            None
            if self.authorized_operations is None
            else bool(self.authorized_operations >> operation & 1)
        )


class MetadataResponse(NamedTuple):
    throttle_ms: int
    cluster_id: str | None
    brokers: tuple[BrokerMetadata, ...]
    topics: dict[str, TopicMetadata]


@dataclass(slots=True)
class MetadataRequest(KafkaRequest[MetadataResponse]):
    """Brokers, and the partitions of `topics`, None for all. Asking never creates a topic.

    rights: ask what we may do with them, too.
    """

    API_KEY = 3
    NAME = "Metadata"
    VERSIONS = VersionRange(8, 12, 9)

    topics: Sequence[str] | None
    include_operations: bool = False

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        out.array(-1 if self.topics is None else len(self.topics))
        for topic in self.topics or ():
            if version >= 10:
                out.uuid(None)
            out.string(topic)
            out.tags()
        out.i8(0)  # allow_auto_topic_creation
        if version <= 10:
            out.i8(0)  # include_cluster_authorized_operations
        out.i8(self.include_operations)  # include_topic_authorized_operations
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> MetadataResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle = read.i32()
        brokers = tuple(self._read_broker(read) for _ in range(read.array()))
        cluster = read.string()
        read.i32()  # controller
        topics = [self._read_topic(read, version) for _ in range(read.array())]
        return MetadataResponse(throttle, cluster, brokers, {topic.name: topic for topic in topics})

    @staticmethod
    def _read_broker(read: FieldReader) -> BrokerMetadata:
        answer = BrokerMetadata(read.i32(), read.string() or "", read.i32(), read.string())
        read.tags()
        return answer

    def _read_topic(self, read: FieldReader, version: int) -> TopicMetadata:
        error, name = read.i16(), read.string() or ""
        topic_id = read.uuid() if version >= 10 else None
        read.i8()  # is_internal
        partitions = dict(self._read_partition(read) for _ in range(read.array()))
        operations = read.i32()
        read.tags()
        told = (
            operations
            if self.include_operations and operations != _OPERATIONS_NOT_REQUESTED
            else None
        )
        return TopicMetadata(name, topic_id, error, partitions, told)

    @staticmethod
    def _read_partition(read: FieldReader) -> tuple[int, PartitionMetadata]:
        error, index, leader, epoch = read.unpack(_PARTITION_STRUCT)
        replicas, isr = read.ints(), read.ints()
        read.ints()  # offline replicas
        read.tags()
        return index, PartitionMetadata(leader, epoch, replicas, isr, error)
