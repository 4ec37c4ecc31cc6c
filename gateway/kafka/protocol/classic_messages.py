"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the classic group protocol, Kafka 2.3 to 4.x."""

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
from .consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from .requests import KafkaRequest, VersionRange

PROTOCOL_TYPE = "consumer"  # the protocol type of members that share partitions


@dataclass(slots=True)
class JoinGroupRequest(KafkaRequest[JoinResponse]):
    """Into the group, or into its next generation. Held until all members have come."""

    API_KEY = 11
    NAME = "JoinGroup"
    VERSIONS = VersionRange(5, 9, 6)

    request: JoinRequest

    def encode(self, version: int) -> bytes:
        ask, out = self.request, FieldWriter(version >= self.VERSIONS.first_flexible)
        out.string(ask.group)
        out.i32(int(ask.session_timeout * 1000))
        out.i32(int(ask.rebalance_timeout * 1000))
        out.string(ask.identity.member_id)
        out.string(ask.identity.instance_id)
        out.string(PROTOCOL_TYPE)
        out.array(1)
        out.string(ASSIGNOR_NAME)
        out.octets(encode_subscription(ask.subscription))
        out.tags()
        if version >= 8:
            out.string(ask.reason or None)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> JoinResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle, error, generation = read.i32(), read.i16(), read.i32()
        if version >= 7:
            read.string()  # protocol type
        protocol, leader = read.string(), read.string() or ""
        assigned = version >= 9 and bool(read.i8())
        member = read.string() or ""
        claims = tuple(self._read_subscription(read) for _ in range(read.array()))
        return JoinResponse(throttle, error, generation, protocol, leader, member, claims, assigned)

    @staticmethod
    def _read_subscription(read: FieldReader) -> MemberSubscription:
        member = read.string() or ""
        read.string()  # instance id
        said = read.octets() or b""
        read.tags()
        try:
            return decode_subscription(member, said)
        except (ValueError, IndexError, struct.error):
            # One whose words nobody understands gets nothing; the others do.
            return MemberSubscription(member, frozenset())


@dataclass(slots=True)
class SyncGroupRequest(KafkaRequest[SyncResponse]):
    """What the leader gives out, or for the others: what it gave. Held until the leader spoke."""

    API_KEY = 14
    NAME = "SyncGroup"
    VERSIONS = VersionRange(3, 5, 4)

    request: SyncRequest

    def encode(self, version: int) -> bytes:
        ask, out = self.request, FieldWriter(version >= self.VERSIONS.first_flexible)
        _write_member(out, ask)
        if version >= 5:
            out.string(PROTOCOL_TYPE)
            out.string(ASSIGNOR_NAME)
        assignment = ask.assignment or {}
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
            read.string()  # its name
        return SyncResponse(throttle, error, decode_assignment(read.octets() or b""))


@dataclass(slots=True)
class ClassicHeartbeatRequest(KafkaRequest[HeartbeatResponse]):
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
    """Several members at once since version 3 (KIP-345); here one."""

    API_KEY = 13
    NAME = "LeaveGroup"
    VERSIONS = VersionRange(2, 5, 4)

    request: LeaveRequest

    def encode(self, version: int) -> bytes:
        ask, out = self.request, FieldWriter(version >= self.VERSIONS.first_flexible)
        out.string(ask.group)
        if version >= 3:
            out.array(1)
        out.string(ask.identity.member_id)
        if version >= 3:
            out.string(ask.identity.instance_id)
        if version >= 5:
            out.string(ask.reason or None)
        if version >= 3:
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> LeaveResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle, error = read.i32(), read.i16()
        if version >= 3:
            for _ in range(read.array()):
                read.string()
                read.string()
                error = read.i16() or error
                read.tags()
        return LeaveResponse(throttle, error)


def _write_member(out: FieldWriter, ask: MemberRequest) -> None:
    out.string(ask.group)
    out.i32(ask.identity.epoch)
    out.string(ask.identity.member_id)
    out.string(ask.identity.instance_id)


REQUEST_CLASSES: Mapping[type[GroupRequest], Callable[[Any], KafkaRequest[Any]]] = {
    JoinRequest: JoinGroupRequest,
    SyncRequest: SyncGroupRequest,
    HeartbeatRequest: ClassicHeartbeatRequest,
    LeaveRequest: LeaveGroupRequest,
}
