"""Define the requests to the coordinators of groups that need no member.

FindCoordinator, OffsetCommit and OffsetFetch work for both protocols of groups, down to Kafka 2.3.
From OffsetCommit 9 on the generation may be a member epoch. From version 10 on it names topics by
id, so that an offset of a deleted topic is never taken for one of its successor. The others list,
describe and delete groups.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from gateway.core.error_code import ErrorCode
from gateway.core.group.member import NO_GENERATION, MemberIdentity
from gateway.core.log.record import TopicPartition

from .member_messages import decode_assignment
from .requests import Api, ErrorResponse, FieldReader, FieldWriter, KafkaRequest, PartitionErrors

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
    API = Api(key=10, name="FindCoordinator", lowest=1, highest=6, first_flexible=3)

    key: str
    key_type: int = GROUP_KEY_TYPE

    def write_body(self, out: FieldWriter, version: int) -> None:
        if version < _FIRST_BATCHED_VERSION:
            out.string(self.key)
        out.i8(self.key_type)
        if version >= _FIRST_BATCHED_VERSION:
            out.array(1)
            out.string(self.key)

    def read_body(self, read: FieldReader, version: int) -> FindCoordinatorResponse:
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


class OffsetAndMetadata(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it (-1 if unknown)."""

    offset: int
    epoch: int = -1
    metadata: str | None = ""


@dataclass(slots=True)
class OffsetCommitRequest(KafkaRequest[PartitionErrors]):
    """Commit offsets of a group.

    Attributes:
        identity: The member that commits. `NO_MEMBER` is for anyone else, and is only accepted
            while the group has no members.
        topic_ids: The id of each topic. If one is missing, the request names topics by name.
    """

    API = Api(key=8, name="OffsetCommit", lowest=7, highest=10, first_flexible=8)

    group: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    identity: MemberIdentity
    topic_ids: Mapping[str, UUID]

    @property
    def highest_version(self) -> int:
        by_id = all(tp.topic in self.topic_ids for tp in self.offsets)
        return self.API.highest if by_id else FIRST_TOPIC_ID_VERSION - 1

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.string(self.group)
        out.i32(self.identity.epoch)
        out.string(self.identity.member_id)
        out.string(self.identity.instance_id)
        ids = self.topic_ids if version >= FIRST_TOPIC_ID_VERSION else None
        for committed in out.partitions(self.offsets, ids):
            out.i64(committed.offset)
            out.i32(committed.epoch)
            out.string(committed.metadata)

    def read_body(self, read: FieldReader, version: int) -> PartitionErrors:
        names = {id: name for name, id in self.topic_ids.items()}
        by_id = version >= FIRST_TOPIC_ID_VERSION
        return PartitionErrors(read.i32(), read.partition_errors(names if by_id else None))


class OffsetFetchResponse(NamedTuple):
    throttle_ms: int
    error: int
    offsets: dict[TopicPartition, OffsetAndMetadata | int]


@dataclass(slots=True)
class OffsetFetchRequest(KafkaRequest[OffsetFetchResponse]):
    """Ask for the committed offsets of a group.

    If `require_stable`, one that an open transaction may change is an error (KIP-447).
    """

    API = Api(key=9, name="OffsetFetch", lowest=5, highest=9, first_flexible=6)

    group: str
    tps: Collection[TopicPartition] | None = None
    require_stable: bool = True

    def write_body(self, out: FieldWriter, version: int) -> None:
        if version >= _FIRST_MULTI_GROUP_VERSION:
            out.array(1)
        out.string(self.group)
        if version >= 9:
            # Member id and epoch, which fence old members. Anyone may read, so none are sent.
            out.string(None)
            out.i32(NO_GENERATION)
        if self.tps is None:
            out.array(-1)
        else:
            for partitions in out.topics(dict.fromkeys(self.tps)):
                out.ints([partition for partition, _ in partitions])
        if version >= _FIRST_MULTI_GROUP_VERSION:
            out.tags()
        if version >= 7:
            out.i8(self.require_stable)

    def read_body(self, read: FieldReader, version: int) -> OffsetFetchResponse:
        throttle, offsets = read.i32(), dict[TopicPartition, OffsetAndMetadata | int]()
        if version >= _FIRST_MULTI_GROUP_VERSION:
            if read.array() != 1:
                raise ValueError("not the one group that was asked for")
            read.string()  # group id
        for tp in read.partitions():
            committed = OffsetAndMetadata(read.i64(), read.i32(), read.string())
            error = read.i16()
            if error or committed.offset >= 0:  # -1: nothing is committed
                offsets[tp] = error or committed
        return OffsetFetchResponse(throttle, read.i16(), offsets)


class GroupListing(NamedTuple):
    """A group as its coordinator lists it: the state since Kafka 2.6, the type since 3.8."""

    name: str
    protocol: str
    state: str = ""
    type: str = ""


class ListGroupsResponse(NamedTuple):
    throttle_ms: int
    error: int
    groups: tuple[GroupListing, ...]


