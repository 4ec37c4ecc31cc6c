"""A member of a classic group with cooperative rebalancing (KIP-429): join, sync, heartbeat.

Whoever joins keeps reading what it has. The leader is told what everybody holds and gives out
what nobody else holds; a member that has to give something up does so, heartbeats meanwhile,
and joins again, so that the leader gives it out in the next generation. Only what moves pauses.

What is held is lost when the coordinator says that the member is unknown or of an earlier
generation, and after `session_timeout` without a word of the coordinator: it may have given
everything to others by then. It is lost as well when the member is not let in; where the reason may
pass (`PASSING`) it joins anew, as seldom as `core/log/recovery` says for what is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from uuid import UUID

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff, Cause

from .assignor import MemberSubscription, assign
from .classic_requests import (
    FATAL_ERRORS,
    RETRIABLE_ERRORS,
    GroupErrorCode,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
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

METADATA_WAIT_S = 2.0  # seconds that a leader waits for metadata of a topic that may not even exist
# Seconds to the first heartbeat after an assignment, then twice that, up to the interval: what is
# given up is free only when everybody has heard of the next round, which is near. A replacement's
# partitions were silent for 2.5-2.7 s without, 0.05-0.4 s with it (interval 3 s, 3 members).
FIRST_HEARTBEAT_S = 0.1
SUBSCRIPTION_CHANGED, TOPICS_CHANGED = "the subscription changed", "the topics changed"
_RETRY_BOUNDS_S = (0.1, 2.0)  # seconds, the first and the longest until what failed is tried again
_COORDINATOR_ERRORS = (GroupErrorCode.COORDINATOR_NOT_AVAILABLE, GroupErrorCode.NOT_COORDINATOR)


class _Phase(Enum):
    JOIN = "to join"
    SYNC = "to be told its assignment"
    MEMBER = "to heartbeat"


@dataclass(slots=True)
class ClassicMember:
    """See `Membership`. Times in seconds.

    random: draws from [0, 1): heartbeats and retries of many members are spread by it.
    """

    group: str
    session_timeout: float
    rebalance_timeout: float
    heartbeat_interval: float
    random: Callable[[], float]
    instance_id: str | None = None
    next_request_at: float = inf
    has_unknown_topics: bool = False
    owned: frozenset[TopicPartition] = frozenset()
    _phase: _Phase = _Phase.JOIN
    _final_state: MemberState | None = None
    _in_flight: GroupRequest | None = None
    _member_id: str = ""
    _generation: int = NO_GENERATION
    _owned_generation: int = NO_GENERATION  # the generation that gave what is owned
    _revoking: frozenset[TopicPartition] = frozenset()
    _topics: frozenset[str] | None = None
    _sent_topics: frozenset[str] | None = None  # the topics of the last join
    _join_reason: str = "joins"  # why it joins (again); empty: it does not
    _heartbeat_delay: float = inf  # seconds to the next heartbeat
    _last_response_at: float = -inf
    _is_leader: bool = False
    _missing_topics: frozenset[str] = frozenset()  # topics that were waited for in vain
    _keeps_assignment: bool = False  # the leader is to change nothing (KIP-814)
    _subscriptions: tuple[MemberSubscription, ...] = ()
    _partition_counts: dict[str, int] = field(default_factory=dict)
    _topic_ids: dict[str, UUID] = field(default_factory=dict)  # of topics, as last known
    _assigned_counts: dict[str, int] = field(default_factory=dict)
    _backoff: Backoff = field(init=False)
    _is_refused: bool = False  # for a reason that may pass
    # Of its own: a failure between two refusals must not make the next one the first.
    _refusal_backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(_RETRY_BOUNDS_S[1], self.random, min_delay=_RETRY_BOUNDS_S[0])
        self._refusal_backoff = Backoff(_RETRY_BOUNDS_S[1], self.random)

    @property
    def state(self) -> MemberState:
        if self._final_state is not None:
            return self._final_state
        if self._is_refused:
            return MemberState.FAILED
        settled = self._phase is _Phase.MEMBER and not self._join_reason
        return MemberState.RUNNING if settled else MemberState.REBALANCING

    @property
    def is_closed(self) -> bool:
        return self._final_state is not None

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(self._member_id, self._generation, self.instance_id)

    @property
    def needed_topics(self) -> frozenset[str]:
        return (self._topics or frozenset()).union(*(claim.topics for claim in self._subscriptions))

    def subscribe(self, topics: Collection[str], now: float) -> None:
        self._topics = frozenset(topics)
        if self._topics != self._sent_topics:
            self._request_rejoin(SUBSCRIPTION_CHANGED, now)

    def on_metadata(self, topics: Mapping[str, TopicInfo], now: float) -> Sequence[MemberEvent]:
        self._partition_counts = {name: topic.partitions for name, topic in topics.items()}
        events = self._replace_topics(
            {name: topic.id for name, topic in topics.items() if topic.id}
        )
        if self._phase is _Phase.SYNC and self.has_unknown_topics:
            self._await_topics(now, self.next_request_at)
        elif (
            self._is_leader
            and self._phase is _Phase.MEMBER
            and self._needed_counts() != self._assigned_counts
        ):
            self._request_rejoin(TOPICS_CHANGED, now)
        if events:
            self._advance_phase(now)
        return events

    def _replace_topics(self, ids: Mapping[str, UUID]) -> list[MemberEvent]:
        """Lose the partitions of topics that were deleted and made anew, and take the new ones.

        The coordinator goes by names: it tells nobody, and the leader gives out the same again.
        """
        before, self._topic_ids = self._topic_ids, {**self._topic_ids, **ids}
        old = frozenset(
            tp
            for tp in self.owned
            if tp.topic in before and before[tp.topic] != self._topic_ids[tp.topic]
        )
        if not old:
            return []
        new = frozenset(
            tp for tp in old - self._revoking if tp.partition < self._partition_counts[tp.topic]
        )
        self.owned -= old - new
        self._revoking -= old
        lost = PartitionsLost(old, "the topic was deleted and made anew")
        return [lost, PartitionsAssigned(new)] if new else [lost]

    def next_request(self, now: float) -> GroupRequest | None:
        idle = self._in_flight is None and self._final_state is None
        if not idle or self._topics is None or now < self.next_request_at:
            return None
        self.next_request_at, self._in_flight = inf, self._build_request()
        return self._in_flight

    def on_response(
        self, ask: GroupRequest, answer: GroupResponse, now: float
    ) -> Sequence[MemberEvent]:
        if ask is not self._in_flight or self._final_state is not None:
            return ()
        self._in_flight = None
        if answer.error:
            return self._on_error(answer, now)
        self._last_response_at, self._is_refused = now, False
        self._backoff.reset()
        self._refusal_backoff.reset()
        if isinstance(answer, JoinResponse):
            self._on_join(answer, now)
            return ()
        events = self._on_sync(answer) if isinstance(answer, SyncResponse) else ()
        self.next_request_at = now + self._heartbeat_delay * (0.8 + 0.2 * self.random())
        self._heartbeat_delay = min(2 * self._heartbeat_delay, self.heartbeat_interval)
        self._advance_phase(now)
        return events

    def on_no_response(
        self, ask: GroupRequest, now: float, retry_after: float
    ) -> Sequence[MemberEvent]:
        if ask is not self._in_flight or self._final_state is not None:
            return ()
        self._in_flight = None
        events = self._expire_session(now)
        self.next_request_at = now + max(retry_after, self._backoff.next_delay(Cause.CONNECTION))
        return events

    def on_released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[MemberEvent]:
        gone = tps & self._revoking
        self.owned -= gone
        self._revoking -= gone
        self._advance_phase(now)
        return ()

    def heartbeat_soon(self, now: float) -> None:
        if self._phase is _Phase.MEMBER and self._in_flight is None and self._final_state is None:
            self.next_request_at = min(self.next_request_at, now)

    def leave(self, now: float) -> GroupRequest | None:
        """A static member does not say that it goes: it comes back within the session timeout to
        what it had, or the coordinator gives it to others then (KIP-345)."""
        over, self._final_state, self.next_request_at = self._final_state, MemberState.LEFT, inf
        self.owned = self._revoking = frozenset()
        if over is not None or not self._member_id or self.instance_id is not None:
            return None
        return LeaveRequest(
            group=self.group, identity=self.identity, reason="the consumer is closed"
        )

    def _build_request(self) -> GroupRequest:
        if self._phase is _Phase.JOIN:
            return self._build_join()
        if self._phase is _Phase.SYNC:
            return self._build_sync()
        return HeartbeatRequest(group=self.group, identity=self.identity)

    def _build_join(self) -> JoinRequest:
        topics = self._topics or frozenset()
        self._sent_topics = topics
        return JoinRequest(
            group=self.group,
            identity=self.identity,
            max_hold=self.rebalance_timeout,
            session_timeout=self.session_timeout,
            rebalance_timeout=self.rebalance_timeout,
            subscription=MemberSubscription(
                self._member_id, topics, self.owned, self._owned_generation
            ),
            reason=self._join_reason,
        )

    def _build_sync(self) -> SyncRequest:
        self._assigned_counts, self.has_unknown_topics = self._needed_counts(), False
        self._missing_topics = self.needed_topics - self._partition_counts.keys()
        plans = self._is_leader and not self._keeps_assignment
        return SyncRequest(
            group=self.group,
            identity=self.identity,
            max_hold=self.rebalance_timeout,
            assignment=assign(self._subscriptions, self._assigned_counts).current
            if plans
            else None,
        )

    def _on_join(self, answer: JoinResponse, now: float) -> None:
        self._member_id, self._generation = answer.member_id, answer.generation
        self._is_leader = answer.leader == answer.member_id
        self._subscriptions, self._keeps_assignment = answer.subscriptions, answer.skip_assignment
        self._phase = _Phase.SYNC
        self._await_topics(now, now + METADATA_WAIT_S)

    def _await_topics(self, now: float, deadline: float) -> None:
        """A leader gives out once it knows the topics, or has waited for them long enough."""
        missing = self.needed_topics - self._partition_counts.keys() - self._missing_topics
        self.has_unknown_topics = self._is_leader and bool(missing)
        self.next_request_at = deadline if self.has_unknown_topics else now

    def _on_sync(self, answer: SyncResponse) -> list[MemberEvent]:
        added, gone = answer.tps - self.owned, self.owned - answer.tps
        self._heartbeat_delay = min(FIRST_HEARTBEAT_S, self.heartbeat_interval)
        self.owned |= added
        self._phase, self._owned_generation, self._revoking, self._join_reason = (
            _Phase.MEMBER,
            self._generation,
            gone,
            "",
        )
        if gone:
            self._join_reason = "what was to be given up is given up"
        elif self._topics != self._sent_topics:
            self._join_reason = SUBSCRIPTION_CHANGED
        elif self._is_leader and self._needed_counts() != self._assigned_counts:
            self._join_reason = TOPICS_CHANGED
        events: list[MemberEvent] = [PartitionsAssigned(added)] if added else []
        return [*events, PartitionsRevoked(gone)] if gone else events

    def _on_error(self, answer: GroupResponse, now: float) -> list[MemberEvent]:
        error = answer.error
        if error in FATAL_ERRORS:
            events = self._lose_partitions(FATAL_ERRORS[error])
            self._final_state, self.next_request_at = MemberState.FAILED, inf
            return [*events, MembershipFailed(error, FATAL_ERRORS[error], is_final=True)]
        if error in RETRIABLE_ERRORS:
            events = self._lose_partitions(RETRIABLE_ERRORS[error])
            self._is_refused = True
            self.next_request_at = now + self._refusal_backoff.next_delay(Cause.DENIED)
            return [*events, MembershipFailed(error, RETRIABLE_ERRORS[error], is_final=False)]
        if error == GroupErrorCode.MEMBER_ID_REQUIRED and isinstance(answer, JoinResponse):
            self._member_id, self.next_request_at = answer.member_id, now
            return []
        if error == GroupErrorCode.REBALANCE_IN_PROGRESS and self._phase is not _Phase.JOIN:
            return self._on_rebalance(now)
        if error in (GroupErrorCode.UNKNOWN_MEMBER_ID, GroupErrorCode.ILLEGAL_GENERATION):
            return self._on_unknown_member(error, now)
        events = self._expire_session(now)
        self.next_request_at = now + self._backoff.next_delay(Cause.CONNECTION)
        return [*events, CoordinatorMoved()] if error in _COORDINATOR_ERRORS else events

    def _on_rebalance(self, now: float) -> list[MemberEvent]:
        """The group rebalances. What is being given up is given up first, with heartbeats."""
        self._last_response_at = now
        self._backoff.reset()
        self.next_request_at = now + self.heartbeat_interval
        if self._phase is _Phase.SYNC:
            self._phase = _Phase.MEMBER
        self._join_reason = self._join_reason or "the group rebalances"
        self._advance_phase(now)
        return []

    def _on_unknown_member(self, error: int, now: float) -> list[MemberEvent]:
        again = self._owned_generation == NO_GENERATION and self._generation == NO_GENERATION
        why = "the coordinator does not know the member"
        if error == GroupErrorCode.ILLEGAL_GENERATION:
            why = "the group went on without the member"
        else:
            self._member_id = ""
        events = self._lose_partitions(why)
        # Once at once; whoever is refused again and again is not in a hurry.
        self.next_request_at = now + self._backoff.next_delay(Cause.CONNECTION) if again else now
        return events

    def _expire_session(self, now: float) -> list[MemberEvent]:
        if not self.owned or now - self._last_response_at < self.session_timeout:
            return []
        return self._lose_partitions("the coordinator was not heard of for the session timeout")

    def _lose_partitions(self, reason: str) -> list[MemberEvent]:
        lost, self.owned, self._revoking = self.owned, frozenset(), frozenset()
        self._phase, self._generation, self._owned_generation = (
            _Phase.JOIN,
            NO_GENERATION,
            NO_GENERATION,
        )
        self._join_reason, self.has_unknown_topics, self._is_leader, self._subscriptions = (
            reason,
            False,
            False,
            (),
        )
        return [PartitionsLost(lost, reason)] if lost else []

    def _request_rejoin(self, reason: str, now: float) -> None:
        self._join_reason = self._join_reason or reason
        self._advance_phase(now)

    def _advance_phase(self, now: float) -> None:
        """Join as soon as there is a reason, and nothing is being given up."""
        if self._phase is _Phase.MEMBER and self._join_reason and not self._revoking:
            self._phase = _Phase.JOIN
        if self._phase is _Phase.JOIN and self._in_flight is None and self._final_state is None:
            self.next_request_at = min(self.next_request_at, now)

    def _needed_counts(self) -> dict[str, int]:
        return {
            name: self._partition_counts[name]
            for name in self.needed_topics & self._partition_counts.keys()
        }
