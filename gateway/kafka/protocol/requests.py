"""Define Kafka requests of our own, and read and write the fields of their messages.

aiokafka's own messages stop at Metadata v5 and Fetch v11 with leader epoch -1. They have no topic
ids and no epochs, so neither a recreated topic nor a truncated log can be noticed. The requests of
this package go up to Metadata v12, ListOffsets v7 and OffsetForLeaderEpoch v4, and down to the
versions of Kafka 2.3 and of librdkafka's mock cluster. `client.aiokafka_internals` sends them over
aiokafka's connections.

There are two dialects: the old one with lengths of a fixed size, and the flexible one of KIP-482
with unsigned varints, compact arrays and tagged fields. In the flexible one a length is sent plus
one, and 0 means null. `FieldWriter` and `FieldReader` are for rare messages: `fetch_messages` reads
and writes the partitions of the frequent Fetch by `struct`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Generic, NamedTuple, TypeVar
from uuid import UUID

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerTooOld, FormatError

R = TypeVar("R")
T = TypeVar("T")

ZERO_UUID = UUID(int=0)
# A broker closes the connection, which all requests share, when a string is longer.
MAX_STRING_BYTES = 32_767
CONSUMER_REPLICA_ID = -1  # the replica id of a client that is not a replica
_OPERATIONS_NOT_REQUESTED = -(1 << 31)  # the value when the request did not ask (KIP-430)

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PARTITION_STRUCT = struct.Struct(">hiii")  # error, index, leader, leader epoch


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint (KIP-482): 7 bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it; IndexError or ValueError for damage."""
    byte = data[pos]
    if byte < 0x80:  # most lengths and tags are a single byte
        return byte, pos + 1
    value, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos + 1
        shift += 7
        # Damaged bytes must not build an arbitrarily large int.
        if shift > 63:
            raise ValueError("a varint of more than nine bytes")


def read_tags(data: bytes, pos: int) -> tuple[dict[int, bytes], int]:
    """Return tagged fields (KIP-482) by tag, and the position after them."""
    tags: dict[int, bytes] = {}
    count, pos = read_uvarint(data, pos)
    for _ in range(count):
        tag, pos = read_uvarint(data, pos)
        size, pos = read_uvarint(data, pos)
        tags[tag] = data[pos : pos + size]
        pos += size
    return tags, pos


class FieldWriter:
    """Append fields to a message in one of the two dialects.

    A request creates one for its body. Its methods are named after the types of Kafka's protocol;
    None is null, and an array is its length (-1 for null) before its elements.
    """

    __slots__ = ("data", "flexible")

    def __init__(self, flexible: bool) -> None:
        self.data = bytearray()
        self.flexible = flexible

    def i8(self, value: int) -> None:
        self.data += _I8.pack(value)

    def i16(self, value: int) -> None:
        self.data += _I16.pack(value)

    def i32(self, value: int) -> None:
        self.data += _I32.pack(value)

    def i64(self, value: int) -> None:
        self.data += _I64.pack(value)

    def uuid(self, value: UUID | None) -> None:
        """Write a UUID; None is the zero UUID."""
        self.data += (value or ZERO_UUID).bytes

    def array(self, length: int) -> None:
        self.data += encode_uvarint(length + 1) if self.flexible else _I32.pack(length)

    def string(self, value: str | None) -> None:
        if value is None:
            self.data += b"\0" if self.flexible else _I16.pack(-1)
            return
        raw = value.encode()
        if len(raw) > MAX_STRING_BYTES:
            problem = f"a name of {len(raw)} bytes is too long for Kafka"
            raise FormatError(f"{problem}; correct the topic or the group")
        self.data += encode_uvarint(len(raw) + 1) if self.flexible else _I16.pack(len(raw))
        self.data += raw

    def octets(self, value: bytes | None) -> None:
        if value is None:
            self.data += b"\0" if self.flexible else _I32.pack(-1)
            return
        self.data += encode_uvarint(len(value) + 1) if self.flexible else _I32.pack(len(value))
        self.data += value

    def strings(self, values: Collection[str] | None) -> None:
        self.array(-1 if values is None else len(values))
        for value in values or ():
            self.string(value)

    def ints(self, values: Collection[int]) -> None:
        self.array(len(values))
        for value in values:
            self.i32(value)

    def topics(
        self, values: Mapping[TopicPartition, T], ids: Mapping[str, UUID] | None = None
    ) -> Iterator[list[tuple[int, T]]]:
        """Write an array of topics, by their names or, if given, by their ids.

        The partitions of each topic are yielded after its name was written: the body of the loop
        writes the topic's other fields.
        """
        topics: dict[str, list[tuple[int, T]]] = {}
        for (topic, partition), value in values.items():
            topics.setdefault(topic, []).append((partition, value))
        self.array(len(topics))
        for topic, partitions in topics.items():
            if ids is None:
                self.string(topic)
            else:
                self.uuid(ids[topic])
            yield partitions
            self.tags()

    def partitions(
        self, values: Mapping[TopicPartition, T], ids: Mapping[str, UUID] | None = None
    ) -> Iterator[T]:
        """Write an array of topics, each with an array of its partitions.

        The value of each partition is yielded after its number was written: the body of the loop
        writes the partition's other fields.
        """
        for partitions in self.topics(values, ids):
            self.array(len(partitions))
            for partition, value in partitions:
                self.i32(partition)
                yield value
                self.tags()

    def tags(self) -> None:
        """Write that there are no tagged fields, which a flexible structure ends with."""
        if self.flexible:
            self.data += b"\0"


