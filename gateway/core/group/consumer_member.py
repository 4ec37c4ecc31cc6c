"""A member of a group by KIP-848: the broker assigns, one heartbeat says and tells everything.

The heartbeat's answer names what is to be owned. What is not in it any more is given up first;
the next heartbeat acknowledges that by what it says is owned, and only then the broker hands it to
another. So a partition has two owners only while one of them has not heard that it is fenced.

A heartbeat without an answer may have been counted: the next one says everything, and the broker
takes the former epoch from who lost an answer. Fields that did not change are left out otherwise.

A member that is not let in for a reason that may pass (`PASSING`) owns nothing, and joins anew,
as seldom as `core/log/recovery` says for what is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple
from uuid import UUID

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff, Cause

from .member import (
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

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2  # epochs that say what is meant
MIN_RETRY_S = 0.1  # seconds until what failed is tried again, growing to
MAX_RETRY_S = 2.0

COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH = 25, 110
UNRELEASED_INSTANCE_ID = 111
GROUP_ID_NOT_FOUND = 69
# What ends a membership: it depends on what this process asks for, and on nothing else.
FATAL_ERRORS: Mapping[int, str] = {
    24: "its name is not valid",
    42: "the broker finds the request invalid",
    112: "the broker does not have the assignor",
}
# What others may change while this process goes on as it is.
RETRIABLE_ERRORS: Mapping[int, str] = {
    23: "the group's members speak another protocol",
    29: "the gateway may not describe one of its topics; grant it DESCRIBE",
    30: "the gateway may not read with it; grant it READ",
    # An older broker amid an upgrade, or a cluster whose feature group.version is 0 yet.
    35: "the broker does not speak its protocol in our version",
    GROUP_ID_NOT_FOUND: "it is of another type and cannot be changed now",
    81: "it has as many members as it may (the broker's group.consumer.max.size)",
    # Joining again takes nothing from the other one: it is UNRELEASED_INSTANCE_ID until that left.
    82: "another member took this one's instance id",
}

TopicIdPartition = tuple[UUID, int]  # a partition of a topic, and not of another with the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatRequest(GroupRequest):
    """ConsumerGroupHeartbeat. None: as last said. rebalance_timeout in seconds."""

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
    """`assignment` None: as last told. interval in seconds."""

    error: int
    message: str | None
    member_id: str | None
    epoch: int
    heartbeat_interval: float
    assignment: Mapping[UUID, frozenset[int]] | None
    throttle_ms: int = 0


@dataclass(slots=True)
class ConsumerMember:
    """See `Membership`. Times in seconds.

    member_id:         made by the client, for all of its life (KIP-1082).
    rebalance_timeout: within which what is revoked must be given up, or the broker fences us.
    interval:          the longest between heartbeats; the broker may ask for more of them.
    random:            draws from [0, 1): heartbeats of many members are spread by it.
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
    _acknowledged_owned: frozenset[TopicIdPartition] | None = (
        None  # what the broker knows to be owned
    )
    _needs_full_heartbeat: bool = True
    _in_flight: ConsumerHeartbeatRequest | None = None
    _has_sent_join: bool = False  # the broker may know the member
    _is_urgent: bool = False
    _failures: int = 0
    _is_refused: bool = False  # for a reason that may pass
    _refusal_backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._refusal_backoff = Backoff(MAX_RETRY_S, self.random)

    @property
    def state(self) -> MemberState:
        if self._final_state is not None:
            return self._final_state
        if self._is_refused:
            return MemberState.FAILED
        settled = (
            not self._revoking
            and self._acknowledged_owned == self._owned == self._target_assignment
        )
        return MemberState.RUNNING if self._epoch > 0 and settled else MemberState.REBALANCING

    @property
    def is_closed(self) -> bool:
        return self._final_state is not None

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self._to_topic_partitions(self._owned)

    @property
    def identity(self) -> MemberIdentity:
        epoch = self._epoch if self._epoch > 0 else -1
        return MemberIdentity(self.member_id, epoch, self.instance_id)

    @property
    def needed_topics(self) -> frozenset[str]:
        return frozenset(self._topics or ()) | {
            self._topic_names[topic] for topic, _ in self._owned
        }

    def subscribe(self, topics: Collection[str], now: float) -> None:
        before, self._topics = self._topics, tuple(sorted(topics))
        if self._is_refused and self._topics != before and self._in_flight is None:
            self.next_request_at = min(
                self.next_request_at, now
            )  # it may be one of the former topics that is denied
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
        whole = self._needs_full_heartbeat
        beat = ConsumerHeartbeatRequest(
            group=self.group,
            member_id=self.member_id,
            epoch=self._epoch,
            instance_id=self.instance_id,
            rebalance_timeout=self.rebalance_timeout if whole else None,
            topics=self._topics if whole or self._topics != self._acknowledged_topics else None,
            owned=self._owned if whole or self._owned != self._acknowledged_owned else None,
        )
        self._in_flight, self._has_sent_join, self._is_urgent, self.next_request_at = (
            beat,
            True,
            False,
            inf,
        )
        return beat

    def on_response(
        self, ask: GroupRequest, answer: GroupResponse, now: float
    ) -> Sequence[MemberEvent]:
        assert isinstance(ask, ConsumerHeartbeatRequest) and isinstance(
            answer, ConsumerHeartbeatResponse
        )
        if self._final_state is not None or self._in_flight is not ask:
            return ()
        self._in_flight = None
        if answer.error:
            return self._on_error(ask, answer, now)
        self._is_refused = False
        self._refusal_backoff.reset()
        self._failures, self._needs_full_heartbeat, self._epoch = 0, False, answer.epoch
        self.member_id = answer.member_id or self.member_id
        if ask.topics is not None:
            self._acknowledged_topics = ask.topics
        if ask.owned is not None:
            self._acknowledged_owned = ask.owned
        if answer.assignment is not None:
            self._target_assignment = frozenset(
                (t, p) for t, ps in answer.assignment.items() for p in ps
            )
        # Spread over a fifth: members that joined together do not beat together for ever.
        self.next_request_at = now + min(answer.heartbeat_interval, self.heartbeat_interval) * (
            0.8 + 0.2 * self.random()
        )
        return self._reconcile(now)

    def on_no_response(
        self, ask: GroupRequest, now: float, retry_after: float
    ) -> Sequence[MemberEvent]:
        if self._in_flight is ask:
            self._in_flight, self._needs_full_heartbeat = None, True
            self.next_request_at = now + max(retry_after, self._next_retry_delay())
        return ()

    def on_released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[MemberEvent]:
        gone = frozenset(p for p in self._revoking if self._to_topic_partition(p) in tps)
        self._revoking -= gone
        self._owned -= gone
        return self._reconcile(now)

    def heartbeat_soon(self, now: float) -> None:
        if self._topics is None or self._final_state is not None or self._is_refused:
            return
        if self._in_flight is not None:
            self._is_urgent = True
        else:
            self.next_request_at = min(self.next_request_at, now)

    def leave(self, now: float) -> ConsumerHeartbeatRequest | None:
        over, self._final_state, self.next_request_at = self._final_state, MemberState.LEFT, inf
        if not self._has_sent_join or over is not None:
            return None
        epoch = LEAVE_EPOCH if self.instance_id is None else LEAVE_STATIC_EPOCH
        return ConsumerHeartbeatRequest(
            group=self.group, member_id=self.member_id, epoch=epoch, instance_id=self.instance_id
        )

    def _reconcile(self, now: float) -> list[MemberEvent]:
        """From what is owned towards the target, one step: give up first, then take."""
        events: list[MemberEvent] = []
        if self._target_assignment is None or self._final_state is not None:
            return events
        events += self._revoke(self._owned - self._target_assignment - self._revoking)
        known = frozenset(p for p in self._target_assignment if p[0] in self._topic_names)
        self.has_unknown_topics = known != self._target_assignment
        added = known - self._owned
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

    def _revoke(self, gone: frozenset[TopicIdPartition]) -> list[MemberEvent]:
        """A topic that was deleted is nobody's: there is nothing to wait for or to commit."""
        events: list[MemberEvent] = []
        dead = frozenset(p for p in gone if not self._topic_exists(p[0]))
        if dead:
            self._owned -= dead
            events.append(PartitionsLost(self._to_topic_partitions(dead), "the topic was deleted"))
        if gone - dead:
            self._revoking |= gone - dead
            events.append(PartitionsRevoked(self._to_topic_partitions(gone - dead)))
        return events

    def _topic_exists(self, topic: UUID) -> bool:
        known = self._topics_by_name.get(self._topic_names[topic])
        return known is not None and known.id == topic

    def _on_error(
        self, beat: ConsumerHeartbeatRequest, answer: ConsumerHeartbeatResponse, now: float
    ) -> list[MemberEvent]:
        error = answer.error
        # A group whose members all expired is deleted; only who joins makes it again.
        deleted = error == GROUP_ID_NOT_FOUND and beat.epoch > JOIN_EPOCH
        if deleted or error in (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH):
            why = "fenced" if error == FENCED_MEMBER_EPOCH else "the coordinator forgot the member"
            events = self._lose_partitions(f"{why}: {answer.message or error}")
            # At once the first time; whoever is fenced again and again is not in a hurry.
            self.next_request_at = now if self._failures == 0 else now + self._next_retry_delay()
            self._failures += 1
            return events
        if error in FATAL_ERRORS:
            events = self._lose_partitions(FATAL_ERRORS[error])
            self._final_state, self.next_request_at = MemberState.FAILED, inf
            return [
                *events,
                MembershipFailed(error, answer.message or FATAL_ERRORS[error], is_final=True),
            ]
        if error in RETRIABLE_ERRORS:
            events = self._lose_partitions(RETRIABLE_ERRORS[error])
            self._is_refused = True
            self.next_request_at = now + self._refusal_backoff.next_delay(Cause.DENIED)
            return [
                *events,
                MembershipFailed(error, answer.message or RETRIABLE_ERRORS[error], is_final=False),
            ]
        self._needs_full_heartbeat, self.next_request_at = True, now + self._next_retry_delay()
        return [CoordinatorMoved()] if error in (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR) else []

    def _lose_partitions(self, reason: str) -> list[MemberEvent]:
        lost, self._owned, self._revoking = self._owned, frozenset(), frozenset()
        (
            self._epoch,
            self._needs_full_heartbeat,
            self._target_assignment,
            self._acknowledged_owned,
        ) = JOIN_EPOCH, True, None, None
        self.has_unknown_topics = False
        return [PartitionsLost(self._to_topic_partitions(lost), reason)] if lost else []

    def _next_retry_delay(self) -> float:
        self._failures += 1
        bound = min(MAX_RETRY_S, MIN_RETRY_S * 2.0 ** min(self._failures - 1, 8))
        return bound * (0.5 + 0.5 * self.random())

    def _to_topic_partition(self, place: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._topic_names[place[0]], place[1])

    def _to_topic_partitions(
        self, places: Collection[TopicIdPartition]
    ) -> frozenset[TopicPartition]:
        return frozenset(self._to_topic_partition(place) for place in places)