class MemberDescription(NamedTuple):
    """A member of a group; with KIP-848, `owned` are the partitions that it has confirmed."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    owned: frozenset[TopicPartition]


class GroupDescription(NamedTuple):
    """A group with its members, of either protocol (`type`)."""

    throttle_ms: int
    error: int
    message: str | None
    name: str
    type: str
    state: str
    assignor: str
    members: tuple[MemberDescription, ...]


@dataclass(slots=True)
class ListGroupsRequest(KafkaRequest[ListGroupsResponse]):
    API = Api(key=16, name="ListGroups", lowest=2, highest=5, first_flexible=3)

    def write_body(self, out: FieldWriter, version: int) -> None:
        if version >= 4:
            out.array(0)  # in all states
        if version >= 5:
            out.array(0)  # of all types

    def read_body(self, read: FieldReader, version: int) -> ListGroupsResponse:
        throttle, error, groups = read.i32(), read.i16(), []
        for _ in range(read.array()):
            name, protocol = read.string() or "", read.string() or ""
            state = read.string() or "" if version >= 4 else ""
            kind = read.string() or "" if version >= 5 else ""
            read.tags()
            groups.append(GroupListing(name, protocol, state, kind.lower()))
        return ListGroupsResponse(throttle, error, tuple(groups))


@dataclass(slots=True)
class DescribeGroupsRequest(KafkaRequest[GroupDescription]):
    """Describe one group of the classic protocol.

    Before version 6, a missing group is `Dead`; the response has GROUP_ID_NOT_FOUND then, too.
    """

    API = Api(key=15, name="DescribeGroups", lowest=3, highest=6, first_flexible=5)

    group: str

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.array(1)
        out.string(self.group)
        out.i8(0)  # include_authorized_operations

    def read_body(self, read: FieldReader, version: int) -> GroupDescription:
        throttle = _read_single_group(read)
        error = read.i16()
        message = read.string() if version >= 6 else None
        name, state = read.string() or "", read.string() or ""
        read.string()  # protocol type
        assignor = read.string() or ""
        members = tuple(self._read_member(read, version) for _ in range(read.array()))
        if state == "Dead" and not error:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        return GroupDescription(throttle, error, message, name, "classic", state, assignor, members)

    @staticmethod
    def _read_member(read: FieldReader, version: int) -> MemberDescription:
        member = read.string() or ""
        instance = read.string() if version >= 4 else None
        client, host = read.string() or "", read.string() or ""
        read.octets()  # its subscription
        assignment = read.octets() or b""
        read.tags()
        try:
            owned = decode_assignment(assignment)
        except (ValueError, IndexError, struct.error):
            owned = frozenset()  # of Kafka Connect, or another protocol that assigns no partitions
        return MemberDescription(member, instance, client, host, owned)


class ConsumerGroupDescribeRequest(DescribeGroupsRequest):
    """Describe one group of the consumer protocol."""

    API = Api(key=69, name="ConsumerGroupDescribe", lowest=0, highest=1, first_flexible=0)

    def read_body(self, read: FieldReader, version: int) -> GroupDescription:
        throttle = _read_single_group(read)
        error, message = read.i16(), read.string()
        name, state = read.string() or "", read.string() or ""
        read.i32()  # group epoch
        read.i32()  # assignment epoch
        assignor = read.string() or ""
        members = tuple(self._read_member(read, version) for _ in range(read.array()))
        return GroupDescription(
            throttle, error, message, name, "consumer", state, assignor, members
        )

    @staticmethod
    def _read_member(read: FieldReader, version: int) -> MemberDescription:
        member, instance = read.string() or "", read.string()
        read.string()  # rack
        read.i32()  # epoch
        client, host = read.string() or "", read.string() or ""
        for _ in range(read.array()):
            read.string()  # topics that it subscribes to
        read.string()  # the pattern of topics that it subscribes to
        owned = _read_topic_partitions(read)
        _read_topic_partitions(read)  # the target assignment, which it has not confirmed yet
        if version >= 1:
            read.i8()  # member type
        read.tags()
        return MemberDescription(member, instance, client, host, owned)


@dataclass(slots=True)
class OffsetDeleteRequest(KafkaRequest[PartitionErrors]):
    API = Api(key=47, name="OffsetDelete", lowest=0, highest=0, first_flexible=1)

    group: str
    tps: Collection[TopicPartition]

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.string(self.group)
        for _ in out.partitions(dict.fromkeys(sorted(self.tps))):
            pass  # a partition has no other fields

    def read_body(self, read: FieldReader, version: int) -> PartitionErrors:
        # Unlike in other responses, the error is before the throttle time.
        error, throttle = read.i16(), read.i32()
        return PartitionErrors(throttle, read.partition_errors(), error)


@dataclass(slots=True)
class DeleteGroupsRequest(KafkaRequest[ErrorResponse]):
    """Delete a group without members, with all its committed offsets."""

    API = Api(key=42, name="DeleteGroups", lowest=0, highest=2, first_flexible=2)

    group: str

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.array(1)
        out.string(self.group)

    def read_body(self, read: FieldReader, version: int) -> ErrorResponse:
        throttle = _read_single_group(read)
        read.string()  # group id
        return ErrorResponse(throttle, read.i16())


def _read_single_group(read: FieldReader) -> int:
    """Return the throttle time in ms, and leave the reader at the only group."""
    throttle = read.i32()
    if read.array() != 1:
        raise ValueError("not the one group that was asked for")
    return throttle


def _read_topic_partitions(read: FieldReader) -> frozenset[TopicPartition]:
    tps: set[TopicPartition] = set()
    for _ in range(read.array()):
        read.uuid()
        topic = read.string() or ""
        tps.update(TopicPartition(topic, partition) for partition in read.ints())
        read.tags()
    read.tags()
    return frozenset(tps)
