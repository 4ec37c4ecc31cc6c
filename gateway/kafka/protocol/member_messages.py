"""Define the requests of group members, and the bytes that classic members exchange in them.

JoinGroup, SyncGroup, Heartbeat and LeaveGroup are the classic protocol, for brokers from Kafka 2.3
to 4.x; ConsumerGroupHeartbeat is the consumer protocol (KIP-848). `gateway.core.group` decides what
a member sends, with times in seconds; the requests here encode its decisions, with times in
milliseconds.

Classic members exchange ConsumerProtocolSubscription 0 to 3 and ConsumerProtocolAssignment 0 to 3
of the `consumer` protocol type. The bytes are the same as those of Java's
CooperativeStickyAssignor, whose user data is the generation: a leader older than version 2
(KIP-792) looks for it there. librdkafka's user data also ends with it. Malformed bytes raise
ValueError, IndexError or struct.error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.core.group.assignor import MemberSubscription
from gateway.core.group.consumer_member import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse
from gateway.core.group.member import (
    ASSIGNOR_NAME,
    GroupRequest,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    MemberRequest,
    SyncRequest,
    SyncResponse,
)
from gateway.core.log.record import TopicPartition

from .requests import Api, ErrorResponse, FieldReader, FieldWriter, KafkaRequest

PROTOCOL_TYPE = "consumer"  # the protocol type of groups that share out partitions
SUBSCRIPTION_VERSION = 3
# All versions have the same fields, and readers of version 0 accept the later numbers.
ASSIGNMENT_VERSION = 3

_GENERATION_STRUCT = struct.Struct(">i")


@dataclass(slots=True)
class ConsumerGroupHeartbeatRequest(KafkaRequest[ConsumerHeartbeatResponse]):
    """Join, keep or leave a group of the consumer protocol (KIP-848)."""

    API = Api(key=68, name="ConsumerGroupHeartbeat", lowest=0, highest=1, first_flexible=0)

    request: ConsumerHeartbeatRequest

    def write_body(self, out: FieldWriter, version: int) -> None:
        heartbeat = self.request
        out.string(heartbeat.group)
        out.string(heartbeat.member_id)
        out.i32(heartbeat.epoch)
        out.string(heartbeat.instance_id)
        out.string(None)  # rack
        # From here on, null and -1 mean that nothing has changed since the last heartbeat.
        timeout = heartbeat.rebalance_timeout
        out.i32(-1 if timeout is None else int(timeout * 1000))
        out.strings(heartbeat.topics)
        if version >= 1:
            # No regular expression: the gateway matches topic names itself, for both protocols.
            out.string(None)
        out.string(None)  # server assignor: the broker chooses
        if heartbeat.owned is None:
            out.array(-1)
            return
        topics: dict[UUID, list[int]] = {}
        for topic, partition in sorted(heartbeat.owned):
            topics.setdefault(topic, []).append(partition)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.uuid(topic)
            out.ints(partitions)
            out.tags()

    def read_body(self, read: FieldReader, version: int) -> ConsumerHeartbeatResponse:
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


@dataclass(slots=True)
class JoinGroupRequest(KafkaRequest[JoinResponse]):
    """Join a group, or its next generation. The broker answers when all members have joined."""

    API = Api(key=11, name="JoinGroup", lowest=5, highest=9, first_flexible=6)

    request: JoinRequest

    def write_body(self, out: FieldWriter, version: int) -> None:
        join = self.request
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

    def read_body(self, read: FieldReader, version: int) -> JoinResponse:
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

    API = Api(key=14, name="SyncGroup", lowest=3, highest=5, first_flexible=4)

    request: SyncRequest

    def write_body(self, out: FieldWriter, version: int) -> None:
        sync = self.request
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

    def read_body(self, read: FieldReader, version: int) -> SyncResponse:
        throttle, error = read.i32(), read.i16()
        if version >= 5:
            read.string()  # protocol type
            read.string()  # protocol name
        return SyncResponse(throttle, error, decode_assignment(read.octets() or b""))


@dataclass(slots=True)
class ClassicHeartbeatRequest(KafkaRequest[ErrorResponse]):
    """Tell the coordinator that a member is alive; the answer says whether to join again."""

    API = Api(key=12, name="Heartbeat", lowest=3, highest=4, first_flexible=4)

    request: HeartbeatRequest

    def write_body(self, out: FieldWriter, version: int) -> None:
        _write_member(out, self.request)

    def read_body(self, read: FieldReader, version: int) -> ErrorResponse:
        return ErrorResponse(read.i32(), read.i16())


@dataclass(slots=True)
class LeaveGroupRequest(KafkaRequest[ErrorResponse]):
    """Leave a group. From version 3 on several members can leave at once (KIP-345); here one."""

    API = Api(key=13, name="LeaveGroup", lowest=2, highest=5, first_flexible=4)

    request: LeaveRequest

    def write_body(self, out: FieldWriter, version: int) -> None:
        leave = self.request
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

    def read_body(self, read: FieldReader, version: int) -> ErrorResponse:
        throttle, error = read.i32(), read.i16()
        if version >= 3:
            for _ in range(read.array()):
                read.string()  # member id
                read.string()  # instance id
                error = read.i16() or error
                read.tags()
        return ErrorResponse(throttle, error)


def _write_member(out: FieldWriter, request: MemberRequest) -> None:
    out.string(request.group)
    out.i32(request.identity.epoch)  # of a classic member this is its generation
    out.string(request.identity.member_id)
    out.string(request.identity.instance_id)


def encode_subscription(
    subscription: MemberSubscription, version: int = SUBSCRIPTION_VERSION
) -> bytes:
    """Encode the subscription that a member sends when it joins. Its rack is left out."""
    out = FieldWriter(flexible=False)
    out.i16(version)
    out.strings(sorted(subscription.topics))
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
    for _ in out.partitions(dict.fromkeys(sorted(tps))):
        pass  # a partition has no other fields


def _read_partitions(read: FieldReader) -> frozenset[TopicPartition]:
    return frozenset(read.partitions())


# The request of this module for each request that `gateway.core.group` decides to send.
REQUEST_CLASSES: Mapping[type[GroupRequest], Callable[[Any], KafkaRequest[Any]]] = {
    ConsumerHeartbeatRequest: ConsumerGroupHeartbeatRequest,
    JoinRequest: JoinGroupRequest,
    SyncRequest: SyncGroupRequest,
    HeartbeatRequest: ClassicHeartbeatRequest,
    LeaveRequest: LeaveGroupRequest,
}
