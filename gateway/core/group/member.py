"""Define what a member of a consumer group is, whichever protocol it speaks.

There are two protocols: KIP-848 (`consumer_member`) and the classic one with cooperative
rebalancing (`classic_member`, KIP-429). Sans-I/O: time is an argument, in seconds of any monotonic
clock. The shell is `gateway.kafka.group.group_member`. It keeps at most one request in flight, and
does this until the member is closed:

    wait until member.next_request_at, or until something about the member changed
    request = member.next_request(now)  # None: nothing after all
    events = member.on_response(request, response, now), or
             member.on_no_response(request, now, retry_after)
    act on the events, in order

A request is plain data, a subclass of `GroupRequest`. A message of `gateway.kafka.protocol` wraps
it and decodes the answer to a response of the core, whose `error` is Kafka's code. `REQUESTS` in
the module of a protocol's messages says which message carries which request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from gateway.core.log.record import TopicPartition

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
    """What a commit says about its member.

    Attributes:
        epoch: The generation of the group, or the member's epoch (KIP-848).
        instance_id: The `group.instance.id` of a static member; None for others.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None


class TopicInfo(NamedTuple):
    """What metadata says about a topic.

    Attributes:
        id: The topic id; None if the broker has none (before Kafka 2.8).
    """

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
    """An answer of the coordinator."""

    @property
    def error(self) -> int:
        """Return Kafka's error code; 0 for success."""


class PartitionsAssigned(NamedTuple):
    """These partitions are the member's from now on, and in `owned`."""

    tps: frozenset[TopicPartition]


class PartitionsRevoked(NamedTuple):
    """These partitions are to be given up.

    They are owned, and may be committed, until `on_released` is called, which must happen.
    """

    tps: frozenset[TopicPartition]


class PartitionsLost(NamedTuple):
    """These partitions are not the member's any more: nothing may be committed.

    Another member may have them already.
    """

    tps: frozenset[TopicPartition]
    reason: str


class CoordinatorMoved(NamedTuple):
    """The group has another coordinator, or it was not ready.

    It is to be looked up before the next request.
    """


class MembershipFailed(NamedTuple):
    """The coordinator does not let the member in, which owns nothing any more.

    Attributes:
        error: Kafka's error code.
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


class GroupMembership(Protocol):
    """One member of one group.

    Every method that takes `now` may change `next_request_at`. Methods return the events that the
    caller has to act on, in order. True between calls: at most one request is in flight, answers to
    any other are ignored, and what `owned` lists is owned by no other member, as far as this one
    can know.
    """

    @property
    def state(self) -> MemberState:
        """Return the present state."""

    @property
    def is_closed(self) -> bool:
        """Return whether nothing is requested any more: the member left, or failed for good."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Return what may be read and committed, including what is being revoked."""

    @property
    def identity(self) -> MemberIdentity:
        """Return what commits say about the member now."""

    @property
    def needed_topics(self) -> frozenset[str]:
        """Return the topics whose metadata the member needs; a leader needs those of all."""

    @property
    def has_unknown_topics(self) -> bool:
        """Return whether a topic is needed that metadata did not have: fetch it again."""

    @property
    def next_request_at(self) -> float:
        """Return when to call `next_request`; infinity while one is in flight or all is over."""

    def subscribe(self, topics: Collection[str], now: float) -> None:
        """Subscribe to these topics and no others; the coordinator is informed soon."""

    def on_metadata(self, topics: Mapping[str, TopicInfo], now: float) -> Sequence[MemberEvent]:
        """Take all that metadata knows of `needed_topics`, whenever some of it changed."""

    def next_request(self, now: float) -> GroupRequest | None:
        """Return what to send now, None for nothing (wait for `next_request_at` again)."""

    def on_response(
        self, request: GroupRequest, response: GroupResponse, now: float
    ) -> Sequence[MemberEvent]:
        """Take the answer to a request."""

    def on_no_response(
        self, request: GroupRequest, now: float, retry_after: float
    ) -> Sequence[MemberEvent]:
        """Record that no answer came: the coordinator may have received the request or not.

        Args:
            now: The current time in seconds.
            retry_after: The shortest delay before the next request, in seconds.
        """

    def on_released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[MemberEvent]:
        """Record that the work on revoked partitions is over, so that others may have them."""

    def heartbeat_soon(self, now: float) -> None:
        """Ask soon what has changed: a commit was refused as stale or fenced."""

    def leave(self, now: float) -> GroupRequest | None:
        """Leave the group, and return the last request to send; the state is LEFT after it.

        It is None if nothing needs to be sent, as for a static member of a classic group.
        """
