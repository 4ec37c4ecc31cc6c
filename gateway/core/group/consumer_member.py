"""Be a member of a group by KIP-848: the broker assigns, and heartbeats carry everything.

The answer to a heartbeat names the partitions that the member shall own, its target assignment. It
gives up all others first. The next heartbeat acknowledges that by listing the owned partitions, and
only then does the broker assign the others to another member. So a partition has two owners only
while one of them has not heard yet that it is fenced.

    JOIN_EPOCH --answer--> epoch > 0, reconciling --target owned and acknowledged--> RUNNING
    RUNNING --new target: revoke, wait for `on_released`, assign, acknowledge--> RUNNING
    any --fenced, unknown or refused: all is lost--> JOIN_EPOCH

A heartbeat without an answer may have been processed. The next one therefore has all fields, and
the broker accepts the previous epoch from a member that missed an answer. Otherwise fields that did
not change are left out.

A member that is not let in for a reason that may go away (`RETRIABLE_ERRORS`) owns nothing, and
joins again as rarely as `gateway.core.log.recovery` says for denied access.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple
from uuid import UUID

from gateway.core.backoff import BackoffPolicy
from gateway.core.error_code import COORDINATOR_MOVED_ERRORS, ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff, Cause

from .member import (
    NO_GENERATION,
    CoordinatorMoved,
    GroupRequest,
    GroupResponse,
    MemberEvent,
    MemberIdentity,
    MembershipFailed,
    MemberState,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    TopicInfo,
)

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2  # KIP-848's epochs with a special meaning
MAX_RETRY_S = 2.0
RETRY_BACKOFF = BackoffPolicy(0.1, MAX_RETRY_S)

# Errors that end a membership: they depend on what this process asks for, and on nothing else.
FATAL_ERRORS: Mapping[int, str] = {
    ErrorCode.INVALID_GROUP_ID: "its name is not valid",
    ErrorCode.INVALID_REQUEST: "the broker finds the request invalid",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the broker does not have the assignor",
}
# Errors whose reason others may remove while this process goes on as it is.
RETRIABLE_ERRORS: Mapping[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group's members speak another protocol",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "the gateway may not describe one of its topics; grant it DESCRIBE"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the gateway may not read with it; grant it READ",
    # An older broker during an upgrade, or a cluster whose feature group.version is still 0.
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not speak its protocol in our version",
    ErrorCode.GROUP_ID_NOT_FOUND: "it is of another type and cannot be changed now",
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "it has as many members as it may (the broker's group.consumer.max.size)"
    ),
    # Joining again takes nothing from the other member: the answer is UNRELEASED_INSTANCE_ID until
    # that one has left.
    ErrorCode.FENCED_INSTANCE_ID: "another member took this one's instance id",
}

TopicIdPartition = tuple[UUID, int]  # a partition of a topic, and not of another with the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatRequest(GroupRequest):
    """ConsumerGroupHeartbeat. A field that is None is as last sent; times are in seconds."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rebalance_timeout: float | None = None
    topics: tuple[str, ...] | None = None
    owned: frozenset[TopicIdPartition] | None = None

    @property
    def is_full(self) -> bool:
        return self.rebalance_timeout is not None


class ConsumerHeartbeatResponse(NamedTuple):
    """The answer to a ConsumerGroupHeartbeat. An assignment that is None is as last answered."""

    error: int
    message: str | None
    member_id: str | None
    epoch: int
    heartbeat_interval: float
    assignment: Mapping[UUID, frozenset[int]] | None
    throttle_ms: int = 0


