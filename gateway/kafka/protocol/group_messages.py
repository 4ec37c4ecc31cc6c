"""Define the requests of consumer groups, and the bytes that classic members exchange in them.

FindCoordinator, OffsetCommit and OffsetFetch work for both protocols of groups, down to Kafka 2.3;
ConsumerGroupHeartbeat is of the consumer protocol (KIP-848). From OffsetCommit 9 on the generation
may be a member epoch. From version 10 on it names topics by id, so that an offset of a deleted
topic is never taken for one of its successor.

Classic members exchange ConsumerProtocolSubscription 0 to 3 and ConsumerProtocolAssignment 0 to 3
of the `consumer` protocol type. The bytes are the same as those of Java's
CooperativeStickyAssignor, whose user data is the generation: a leader older than version 2
(KIP-792) looks for it there. librdkafka's user data also ends with it. Malformed bytes raise
ValueError, IndexError or struct.error.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from gateway.core.group.assignor import MemberSubscription
from gateway.core.group.consumer_member import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    TopicIdPartition,
)
from gateway.core.group.member import NO_GENERATION, GroupRequest, MemberIdentity
from gateway.core.log.record import TopicPartition

from .codec import FieldReader, FieldWriter, group_by_topic
from .requests import KafkaRequest, VersionRange

FIRST_TOPIC_ID_VERSION = 10  # from this version on OffsetCommit names topics by id
NO_MEMBER = MemberIdentity("", NO_GENERATION)  # who commits without being a member
GROUP_KEY_TYPE = 0  # FindCoordinator's type of a key that is a group id
_FIRST_BATCHED_VERSION = 4  # from this version on FindCoordinator has an array of keys
_FIRST_MULTI_GROUP_VERSION = 8  # from this version on OffsetFetch has an array of groups


class FindCoordinatorResponse(NamedTuple):
    """The coordinator of a group or another key; `node` is -1 if there is none now."""

    throttle_ms: int
    error: int
    message: str | None
    node: int
    host: str
    port: int


@dataclass(slots=True)
class FindCoordinatorRequest(KafkaRequest[FindCoordinatorResponse]):
    API_KEY = 10
    NAME = "FindCoordinator"
    VERSIONS = VersionRange(1, 6, 3)

    key: str
    key_type: int = GROUP_KEY_TYPE

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        if version < _FIRST_BATCHED_VERSION:
            out.string(self.key)
        out.i8(self.key_type)
        if version >= _FIRST_BATCHED_VERSION:
            out.array(1)
            out.string(self.key)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> FindCoordinatorResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle = read.i32()
        if version < _FIRST_BATCHED_VERSION:
            error, message = read.i16(), read.string()
            node, host, port = read.i32(), read.string() or "", read.i32()
            return FindCoordinatorResponse(throttle, error, message, node, host, port)
        if read.array() != 1:
            raise ValueError("not the one coordinator that was asked for")
        read.string()  # key
        node, host, port = read.i32(), read.string() or "", read.i32()
        return FindCoordinatorResponse(throttle, read.i16(), read.string(), node, host, port)


@dataclass(slots=True)
class ConsumerGroupHeartbeatRequest(KafkaRequest[ConsumerHeartbeatResponse]):
    """Join, keep or leave a group of the consumer protocol (KIP-848)."""

    API_KEY = 68
    NAME = "ConsumerGroupHeartbeat"
    VERSIONS = VersionRange(0, 1, 0)

    request: ConsumerHeartbeatRequest

    def encode(self, version: int) -> bytes:
        heartbeat, out = self.request, FieldWriter(True)
        out.string(heartbeat.group)
        out.string(heartbeat.member_id)
        out.i32(heartbeat.epoch)
        out.string(heartbeat.instance_id)
        out.string(None)  # rack
        # From here on, null and -1 mean that nothing has changed since the last heartbeat.
        timeout = heartbeat.rebalance_timeout
        out.i32(-1 if timeout is None else int(timeout * 1000))
        _write_strings(out, heartbeat.topics)
        if version >= 1:
            # No regular expression: the gateway matches topic names itself, for both protocols.
            out.string(None)
        out.string(None)  # server assignor: the broker chooses
        self._write_owned(out, heartbeat.owned)
        out.tags()
        return bytes(out.data)

    @staticmethod
    def _write_owned(out: FieldWriter, owned: frozenset[TopicIdPartition] | None) -> None:
        if owned is None:
            out.array(-1)
            return
        topics: dict[UUID, list[int]] = {}
        for topic, partition in sorted(owned):
            topics.setdefault(topic, []).append(partition)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.uuid(topic)
            _write_ints(out, partitions)
            out.tags()

    def decode(self, version: int, data: bytes, pos: int) -> ConsumerHeartbeatResponse:
        read = FieldReader(data, pos, True)
        throttle, error, message = read.i32(), read.i16(), read.string()
        member_id, epoch, interval = read.string(), read.i32(), read.i32()
        assignment: dict[UUID, frozenset[int]] | None = None  # None: it has not changed
        if read.i8() >= 0:  # -1 marks a null structure
            assignment = {}
            for _ in range(read.array()):
                topic = read.uuid()
                partitions = frozenset(read.ints())
                read.tags()
                if topic is not None:
                    assignment[topic] = partitions
            read.tags()
        return ConsumerHeartbeatResponse(
            error, message, member_id, epoch, interval / 1000, assignment, throttle
        )


class OffsetAndMetadata(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it (-1 if unknown)."""

    offset: int
    epoch: int = -1
    metadata: str | None = ""


