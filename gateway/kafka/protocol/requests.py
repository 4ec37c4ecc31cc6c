"""Define Kafka requests of our own that aiokafka's connections can send.

aiokafka's own messages stop at Metadata v5 and Fetch v11 with leader epoch -1. They have no topic
ids and no epochs, so neither a recreated topic nor a truncated log can be noticed. The requests of
this package go up to Metadata v12, ListOffsets v7 and OffsetForLeaderEpoch v4, and down to the
versions of Kafka 2.3 and of librdkafka's mock cluster.

`AIOKafkaConnection.send` needs five things of a request: `prepare(versions)`, whose result has
`build_request_header`, `encode`, `parse_response_header` and `RESPONSE_TYPE.decode`. Only
`KafkaRequest` and `PreparedRequest` touch this internal interface of aiokafka, and
tests/kafka/protocol/test_requests.py fails when it changes.
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

from gateway.errors import BrokerTooOld

from .codec import FieldReader, FieldWriter, read_tags

R = TypeVar("R")

_PARTITION_STRUCT = struct.Struct(">hiii")  # error, index, leader, leader epoch

CONSUMER_REPLICA_ID = -1  # the replica id of a client that is not a replica
_OPERATIONS_NOT_REQUESTED = -(1 << 31)  # the value when the request did not ask (KIP-430)


class VersionRange(NamedTuple):
    """The versions that the gateway speaks; `first_flexible` (KIP-482) may be above `highest`."""

    lowest: int
    highest: int
    first_flexible: int


class KafkaRequest(ABC, Generic[R]):
    """One request of the protocol, in all versions that the gateway speaks.

    `R` is the type of its response. Callers create a request and hand it to `Connections.send`; the
    version is chosen for the broker when it is sent.
    """

    API_KEY: ClassVar[int]
    NAME: ClassVar[str]
    VERSIONS: ClassVar[VersionRange]

    @abstractmethod
    def encode(self, version: int) -> bytes: ...

    @abstractmethod
    def decode(self, version: int, data: bytes, pos: int) -> R:
        """Decode the body at `pos`; ValueError, IndexError or struct.error if it is malformed."""

    def choose_version(self, versions: Mapping[int, tuple[int, int]]) -> int:
        """Return the highest version that both sides speak, or raise BrokerTooOld."""
        low, high = versions.get(self.API_KEY, (0, -1))
        version = min(high, self.VERSIONS.highest)
        if version < max(low, self.VERSIONS.lowest):
            raise BrokerTooOld(
                f"the broker speaks {self.NAME} {low} to {high}, the gateway "
                f"{self.VERSIONS.lowest} to {self.VERSIONS.highest}; use Kafka 2.3 or later"
            )
        return version

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> PreparedRequest[R]:
        """Return the request in the version for a broker; aiokafka's connection calls this."""
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
    """A request in one version, with the methods that aiokafka's connection needs.

    `KafkaRequest.prepare` creates it, and aiokafka's connection keeps it until the response. To
    aiokafka it is both the RequestStruct and the type of the response.
    """

    request: KafkaRequest[R]
    version: int
    flexible: bool

    @property
    def RESPONSE_TYPE(self) -> PreparedRequest[R]:
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _EncodedHeader:
        name = client_id.encode()
        head = struct.pack(">hhih", self.request.API_KEY, self.version, correlation_id, len(name))
        # Also in a flexible header the client id is a string with a fixed length (KIP-482). The
        # zero byte says that there are no tagged fields.
        return _EncodedHeader(head + name + (b"\0" if self.flexible else b""))

    def encode(self) -> bytes:
        return self.request.encode(self.version)

    def parse_response_header(self, stream: BytesIO) -> _ResponseHeader:
        data = stream.getvalue()  # no copy: the stream still shares the bytes it was created with
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
    """A partition in a metadata response; leader and leader epoch are -1 if there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int


class TopicOperation(IntEnum):
    """Kafka's codes of operations on a topic, those that the gateway asks about (KIP-430)."""

    READ = 3
    WRITE = 4


class TopicMetadata(NamedTuple):
    """A topic in a metadata response.

    Attributes:
        topic_id: None for a broker before Kafka 2.8.
        authorized_operations: A bit for each operation that the gateway may do (KIP-430); None if
            the broker did not say.
    """

    name: str
    topic_id: UUID | None
    error: int
    partitions: dict[int, PartitionMetadata]
    authorized_operations: int | None = None

    def is_allowed(self, operation: TopicOperation) -> bool | None:
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
    """Ask any broker for topics, or for all (None). It never creates a topic."""

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
                out.uuid(None)  # the topic is asked for by name
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
        broker = BrokerMetadata(read.i32(), read.string() or "", read.i32(), read.string())
        read.tags()
        return broker

    def _read_topic(self, read: FieldReader, version: int) -> TopicMetadata:
        error, name = read.i16(), read.string() or ""
        topic_id = read.uuid() if version >= 10 else None
        read.i8()  # is_internal
        partitions = dict(self._read_partition(read) for _ in range(read.array()))
        operations = read.i32()
        read.tags()
        authorized = (
            operations
            if self.include_operations and operations != _OPERATIONS_NOT_REQUESTED
            else None
        )
        return TopicMetadata(name, topic_id, error, partitions, authorized)

    @staticmethod
    def _read_partition(read: FieldReader) -> tuple[int, PartitionMetadata]:
        error, index, leader, epoch = read.unpack(_PARTITION_STRUCT)
        replicas, isr = read.ints(), read.ints()
        read.ints()  # offline replicas
        read.tags()
        return index, PartitionMetadata(leader, epoch, replicas, isr, error)
