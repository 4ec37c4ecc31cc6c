"""Define JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the classic group protocol.

They are for brokers from Kafka 2.3 to 4.x. `gateway.core.group` decides what a member sends, with
times in seconds; the requests here encode its decisions, with times in milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.group.assignor import MemberSubscription
from gateway.core.group.classic_requests import (
    ASSIGNOR_NAME,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    MemberRequest,
    SyncRequest,
    SyncResponse,
)
from gateway.core.group.member import GroupRequest

from .codec import FieldReader, FieldWriter
from .group_messages import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from .requests import KafkaRequest, VersionRange

PROTOCOL_TYPE = "consumer"  # the protocol type of groups that share out partitions


@dataclass(slots=True)
class JoinGroupRequest(KafkaRequest[JoinResponse]):
    """Join a group, or its next generation. The broker answers when all members have joined."""

    API_KEY = 11
    NAME = "JoinGroup"
    VERSIONS = VersionRange(5, 9, 6)

    request: JoinRequest

    def encode(self, version: int) -> bytes:
        join, out = self.request, FieldWriter(version >= self.VERSIONS.first_flexible)
        out.string(join.group)
        out.i32(int(join.session_timeout * 1000))
        out.i32(int(join.rebalance_timeout * 1000))
        out.string(join.identity.member_id)
        out.string(join.identity.instance_id)
        out.string(PROTOCOL_TYPE)
        out.array(1)  # one assignor, with the subscription as its metadata
        out.string(ASSIGNOR_NAME)
        out.octets(encode_subscription(join.subscription))
        out.tags()
        if version >= 8:
            out.string(join.reason or None)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> JoinResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle, error, generation = read.i32(), read.i16(), read.i32()
        if version >= 7:
            read.string()  # protocol type
        protocol, leader = read.string(), read.string() or ""
        skip_assignment = version >= 9 and bool(read.i8())  # KIP-814
        member = read.string() or ""
        # Only the leader is sent the subscriptions of the members.
        subscriptions = tuple(self._read_subscription(read) for _ in range(read.array()))
        return JoinResponse(
            throttle, error, generation, protocol, leader, member, subscriptions, skip_assignment
        )

    @staticmethod
    def _read_subscription(read: FieldReader) -> MemberSubscription:
        member = read.string() or ""
        read.string()  # instance id
        metadata = read.octets() or b""
        read.tags()
        try:
            return decode_subscription(member, metadata)
        except (ValueError, IndexError, struct.error):
            # A member whose subscription is malformed is assigned nothing; the others still are.
            return MemberSubscription(member, frozenset())


@dataclass(slots=True)
class SyncGroupRequest(KafkaRequest[SyncResponse]):
    """Ask for the member's assignment; the leader also sends the assignments of all members.

    The broker answers when the leader has sent them.
    """

    API_KEY = 14
    NAME = "SyncGroup"
    VERSIONS = VersionRange(3, 5, 4)

    request: SyncRequest

    def encode(self, version: int) -> bytes:
        sync, out = self.request, FieldWriter(version >= self.VERSIONS.first_flexible)
        _write_member(out, sync)
        if version >= 5:
            out.string(PROTOCOL_TYPE)
            out.string(ASSIGNOR_NAME)
        assignment = sync.assignment or {}
        out.array(len(assignment))
        for member, tps in assignment.items():
            out.string(member)
            out.octets(encode_assignment(tps))
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> SyncResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle, error = read.i32(), read.i16()
        if version >= 5:
            read.string()  # protocol type
            read.string()  # protocol name
        return SyncResponse(throttle, error, decode_assignment(read.octets() or b""))


@dataclass(slots=True)
class ClassicHeartbeatRequest(KafkaRequest[HeartbeatResponse]):
    """Tell the coordinator that a member is alive; the answer says whether to join again."""

    API_KEY = 12
    NAME = "Heartbeat"
    VERSIONS = VersionRange(3, 4, 4)

    request: HeartbeatRequest

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        _write_member(out, self.request)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> HeartbeatResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        return HeartbeatResponse(read.i32(), read.i16())


@dataclass(slots=True)
class LeaveGroupRequest(KafkaRequest[LeaveResponse]):
    """Leave a group. From version 3 on several members can leave at once (KIP-345); here one."""

    API_KEY = 13
    NAME = "LeaveGroup"
    VERSIONS = VersionRange(2, 5, 4)

    request: LeaveRequest

    def encode(self, version: int) -> bytes:
        leave, out = self.request, FieldWriter(version >= self.VERSIONS.first_flexible)
        out.string(leave.group)
        if version >= 3:
            out.array(1)
        out.string(leave.identity.member_id)
        if version >= 3:
            out.string(leave.identity.instance_id)
        if version >= 5:
            out.string(leave.reason or None)
        if version >= 3:
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> LeaveResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle, error = read.i32(), read.i16()
        if version >= 3:
            for _ in range(read.array()):
                read.string()  # member id
                read.string()  # instance id
                error = read.i16() or error
                read.tags()
        return LeaveResponse(throttle, error)


def _write_member(out: FieldWriter, request: MemberRequest) -> None:
    out.string(request.group)
    out.i32(request.identity.epoch)  # of a classic member this is its generation
    out.string(request.identity.member_id)
    out.string(request.identity.instance_id)


# The request of this module for each request that `gateway.core.group` decides to send.
REQUEST_CLASSES: Mapping[type[GroupRequest], Callable[[Any], KafkaRequest[Any]]] = {
    JoinRequest: JoinGroupRequest,
    SyncRequest: SyncGroupRequest,
    HeartbeatRequest: ClassicHeartbeatRequest,
    LeaveRequest: LeaveGroupRequest,
}