class OffsetCommitResponse(NamedTuple):
    throttle_ms: int
    errors: dict[TopicPartition, int]


@dataclass(slots=True)
class OffsetCommitRequest(KafkaRequest[OffsetCommitResponse]):
    """Commit offsets of a group.

    Attributes:
        identity: The member that commits. `NO_MEMBER` is for anyone else, and is only accepted
            while the group has no members.
        topic_ids: The id of each topic. If one is missing, the request names topics by name.
    """

    API_KEY = 8
    NAME = "OffsetCommit"
    VERSIONS = VersionRange(7, 10, 8)

    group: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    identity: MemberIdentity
    topic_ids: Mapping[str, UUID]

    def choose_version(self, versions: Mapping[int, tuple[int, int]]) -> int:
        """Return the highest version that both sides speak; below 10 without all topic ids."""
        # A dataclass with slots is another class than `super()` in its methods refers to.
        version = KafkaRequest.choose_version(self, versions)
        by_id = all(tp.topic in self.topic_ids for tp in self.offsets)
        return version if by_id else min(version, FIRST_TOPIC_ID_VERSION - 1)

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        out.string(self.group)
        out.i32(self.identity.epoch)
        out.string(self.identity.member_id)
        out.string(self.identity.instance_id)
        topics = group_by_topic(self.offsets)
        out.array(len(topics))
        for topic, partitions in topics.items():
            _write_topic(out, topic, self.topic_ids, version >= FIRST_TOPIC_ID_VERSION)
            out.array(len(partitions))
            for partition, committed in partitions:
                out.i32(partition)
                out.i64(committed.offset)
                out.i32(committed.epoch)
                out.string(committed.metadata)
                out.tags()
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> OffsetCommitResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        names = {id: name for name, id in self.topic_ids.items()}
        throttle, errors = read.i32(), dict[TopicPartition, int]()
        for _ in range(read.array()):
            topic = _read_topic(read, names, version >= FIRST_TOPIC_ID_VERSION)
            for _ in range(read.array()):
                partition, error = read.i32(), read.i16()
                errors[TopicPartition(topic, partition)] = error
                read.tags()
            read.tags()
        return OffsetCommitResponse(throttle, errors)


class OffsetFetchResponse(NamedTuple):
    throttle_ms: int
    error: int
    offsets: dict[TopicPartition, OffsetAndMetadata | int]


@dataclass(slots=True)
class OffsetFetchRequest(KafkaRequest[OffsetFetchResponse]):
    """Ask for the committed offsets of a group.

    If `require_stable`, one that an open transaction may change is an error (KIP-447).
    """

    API_KEY = 9
    NAME = "OffsetFetch"
    VERSIONS = VersionRange(5, 9, 6)

    group: str
    tps: Collection[TopicPartition] | None = None
    require_stable: bool = True

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        if version >= _FIRST_MULTI_GROUP_VERSION:
            out.array(1)
        out.string(self.group)
        if version >= 9:
            # Member id and epoch, which fence old members. Anyone may read, so none are sent.
            out.string(None)
            out.i32(NO_GENERATION)
        self._write_topics(out)
        if version >= _FIRST_MULTI_GROUP_VERSION:
            out.tags()
        if version >= 7:
            out.i8(self.require_stable)
        out.tags()
        return bytes(out.data)

    def _write_topics(self, out: FieldWriter) -> None:
        if self.tps is None:
            out.array(-1)
            return
        topics = group_by_topic(dict.fromkeys(self.tps))
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            _write_ints(out, [partition for partition, _ in partitions])
            out.tags()

    def decode(self, version: int, data: bytes, pos: int) -> OffsetFetchResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle, offsets = read.i32(), dict[TopicPartition, OffsetAndMetadata | int]()
        if version >= _FIRST_MULTI_GROUP_VERSION:
            if read.array() != 1:
                raise ValueError("not the one group that was asked for")
            read.string()  # group id
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                partition, committed = (
                    read.i32(),
                    OffsetAndMetadata(read.i64(), read.i32(), read.string()),
                )
                error = read.i16()
                read.tags()
                if error or committed.offset >= 0:  # -1: nothing is committed
                    offsets[TopicPartition(topic, partition)] = error or committed
            read.tags()
        return OffsetFetchResponse(throttle, read.i16(), offsets)


