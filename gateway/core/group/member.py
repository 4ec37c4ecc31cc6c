"""Define a member of a consumer group, whichever protocol it speaks, and the classic requests.

There are two protocols: KIP-848 (`consumer_member`) and the classic one with cooperative
rebalancing (`classic_member`, KIP-429). Sans-I/O: time is an argument, in seconds of any monotonic
clock. The shell is `gateway.kafka.group.group_member`. It keeps at most one request in flight, and
does this until the member is closed:

    wait until member.next_request_at, or until something about the member changed
    request = member.next_request(now)  # None: nothing after all
    events = member.on_response(request, response, now), or
             member.on_no_response(request, now, retry_after)
    act on the events, in order

Both classes have the same methods. Each that takes `now` may change `next_request_at`, which is
infinity while a request is in flight or all is over, and returns the events that the caller has to
act on, in order. True between calls: at most one request is in flight, answers to any other are
ignored, and what `owned` lists, including revoked partitions, is owned by no other member, as far
as this one can know. Besides:

    needed_topics: the topics whose metadata goes to `on_metadata`; a leader needs those of all
    has_unknown_topics: a topic is needed that metadata did not have: fetch it again
    on_released(tps): the work on revoked partitions is over, so that others may have them
    heartbeat_soon(): ask soon what has changed, as a commit was refused as stale or fenced
    leave(): leave the group for good, and return the last request to send, if there is one
    is_closed: nothing is requested any more: the member left, or failed for good

A request is plain data, a subclass of `GroupRequest`. A message of `gateway.kafka.protocol` wraps
it and decodes the answer to a response of the core, whose `error` is Kafka's code.
`REQUEST_CLASSES` in the module of a protocol's messages says which message carries which request.
The metadata and assignments of members of classic groups, which the broker only passes on, are
decoded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition

from .assignor import GroupAssignment, MemberSubscription

NO_GENERATION = -1  # the generation of a process that is not a member; Kafka does not fence it


class MemberState(StrEnum):
    """The states of a member.

    - REBALANCING: it joins, gives partitions up, or has not acknowledged a new assignment yet.
    - RUNNING: it has what it was assigned, and the coordinator knows.
    - FAILED: the coordinator does not let it in. It may try again: see `MembershipFailed`.
    - LEFT: it left, and sends nothing any more.
    """

    REBALANCING = "rebalancing"
    RUNNING = "running"
    FAILED = "failed"
    LEFT = "left"


class MemberIdentity(NamedTuple):
    """The identity of a member in a commit; before KIP-848 the epoch is the generation."""

    member_id: str
    epoch: int
    instance_id: str | None = None


class TopicInfo(NamedTuple):
    id: UUID | None
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """One request to the coordinator of a group.

    Attributes:
        max_hold: Seconds for which the coordinator may hold the answer back (JoinGroup, SyncGroup).
            Such a request gets a connection of its own: Kafka answers the requests of one
            connection in order, so that others would have to wait.
    """

    group: str
    max_hold: float = 0.0


class GroupResponse(Protocol):
    @property
    def error(self) -> int: ...


class PartitionsAssigned(NamedTuple):
    tps: frozenset[TopicPartition]


class PartitionsRevoked(NamedTuple):
    """Partitions to be given up. They stay owned until `on_released`, which must be called."""

    tps: frozenset[TopicPartition]


class PartitionsLost(NamedTuple):
    """These partitions are not the member's any more: nothing may be committed."""

    tps: frozenset[TopicPartition]
    reason: str


class CoordinatorMoved(NamedTuple):
    """The group has another coordinator, to be looked up before the next request."""


class MembershipFailed(NamedTuple):
    """The coordinator does not let the member in, which owns nothing any more.

    Attributes:
        is_final: Nothing but another configuration of this process helps. Otherwise the member asks
            again, slowly, because the reason may go away without it: a permission is granted, or
            other members leave.
    """

    error: int
    reason: str
    is_final: bool


MemberEvent: TypeAlias = (
    PartitionsAssigned | PartitionsRevoked | PartitionsLost | CoordinatorMoved | MembershipFailed
)


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


# Errors that end a membership: nothing but another configuration of this process helps.
FATAL_ERRORS: Mapping[int, str] = {
    ErrorCode.INVALID_GROUP_ID: "the broker does not accept this group's name"
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
