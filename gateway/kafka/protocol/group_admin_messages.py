"""Define ListGroups, DescribeGroups, ConsumerGroupDescribe, OffsetDelete and DeleteGroups."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition

from .codec import FieldReader, FieldWriter, read_partition_errors, write_partitions
from .group_messages import decode_assignment
from .requests import KafkaRequest, VersionRange


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


class DeleteResponse(NamedTuple):
    throttle_ms: int
    error: int
    errors: dict[TopicPartition, int]


@dataclass(slots=True)
class ListGroupsRequest(KafkaRequest[ListGroupsResponse]):
    API_KEY = 16
    NAME = "ListGroups"
    VERSIONS = VersionRange(2, 5, 3)

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        if version >= 4:
            out.array(0)  # in all states
        if version >= 5:
            out.array(0)  # of all types
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> ListGroupsResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
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

    API_KEY = 15
    NAME = "DescribeGroups"
    VERSIONS = VersionRange(3, 6, 5)

    group: str

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        out.array(1)
        out.string(self.group)
        out.i8(0)  # include_authorized_operations
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> GroupDescription:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
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


@dataclass(slots=True)
class ConsumerGroupDescribeRequest(KafkaRequest[GroupDescription]):
    API_KEY = 69
    NAME = "ConsumerGroupDescribe"
    VERSIONS = VersionRange(0, 1, 0)

    group: str

    def encode(self, version: int) -> bytes:
        out = FieldWriter(True)
        out.array(1)
        out.string(self.group)
        out.i8(0)  # include_authorized_operations
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> GroupDescription:
        read = FieldReader(data, pos, True)
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

    def _read_member(self, read: FieldReader, version: int) -> MemberDescription:
        member, instance = read.string() or "", read.string()
        read.string()  # rack
        read.i32()  # epoch
        client, host = read.string() or "", read.string() or ""
        for _ in range(read.array()):
            read.string()  # topics that it subscribes to
        read.string()  # the pattern of topics that it subscribes to
        owned = self._read_assignment(read)
        self._read_assignment(read)  # the target assignment, which it has not confirmed yet
        if version >= 1:
            read.i8()  # member type
        read.tags()
        return MemberDescription(member, instance, client, host, owned)

    @staticmethod
    def _read_assignment(read: FieldReader) -> frozenset[TopicPartition]:
        tps: set[TopicPartition] = set()
        for _ in range(read.array()):
            read.uuid()
            topic = read.string() or ""
            tps.update(TopicPartition(topic, partition) for partition in read.ints())
            read.tags()
        read.tags()
        return frozenset(tps)


@dataclass(slots=True)
class OffsetDeleteRequest(KafkaRequest[DeleteResponse]):
    API_KEY = 47
    NAME = "OffsetDelete"
    VERSIONS = VersionRange(0, 0, 1)

    group: str
    tps: Collection[TopicPartition]

    def encode(self, version: int) -> bytes:
        out = FieldWriter(False)
        out.string(self.group)
        for _ in write_partitions(out, dict.fromkeys(sorted(self.tps))):
            pass  # a partition has no other fields
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> DeleteResponse:
        read = FieldReader(data, pos, False)
        # Unlike in other responses, the error is before the throttle time.
        error, throttle = read.i16(), read.i32()
        return DeleteResponse(throttle, error, read_partition_errors(read))


@dataclass(slots=True)
class DeleteGroupsRequest(KafkaRequest[DeleteResponse]):
    """Delete a group without members, with all its committed offsets."""

    API_KEY = 42
    NAME = "DeleteGroups"
    VERSIONS = VersionRange(0, 2, 2)

    group: str

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        out.array(1)
        out.string(self.group)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> DeleteResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle = _read_single_group(read)
        read.string()  # group id
        return DeleteResponse(throttle, read.i16(), {})


def _read_single_group(read: FieldReader) -> int:
    """Return the throttle time in ms, and leave the reader at the only group."""
    throttle = read.i32()
    if read.array() != 1:
        raise ValueError("not the one group that was asked for")
    return throttle
