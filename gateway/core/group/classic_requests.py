"""What a member of a classic group asks its coordinator, and what it is told.

Plain data: `kafka/protocol/classic_messages` makes requests of it. The members' metadata and
assignments, which the broker only passes on, are there as what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

from .assignor import GroupAssignment, MemberSubscription
from .member import GroupRequest, MemberIdentity

ASSIGNOR_NAME = "cooperative-sticky"  # the name by which Java and librdkafka know it


class GroupErrorCode(IntEnum):
    """Kafka's errors that mean something of their own to a member."""

    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRequest(GroupRequest):
    identity: MemberIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(MemberRequest):
    """Timeouts in seconds. claim: what the leader is to know of this member."""

    session_timeout: float
    rebalance_timeout: float
    subscription: MemberSubscription
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest(MemberRequest):
    """assignment: everybody's, of the leader; None of all others."""

    assignment: GroupAssignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(MemberRequest):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest(MemberRequest):
    reason: str = ""


class JoinResponse(NamedTuple):
    """claims: of all members, told to the leader alone.

    assigned: the leader is to change nothing (KIP-814: a static one that came back).
    """

    throttle_ms: int
    error: int
    generation: int = -1
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    subscriptions: tuple[MemberSubscription, ...] = ()
    skip_assignment: bool = False


class SyncResponse(NamedTuple):
    throttle_ms: int
    error: int
    tps: frozenset[TopicPartition] = frozenset()


class HeartbeatResponse(NamedTuple):
    throttle_ms: int
    error: int


class LeaveResponse(NamedTuple):
    throttle_ms: int
    error: int


# What ends a membership, in words: nothing but another configuration of this process helps.
FATAL_ERRORS: Mapping[int, str] = {
    GroupErrorCode.INVALID_GROUP_ID: "the broker does not take this group's name",
    # Joining again would take it back from the other one, and fence that one in its turn.
    GroupErrorCode.FENCED_INSTANCE_ID: "another member has taken this instance id",
}
# What keeps a member out until others change it: members of the group, or who runs the brokers.
RETRIABLE_ERRORS: Mapping[int, str] = {
    GroupErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        f"the group's other members do not know the assignor {ASSIGNOR_NAME}; give them it as well, "
        "or take another group"
    ),
    GroupErrorCode.INVALID_SESSION_TIMEOUT: (
        "the session timeout is outside the broker's group.min.session.timeout.ms to "
        "group.max.session.timeout.ms"
    ),
    GroupErrorCode.GROUP_AUTHORIZATION_FAILED: "the gateway may not read with this group; grant it READ",
    GroupErrorCode.UNSUPPORTED_VERSION: "the broker does not know this kind of membership",
    GroupErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full (the broker's group.max.size)",
}