# The request of this module for each request that `gateway.core.group` decides to send.
REQUEST_CLASSES: Mapping[type[GroupRequest], type[KafkaRequest[Any]]] = {
    ConsumerHeartbeatRequest: ConsumerGroupHeartbeatRequest
}


def _write_strings(out: FieldWriter, values: Collection[str] | None) -> None:
    out.array(-1 if values is None else len(values))
    for value in values or ():
        out.string(value)


def _write_ints(out: FieldWriter, values: Collection[int]) -> None:
    out.array(len(values))
    for value in values:
        out.i32(value)


def _write_topic(out: FieldWriter, topic: str, ids: Mapping[str, UUID], by_id: bool) -> None:
    if by_id:
        out.uuid(ids[topic])
    else:
        out.string(topic)


def _read_topic(read: FieldReader, names: Mapping[UUID, str], by_id: bool) -> str:
    if not by_id:
        return read.string() or ""
    topic = read.uuid()
    return names.get(topic, "") if topic is not None else ""


SUBSCRIPTION_VERSION = 3
# All versions have the same fields, and readers of version 0 accept the later numbers.
ASSIGNMENT_VERSION = 3

_GENERATION_STRUCT = struct.Struct(">i")


def encode_subscription(
    subscription: MemberSubscription, version: int = SUBSCRIPTION_VERSION
) -> bytes:
    """Encode the subscription that a member sends when it joins. Its rack is left out."""
    out = FieldWriter(flexible=False)
    out.i16(version)
    out.array(len(subscription.topics))
    for topic in sorted(subscription.topics):
        out.string(topic)
    out.octets(_GENERATION_STRUCT.pack(subscription.generation))
    if version >= 1:
        _write_partitions(out, subscription.owned)
    if version >= 2:
        out.i32(subscription.generation)
    if version >= 3:
        out.string(None)  # rack
    return bytes(out.data)


def decode_subscription(member: str, data: bytes) -> MemberSubscription:
    """Decode a subscription of any version; later versions only append fields."""
    read = FieldReader(data, 0, flexible=False)
    version = read.i16()
    topics = frozenset(read.string() or "" for _ in range(read.array()))
    user_data = read.octets() or b""
    owned = _read_partitions(read) if version >= 1 else frozenset()
    generation = read.i32() if version >= 2 else -1
    if generation < 0:
        generation = _parse_generation(user_data)
    return MemberSubscription(member, topics, owned, generation)


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    out = FieldWriter(flexible=False)
    out.i16(ASSIGNMENT_VERSION)
    _write_partitions(out, tps)
    out.octets(None)  # user data
    return bytes(out.data)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Decode an assignment of any version.

    A broker sends no bytes to a member that the leader left out: it has no partitions.
    """
    if not data:
        return frozenset()
    read = FieldReader(data, 0, flexible=False)
    read.i16()  # version
    return _read_partitions(read)


def _parse_generation(user_data: bytes) -> int:
    """Return the generation in the user data of a sticky assignor, or -1.

    Java's user data is the generation alone; librdkafka's and aiokafka's have topics and partitions
    before it.
    """
    read = FieldReader(user_data, 0, flexible=False)
    try:
        if len(user_data) > _GENERATION_STRUCT.size:
            _read_partitions(read)
        return read.i32()
    except (ValueError, struct.error):
        return -1  # the user data of another assignor


def _write_partitions(out: FieldWriter, tps: Iterable[TopicPartition]) -> None:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(tps):
        topics.setdefault(topic, []).append(partition)
    out.array(len(topics))
    for topic, partitions in topics.items():
        out.string(topic)
        out.array(len(partitions))
        for partition in partitions:
            out.i32(partition)


def _read_partitions(read: FieldReader) -> frozenset[TopicPartition]:
    tps: set[TopicPartition] = set()
    for _ in range(read.array()):
        topic = read.string() or ""
        tps.update(TopicPartition(topic, partition) for partition in read.ints())
    return frozenset(tps)
