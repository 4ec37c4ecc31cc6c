"""Define the requests of a member of a classic group, and the coordinator's answers.

Plain data: `gateway.kafka.protocol.member_messages` makes messages of it. The metadata and
assignments of members, which the broker only passes on, are decoded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition

from .assignor import GroupAssignment, MemberSubscription
from .member import GroupRequest, MemberIdentity

ASSIGNOR_NAME = "cooperative-sticky"  # the name by which Java and librdkafka know it


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRequest(GroupRequest):
    identity: MemberIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(MemberRequest):
    """JoinGroup, with times in seconds, and a reason for the broker's log (KIP-800)."""

    session_timeout: float
    rebalance_timeout: float
    subscription: MemberSubscription
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest(MemberRequest):
    """SyncGroup, with the assignment of all members if the sender is the leader."""

    assignment: GroupAssignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(MemberRequest): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest(MemberRequest):
    """LeaveGroup. The reason is for the broker's log (KIP-800)."""

    reason: str = ""


class JoinResponse(NamedTuple):
    """The answer to a JoinGroup. Only the leader gets subscriptions.

    With `skip_assignment` the leader is a static member that came back (KIP-814).
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


# Errors that end a membership: nothing but another configuration of this process helps.
FATAL_ERRORS: Mapping[int, str] = {
    ErrorCode.INVALID_GROUP_ID: "the broker does not accept this group's name",
}
FENCED_REASON = "another member has taken this instance id; this one waits until that has gone"
# Errors that keep a member out until other members of the group or the operators change something.
RETRIABLE_ERRORS: Mapping[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        f"the group's other members do not support the assignor {ASSIGNOR_NAME}; "
        "configure it there as well, or use another group"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "the session timeout is outside the broker's group.min.session.timeout.ms to "
        "group.max.session.timeout.ms"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "the gateway may not read with this group; grant it READ"
    ),
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not know this kind of membership",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full (the broker's group.max.size)",
}