class FieldReader:
    """Read the fields of a message in one of the two dialects.

    A request creates one for its response. Its methods are named after the types of Kafka's
    protocol, with None for null (0 as the length of a null array); all raise ValueError, IndexError
    or struct.error for malformed bytes.
    """

    __slots__ = ("data", "flexible", "pos")

    def __init__(self, data: bytes, pos: int, flexible: bool) -> None:
        self.data = data
        self.pos = pos
        self.flexible = flexible

    def i8(self) -> int:
        return self._read_fixed(_I8)

    def i16(self) -> int:
        return self._read_fixed(_I16)

    def i32(self) -> int:
        return self._read_fixed(_I32)

    def i64(self) -> int:
        return self._read_fixed(_I64)

    def uuid(self) -> UUID | None:
        """Read a UUID; None for the zero UUID, which brokers send where there is none."""
        raw = self._read_bytes(16)
        return UUID(bytes=raw) if any(raw) else None

    def array(self) -> int:
        length = self._read_compact_length() if self.flexible else self.i32()
        return max(length, 0)  # so that callers can loop over a null array

    def string(self) -> str | None:
        length = self._read_compact_length() if self.flexible else self.i16()
        return None if length < 0 else self._read_bytes(length).decode()

    def octets(self) -> bytes | None:
        length = self._read_compact_length() if self.flexible else self.i32()
        return None if length < 0 else self._read_bytes(length)

    def ints(self) -> tuple[int, ...]:
        count = self.array()
        if count * 4 > len(self.data) - self.pos:
            raise ValueError("an array longer than its message")
        return self.unpack(struct.Struct(f">{count}i"))

    def topics(self, names: Mapping[UUID, str] | None = None) -> Iterator[str]:
        """Read an array of topics; `names` are those of topics that are named by id.

        Each is yielded after its name was read: the body of the loop reads its other fields.
        """
        for _ in range(self.array()):
            if names is None:
                yield self.string() or ""
            else:
                topic_id = self.uuid()
                yield names.get(topic_id, "") if topic_id is not None else ""
            self.tags()

    def partitions(self, names: Mapping[UUID, str] | None = None) -> Iterator[TopicPartition]:
        """Read an array of topics, each with an array of its partitions.

        Each partition is yielded after its number was read: the body of the loop reads its other
        fields.
        """
        for topic in self.topics(names):
            for _ in range(self.array()):
                yield TopicPartition(topic, self.i32())
                self.tags()

    def partition_errors(
        self, names: Mapping[UUID, str] | None = None
    ) -> dict[TopicPartition, int]:
        return {tp: self.i16() for tp in self.partitions(names)}

    def unpack(self, kind: struct.Struct) -> tuple[int, ...]:
        """Read several fields of fixed size at once, in the layout of `kind`."""
        values = kind.unpack_from(self.data, self.pos)
        self.pos += kind.size
        return values

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields that a flexible structure ends with, as bytes by tag."""
        if not self.flexible:
            return {}
        tags, self.pos = read_tags(self.data, self.pos)
        return tags

    def _read_compact_length(self) -> int:
        value, self.pos = read_uvarint(self.data, self.pos)
        return value - 1

    def _read_fixed(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self.data, self.pos)
        self.pos += kind.size
        return int(value)

    def _read_bytes(self, size: int) -> bytes:
        end = self.pos + size
        # A slice beyond the end would be short without an error.
        if end > len(self.data):
            raise ValueError("a field longer than its message")
        raw = self.data[self.pos : end]
        self.pos = end
        return raw


class Api(NamedTuple):
    """An API of the protocol, and the versions of it that the gateway speaks.

    Attributes:
        first_flexible: The first version of KIP-482; it may be above `highest`.
    """

    key: int
    name: str
    lowest: int
    highest: int
    first_flexible: int


class KafkaRequest(ABC, Generic[R]):
    """One request of the protocol, in all versions that the gateway speaks.

    `R` is the type of its response. Callers create a request and hand it to `Connections.send`; the
    version is chosen for the broker when it is sent.
    """

    API: ClassVar[Api]

    @abstractmethod
    def write_body(self, out: FieldWriter, version: int) -> None:
        """Write the body, but for the tagged fields that a flexible one ends with."""

    @abstractmethod
    def read_body(self, read: FieldReader, version: int) -> R:
        """Read the body; ValueError, IndexError or struct.error if it is malformed."""

    @property
    def highest_version(self) -> int:
        """The highest version in which this request can be sent."""
        return self.API.highest

    def choose_version(self, versions: Mapping[int, tuple[int, int]]) -> int:
        """Return the highest version that both sides speak, or raise BrokerTooOld."""
        low, high = versions.get(self.API.key, (0, -1))
        version = min(high, self.highest_version)
        if version < max(low, self.API.lowest):
            raise BrokerTooOld(
                f"the broker speaks {self.API.name} {low} to {high}, the gateway "
                f"{self.API.lowest} to {self.API.highest}; use Kafka 2.3 or later"
            )
        return version

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.API.first_flexible)
        self.write_body(out, version)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> R:
        read = FieldReader(data, pos, version >= self.API.first_flexible)
        return self.read_body(read, version)


class ErrorResponse(NamedTuple):
    throttle_ms: int
    error: int


class PartitionErrors(NamedTuple):
    throttle_ms: int
    errors: dict[TopicPartition, int]
    error: int = 0  # of the whole request


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

    API = Api(key=3, name="Metadata", lowest=8, highest=12, first_flexible=9)

    topics: Sequence[str] | None
    include_operations: bool = False

    def write_body(self, out: FieldWriter, version: int) -> None:
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

    def read_body(self, read: FieldReader, version: int) -> MetadataResponse:
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
