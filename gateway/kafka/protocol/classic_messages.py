"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the classic group protocol, Kafka 2.3 to 4.x."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.group.assignor import Claim
from gateway.core.group.classic_requests import (
    ASSIGNOR,
    HeartbeatAnswer,
    HeartbeatAsk,
    JoinAnswer,
    JoinAsk,
    LeaveAnswer,
    LeaveAsk,
    MemberAsk,
    SyncAnswer,
    SyncAsk,
)
from gateway.core.group.member import Ask

from .codec import Reader, Writer
from .consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from .requests import Request, Versions

CONSUMER = "consumer"  # the protocol type of members that share partitions


@dataclass(slots=True)
class JoinRequest(Request[JoinAnswer]):
    """Into the group, or into its next generation. Held until all members have come."""

    API = 11
    NAME = "JoinGroup"
    SPOKEN = Versions(5, 9, 6)

    ask: JoinAsk

    def encode(self, version: int) -> bytes:
        ask, out = self.ask, Writer(version >= self.SPOKEN.flexible)
        out.string(ask.group)
        out.i32(int(ask.session_timeout * 1000))
        out.i32(int(ask.rebalance_timeout * 1000))
        out.string(ask.identity.member_id)
        out.string(ask.identity.instance_id)
        out.string(CONSUMER)
        out.array(1)
        out.string(ASSIGNOR)
        out.octets(encode_subscription(ask.claim))
        out.tags()
        if version >= 8:
            out.string(ask.reason or None)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> JoinAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle, error, generation = read.i32(), read.i16(), read.i32()
        if version >= 7:
            read.string()  # protocol type
        protocol, leader = read.string(), read.string() or ""
        assigned = version >= 9 and bool(read.i8())
        member = read.string() or ""
        claims = tuple(self._claim(read) for _ in range(read.array()))
        return JoinAnswer(throttle, error, generation, protocol, leader, member, claims, assigned)

    @staticmethod
    def _claim(read: Reader) -> Claim:
        member = read.string() or ""
        read.string()  # instance id
        said = read.octets() or b""
        read.tags()
        try:
            return decode_subscription(member, said)
        except (ValueError, IndexError, struct.error):
            # One whose words nobody understands gets nothing; the others do.
            return Claim(member, frozenset())


@dataclass(slots=True)
class SyncRequest(Request[SyncAnswer]):
    """What the leader gives out, or for the others: what it gave. Held until the leader spoke."""

    API = 14
    NAME = "SyncGroup"
    SPOKEN = Versions(3, 5, 4)

    ask: SyncAsk

    def encode(self, version: int) -> bytes:
        ask, out = self.ask, Writer(version >= self.SPOKEN.flexible)
        _member(out, ask)
        if version >= 5:
            out.string(CONSUMER)
            out.string(ASSIGNOR)
        assignment = ask.assignment or {}
        out.array(len(assignment))
        for member, tps in assignment.items():
            out.string(member)
            out.octets(encode_assignment(tps))
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> SyncAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle, error = read.i32(), read.i16()
        if version >= 5:
            read.string()  # protocol type
            read.string()  # its name
        return SyncAnswer(throttle, error, decode_assignment(read.octets() or b""))


@dataclass(slots=True)
class HeartbeatRequest(Request[HeartbeatAnswer]):
    API = 12
    NAME = "Heartbeat"
    SPOKEN = Versions(3, 4, 4)

    ask: HeartbeatAsk

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        _member(out, self.ask)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> HeartbeatAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        return HeartbeatAnswer(read.i32(), read.i16())


@dataclass(slots=True)
class LeaveRequest(Request[LeaveAnswer]):
    """Several members at once since version 3 (KIP-345); here one."""

    API = 13
    NAME = "LeaveGroup"
    SPOKEN = Versions(2, 5, 4)

    ask: LeaveAsk

    def encode(self, version: int) -> bytes:
        ask, out = self.ask, Writer(version >= self.SPOKEN.flexible)
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

    def decode(self, version: int, data: bytes, pos: int) -> LeaveAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle, error = read.i32(), read.i16()
        if version >= 3:
            for _ in range(read.array()):
                read.string()
                read.string()
                error = read.i16() or error
                read.tags()
        return LeaveAnswer(throttle, error)


def _member(out: Writer, ask: MemberAsk) -> None:
    out.string(ask.group)
    out.i32(ask.identity.epoch)
    out.string(ask.identity.member_id)
    out.string(ask.identity.instance_id)


REQUESTS: Mapping[type[Ask], Callable[[Any], Request[Any]]] = {
    JoinAsk: JoinRequest,
    SyncAsk: SyncRequest,
    HeartbeatAsk: HeartbeatRequest,
    LeaveAsk: LeaveRequest,
}