@dataclass(slots=True)
class ConsumerMember:
    """A member that speaks KIP-848.

    Invariants between calls:

    - `_revoking` is a part of `_owned`.
    - Nothing is added to `_owned` while something is being revoked.
    - Every topic id in `_owned` is in `_topic_names`, so that it can be named even after the topic
      is gone.
    - `_acknowledged_owned` is what the last answered heartbeat said is owned; None if the broker
      may not know.
    - If `_epoch` is JOIN_EPOCH, nothing is owned.

    Times are in seconds.

    Attributes:
        member_id: The id, made by the client for all of its life (KIP-1082).
        rebalance_timeout: Within which revoked partitions must be given up, or the broker fences
            the member.
        random: Draws a number from [0, 1), which spreads the heartbeats of many members.
        instance_id: The `group.instance.id` of a static member.
        heartbeat_interval: The longest time between heartbeats; the broker may ask for more.
    """

    group: str
    member_id: str
    rebalance_timeout: float
    random: Callable[[], float]
    instance_id: str | None = None
    heartbeat_interval: float = inf
    next_request_at: float = inf
    has_unknown_topics: bool = False
    _epoch: int = JOIN_EPOCH
    _final_state: MemberState | None = None
    _topics: tuple[str, ...] | None = None
    _acknowledged_topics: tuple[str, ...] | None = None
    _topics_by_name: Mapping[str, TopicInfo] = field(default_factory=dict)
    _topic_names: dict[UUID, str] = field(default_factory=dict)  # also of topics that are gone
    _target_assignment: frozenset[TopicIdPartition] | None = None
    _owned: frozenset[TopicIdPartition] = frozenset()
    _revoking: frozenset[TopicIdPartition] = frozenset()
    _acknowledged_owned: frozenset[TopicIdPartition] | None = None
    _needs_full_heartbeat: bool = True
    _in_flight: ConsumerHeartbeatRequest | None = None
    _has_sent_join: bool = False  # the broker may know the member
    _is_urgent: bool = False  # the next heartbeat follows at once when this one is answered
    _failures: int = 0  # in a row
    _is_refused: bool = False  # not let in, for a reason that may go away
    _refusal_backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._refusal_backoff = Backoff(MAX_RETRY_S, self.random)

    @property
    def state(self) -> MemberState:
        if self._final_state is not None:
            return self._final_state
        if self._is_refused:
            return MemberState.FAILED
        is_settled = (
            not self._revoking
            and self._acknowledged_owned == self._owned == self._target_assignment
        )
        return MemberState.RUNNING if self._epoch > 0 and is_settled else MemberState.REBALANCING

    @property
    def is_closed(self) -> bool:
        return self._final_state is not None

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self._to_topic_partitions(self._owned)

    @property
    def identity(self) -> MemberIdentity:
        epoch = self._epoch if self._epoch > 0 else NO_GENERATION
        return MemberIdentity(self.member_id, epoch, self.instance_id)

    @property
    def needed_topics(self) -> frozenset[str]:
        return frozenset(self._topics or ()) | {
            self._topic_names[topic] for topic, _ in self._owned
        }

    def subscribe(self, topics: Collection[str], now: float) -> None:
        former, self._topics = self._topics, tuple(sorted(topics))
        if self._is_refused and self._topics != former and self._in_flight is None:
            # It may have been one of the former topics for which the member was refused.
            self.next_request_at = min(self.next_request_at, now)
        self.heartbeat_soon(now)

    def on_metadata(self, topics: Mapping[str, TopicInfo], now: float) -> Sequence[MemberEvent]:
        self._topics_by_name = topics
        for name, topic in topics.items():
            if topic.id is not None:
                self._topic_names[topic.id] = name
        return self._reconcile(now)

    def next_request(self, now: float) -> ConsumerHeartbeatRequest | None:
        if (
            self._final_state is not None
            or self._topics is None
            or self._in_flight
            or now < self.next_request_at
        ):
            return None
        is_full = self._needs_full_heartbeat
        heartbeat = ConsumerHeartbeatRequest(
            group=self.group,
            member_id=self.member_id,
            epoch=self._epoch,
            instance_id=self.instance_id,
            rebalance_timeout=self.rebalance_timeout if is_full else None,
            topics=self._topics if is_full or self._topics != self._acknowledged_topics else None,
            owned=self._owned if is_full or self._owned != self._acknowledged_owned else None,
        )
        self._in_flight = heartbeat
        self._has_sent_join = True
        self._is_urgent = False
        self.next_request_at = inf
        return heartbeat

    def on_response(
        self, request: GroupRequest, response: GroupResponse, now: float
    ) -> Sequence[MemberEvent]:
        assert isinstance(request, ConsumerHeartbeatRequest) and isinstance(
            response, ConsumerHeartbeatResponse
        )
        if self._final_state is not None or self._in_flight is not request:
            return ()
        self._in_flight = None
        if response.error:
            return self._on_error(request, response, now)
        self._is_refused = False
        self._refusal_backoff.reset()
        self._failures, self._needs_full_heartbeat, self._epoch = 0, False, response.epoch
        self.member_id = response.member_id or self.member_id
        if request.topics is not None:
            self._acknowledged_topics = request.topics
        if request.owned is not None:
            self._acknowledged_owned = request.owned
        if response.assignment is not None:
            self._target_assignment = frozenset(
                (topic_id, partition)
                for topic_id, partitions in response.assignment.items()
                for partition in partitions
            )
        # Spread over a fifth, so that members that joined together drift apart.
        self.next_request_at = now + min(response.heartbeat_interval, self.heartbeat_interval) * (
            0.8 + 0.2 * self.random()
        )
        return self._reconcile(now)

    def on_no_response(
        self, request: GroupRequest, now: float, retry_after: float
    ) -> Sequence[MemberEvent]:
        """Record that no answer came: the next heartbeat has all fields."""
        if self._in_flight is request:
            self._in_flight, self._needs_full_heartbeat = None, True
            self.next_request_at = now + max(retry_after, self._next_retry_delay())
        return ()

    def on_released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[MemberEvent]:
        released = frozenset(
            partition for partition in self._revoking if self._to_topic_partition(partition) in tps
        )
        self._revoking -= released
        self._owned -= released
        return self._reconcile(now)

    def heartbeat_soon(self, now: float) -> None:
        if self._topics is None or self._final_state is not None or self._is_refused:
            return
        if self._in_flight is not None:
            self._is_urgent = True
        else:
            self.next_request_at = min(self.next_request_at, now)

    def leave(self, now: float) -> ConsumerHeartbeatRequest | None:
        """Leave the group; a static member with LEAVE_STATIC_EPOCH, which keeps its partitions."""
        final_state = self._final_state
        self._final_state = MemberState.LEFT
        self.next_request_at = inf
        if not self._has_sent_join or final_state is not None:
            return None
        epoch = LEAVE_EPOCH if self.instance_id is None else LEAVE_STATIC_EPOCH
        return ConsumerHeartbeatRequest(
            group=self.group, member_id=self.member_id, epoch=epoch, instance_id=self.instance_id
        )

    def _reconcile(self, now: float) -> list[MemberEvent]:
        """Go one step from the owned partitions towards the target: give up first, then take."""
        events: list[MemberEvent] = []
        if self._target_assignment is None or self._final_state is not None:
            return events
        events += self._revoke(self._owned - self._target_assignment - self._revoking)
        # Topics that metadata does not name yet wait for `on_metadata`.
        known_target = frozenset(
            partition for partition in self._target_assignment if partition[0] in self._topic_names
        )
        self.has_unknown_topics = known_target != self._target_assignment
        added = known_target - self._owned
        if added and not self._revoking:
            self._owned |= added
            events.append(PartitionsAssigned(self._to_topic_partitions(added)))
        if (
            self._is_urgent
            or self._owned != self._acknowledged_owned
            or self._topics != self._acknowledged_topics
        ):
            self.heartbeat_soon(now)
        return events

    def _revoke(self, excess: frozenset[TopicIdPartition]) -> list[MemberEvent]:
        """Give partitions up: through a release, or at once if their topic was deleted."""
        events: list[MemberEvent] = []
        deleted = frozenset(
            partition for partition in excess if not self._topic_exists(partition[0])
        )
        if deleted:
            self._owned -= deleted
            events.append(
                PartitionsLost(self._to_topic_partitions(deleted), "the topic was deleted")
            )
        if excess - deleted:
            self._revoking |= excess - deleted
            events.append(PartitionsRevoked(self._to_topic_partitions(excess - deleted)))
        return events

    def _topic_exists(self, topic_id: UUID) -> bool:
        topic = self._topics_by_name.get(self._topic_names[topic_id])
        return topic is not None and topic.id == topic_id

    def _on_error(
        self, heartbeat: ConsumerHeartbeatRequest, response: ConsumerHeartbeatResponse, now: float
    ) -> list[MemberEvent]:
        error = response.error
        # A group whose members have all expired is deleted; only joining creates it again.
        is_group_deleted = error == ErrorCode.GROUP_ID_NOT_FOUND and heartbeat.epoch > JOIN_EPOCH
        is_fenced = error == ErrorCode.FENCED_MEMBER_EPOCH
        if is_fenced or is_group_deleted or error == ErrorCode.UNKNOWN_MEMBER_ID:
            reason = "fenced" if is_fenced else "the coordinator forgot the member"
            events = self._lose_partitions(f"{reason}: {response.message or error}")
            # At once the first time, later with delays: a member that is fenced again and again
            # must not load the coordinator.
            is_first, delay = self._failures == 0, self._next_retry_delay()
            self.next_request_at = now if is_first else now + delay
            return events
        if error in FATAL_ERRORS:
            events = self._lose_partitions(FATAL_ERRORS[error])
            self._final_state, self.next_request_at = MemberState.FAILED, inf
            return [
                *events,
                MembershipFailed(error, response.message or FATAL_ERRORS[error], is_final=True),
            ]
        if error in RETRIABLE_ERRORS:
            events = self._lose_partitions(RETRIABLE_ERRORS[error])
            self._is_refused = True
            self.next_request_at = now + self._refusal_backoff.next_delay(Cause.DENIED)
            return [
                *events,
                MembershipFailed(
                    error, response.message or RETRIABLE_ERRORS[error], is_final=False
                ),
            ]
        self._needs_full_heartbeat, self.next_request_at = True, now + self._next_retry_delay()
        if error == ErrorCode.UNRELEASED_INSTANCE_ID:
            reason = "another member has this instance id; this one waits until that has gone"
            return [MembershipFailed(error, reason, is_final=False)]
        return [CoordinatorMoved()] if error in COORDINATOR_MOVED_ERRORS else []

    def _lose_partitions(self, reason: str) -> list[MemberEvent]:
        lost, self._owned, self._revoking = self._owned, frozenset(), frozenset()
        self._epoch = JOIN_EPOCH
        self._needs_full_heartbeat = True
        self._target_assignment = None
        self._acknowledged_owned = None
        self.has_unknown_topics = False
        return [PartitionsLost(self._to_topic_partitions(lost), reason)] if lost else []

    def _next_retry_delay(self) -> float:
        self._failures += 1
        return RETRY_BACKOFF.compute_delay(self._failures, self.random)

    def _to_topic_partition(self, partition: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._topic_names[partition[0]], partition[1])

    def _to_topic_partitions(
        self, partitions: Collection[TopicIdPartition]
    ) -> frozenset[TopicPartition]:
        return frozenset(self._to_topic_partition(partition) for partition in partitions)
