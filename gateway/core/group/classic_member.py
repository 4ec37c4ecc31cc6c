"""Be a member of a classic group with cooperative rebalancing (KIP-429).

    JOIN --join answered--> SYNC --sync answered--> MEMBER
    MEMBER --reason to join again, nothing being revoked--> JOIN
    SYNC or MEMBER --the group rebalances--> MEMBER, then JOIN once nothing is being revoked
    any --unknown, expired or refused: all is lost--> JOIN

A member that joins keeps reading its partitions. The leader learns what every member holds and
assigns what no other member holds. A member that has to give partitions up does so while it
heartbeats, and joins again, so that the leader can assign them in the next generation. Only
partitions that move pause.

All partitions are lost when the coordinator says that the member is unknown or of an earlier
generation, and after `session_timeout` without an answer of the coordinator: it may have assigned
everything to others by then. They are lost as well when the member is not let in. If the reason may
go away (`RETRIABLE_ERRORS`), it joins again as rarely as `gateway.core.log.recovery` says for
denied access.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from uuid import UUID

from gateway.core.error_code import COORDINATOR_MOVED_ERRORS, ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff, Cause

from .assignor import MemberSubscription, assign
from .member import (
    FATAL_ERRORS,
    FENCED_REASON,
    NO_GENERATION,
    RETRIABLE_ERRORS,
    CoordinatorMoved,
    GroupRequest,
    GroupResponse,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    MemberEvent,
    MemberIdentity,
    MembershipFailed,
    MemberState,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    SyncRequest,
    SyncResponse,
    TopicInfo,
)

METADATA_WAIT_S = 2.0  # seconds that a leader waits for metadata of a topic, which may not exist
# Seconds to the first heartbeat after an assignment, doubling up to the interval. Partitions that
# one member gives up can be assigned only after all members have learned of the next rebalance by
# a heartbeat, and that rebalance is near. When a member was replaced, its partitions were silent
# for 2.5-2.7 s without this and for 0.05-0.4 s with it (interval 3 s, 3 members).
FIRST_HEARTBEAT_S = 0.1
SUBSCRIPTION_CHANGED, TOPICS_CHANGED = "the subscription changed", "the topics changed"
_RETRY_BOUNDS_S = (0.1, 2.0)  # seconds until the first retry, and until later ones at most


class _Phase(Enum):
    JOIN = "to join"
    SYNC = "to get its assignment"
    MEMBER = "to heartbeat"


@dataclass(slots=True)
class ClassicMember:
    """A member of a classic group.

    Invariants between calls:

    - `_revoking` is a part of `owned`. While it is not empty, the phase stays MEMBER, so that
      heartbeats go on; only `_advance_phase` leads from MEMBER to JOIN.
    - In the phase MEMBER, an empty `_join_reason` means that the assignment stands.
    - `_owned_generation` is the generation in which `owned` was assigned. It may be older than
      `_generation`, and the leader believes the later of two claims (KIP-792).
    - In the phase JOIN with `_generation` NO_GENERATION, nothing is owned.

    Times are in seconds.

    Attributes:
        session_timeout: Without a heartbeat for so long, the coordinator removes the member.
        rebalance_timeout: Within which all members have to join again in a rebalance.
        random: Draws a number from [0, 1), which spreads heartbeats and retries of many members.
        instance_id: The `group.instance.id` of a static member.
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
    _missing_topics: frozenset[str] = frozenset()  # topics without metadata after the wait
    _keeps_assignment: bool = False  # the leader is to change nothing (KIP-814)
    _subscriptions: tuple[MemberSubscription, ...] = ()
    _partition_counts: dict[str, int] = field(default_factory=dict)
    _topic_ids: dict[str, UUID] = field(default_factory=dict)  # as last known
    _assigned_counts: dict[str, int] = field(default_factory=dict)  # that the leader assigned by
    _backoff: Backoff = field(init=False)
    _is_refused: bool = False  # not let in, for a reason that may go away
    # Who it was when another member took its instance id. Joining would take the id back, and so
    # fence that one; a heartbeat fences nobody, and the coordinator does not know the member any
    # more once the other one has gone.
    _fenced_identity: MemberIdentity | None = None
    # Separate, because another failure between two refusals must not reset the delays of these.
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
        is_settled = self._phase is _Phase.MEMBER and not self._join_reason
        return MemberState.RUNNING if is_settled else MemberState.REBALANCING

    @property
    def is_closed(self) -> bool:
        return self._final_state is not None

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(self._member_id, self._generation, self.instance_id)

    @property
    def needed_topics(self) -> frozenset[str]:
        return (self._topics or frozenset()).union(
            *(subscription.topics for subscription in self._subscriptions)
        )

    def subscribe(self, topics: Collection[str], now: float) -> None:
        self._topics = frozenset(topics)
        if self._topics != self._sent_topics:
            self._request_rejoin(SUBSCRIPTION_CHANGED, now)

    def on_metadata(self, topics: Mapping[str, TopicInfo], now: float) -> Sequence[MemberEvent]:
        """Take the metadata of `needed_topics`; a leader joins again to assign new partitions."""
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
        """Lose the partitions of topics that were created again, and take those of the new topics.

        The coordinator knows topics by name only: it informs nobody, and the leader would assign
        the same partitions again.
        """
        former_ids, self._topic_ids = self._topic_ids, {**self._topic_ids, **ids}
        lost_tps = frozenset(
            tp
            for tp in self.owned
            if tp.topic in former_ids and former_ids[tp.topic] != self._topic_ids[tp.topic]
        )
        if not lost_tps:
            return []
        assigned_tps = frozenset(
            tp
            for tp in lost_tps - self._revoking
            if tp.partition < self._partition_counts[tp.topic]
        )
        self.owned -= lost_tps - assigned_tps
        self._revoking -= lost_tps
        event = PartitionsLost(lost_tps, "the topic was deleted and created again")
        return [event, PartitionsAssigned(assigned_tps)] if assigned_tps else [event]

    def next_request(self, now: float) -> GroupRequest | None:
        is_idle = self._in_flight is None and self._final_state is None
        if not is_idle or self._topics is None or now < self.next_request_at:
            return None
        self.next_request_at, self._in_flight = inf, self._build_request()
        return self._in_flight

    def on_response(
        self, request: GroupRequest, response: GroupResponse, now: float
    ) -> Sequence[MemberEvent]:
        if request is not self._in_flight or self._final_state is not None:
            return ()
        self._in_flight = None
        if response.error:
            return self._on_error(response, now)
        self._last_response_at, self._is_refused = now, False
        self._backoff.reset()
        self._refusal_backoff.reset()
        if isinstance(response, JoinResponse):
            self._on_join(response, now)
            return ()
        events = self._on_sync(response) if isinstance(response, SyncResponse) else ()
        # Spread over a fifth, so that members that joined together drift apart.
        self.next_request_at = now + self._heartbeat_delay * (0.8 + 0.2 * self.random())
        self._heartbeat_delay = min(2 * self._heartbeat_delay, self.heartbeat_interval)
        # Last, because it may bring the next request forward: a member that has a reason to join
        # does not wait for the next heartbeat.
        self._advance_phase(now)
        return events

    def on_no_response(
        self, request: GroupRequest, now: float, retry_after: float
    ) -> Sequence[MemberEvent]:
        if request is not self._in_flight or self._final_state is not None:
            return ()
        self._in_flight = None
        events = self._expire_session(now)
        self.next_request_at = now + max(retry_after, self._backoff.next_delay(Cause.CONNECTION))
        return events

    def on_released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[MemberEvent]:
        released = tps & self._revoking
        self.owned -= released
        self._revoking -= released
        self._advance_phase(now)
        return ()

    def heartbeat_soon(self, now: float) -> None:
        if self._phase is _Phase.MEMBER and self._in_flight is None and self._final_state is None:
            self.next_request_at = min(self.next_request_at, now)

    def leave(self, now: float) -> GroupRequest | None:
        """Leave the group, and return the last request to send.

        A static member sends nothing (KIP-345): it may come back within the session timeout.
        """
        final_state = self._final_state
        self._final_state = MemberState.LEFT
        self.next_request_at = inf
        self.owned = self._revoking = frozenset()
        if final_state is not None or not self._member_id or self.instance_id is not None:
            return None
        return LeaveRequest(
            group=self.group, identity=self.identity, reason="the consumer is closed"
        )

    def _build_request(self) -> GroupRequest:
        if self._fenced_identity is not None:
            return HeartbeatRequest(group=self.group, identity=self._fenced_identity)
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
        assigns = self._is_leader and not self._keeps_assignment
        return SyncRequest(
            group=self.group,
            identity=self.identity,
            max_hold=self.rebalance_timeout,
            assignment=assign(self._subscriptions, self._assigned_counts).current
            if assigns
            else None,
        )

    def _on_join(self, response: JoinResponse, now: float) -> None:
        self._member_id, self._generation = response.member_id, response.generation
        self._is_leader = response.leader == response.member_id
        self._subscriptions = response.subscriptions
        self._keeps_assignment = response.skip_assignment
        self._phase = _Phase.SYNC
        self._await_topics(now, now + METADATA_WAIT_S)

    def _await_topics(self, now: float, deadline: float) -> None:
        """Let a leader assign once it knows the topics, or has waited for them long enough."""
        missing = self.needed_topics - self._partition_counts.keys() - self._missing_topics
        self.has_unknown_topics = self._is_leader and bool(missing)
        self.next_request_at = deadline if self.has_unknown_topics else now

    def _on_sync(self, response: SyncResponse) -> list[MemberEvent]:
        added, excess = response.tps - self.owned, self.owned - response.tps
        self._heartbeat_delay = min(FIRST_HEARTBEAT_S, self.heartbeat_interval)
        self.owned |= added
        self._phase = _Phase.MEMBER
        self._owned_generation = self._generation
        self._revoking = excess
        self._join_reason = ""
        if excess:
            self._join_reason = "revoked partitions were released"
        elif self._topics != self._sent_topics:
            self._join_reason = SUBSCRIPTION_CHANGED
        elif self._is_leader and self._needed_counts() != self._assigned_counts:
            self._join_reason = TOPICS_CHANGED
        events: list[MemberEvent] = [PartitionsAssigned(added)] if added else []
        return [*events, PartitionsRevoked(excess)] if excess else events

    def _on_error(self, response: GroupResponse, now: float) -> list[MemberEvent]:
        error = response.error
        if error in FATAL_ERRORS:
            events = self._lose_partitions(FATAL_ERRORS[error])
            self._final_state, self.next_request_at = MemberState.FAILED, inf
            return [*events, MembershipFailed(error, FATAL_ERRORS[error], is_final=True)]
        is_fenced = error == ErrorCode.FENCED_INSTANCE_ID
        if is_fenced or error in RETRIABLE_ERRORS:
            reason = FENCED_REASON if is_fenced else RETRIABLE_ERRORS[error]
            if is_fenced:
                self._fenced_identity = self._fenced_identity or self.identity
            events = self._lose_partitions(reason)
            self._is_refused = True
            self.next_request_at = now + self._refusal_backoff.next_delay(Cause.DENIED)
            return [*events, MembershipFailed(error, reason, is_final=False)]
        # KIP-394: the first join gets a member id only, with which to join again at once.
        if error == ErrorCode.MEMBER_ID_REQUIRED and isinstance(response, JoinResponse):
            self._member_id, self.next_request_at = response.member_id, now
            return []
        if error == ErrorCode.REBALANCE_IN_PROGRESS and self._phase is not _Phase.JOIN:
            return self._on_rebalance(now)
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            return self._on_unknown_member(error, now)
        events = self._expire_session(now)
        self.next_request_at = now + self._backoff.next_delay(Cause.CONNECTION)
        return [*events, CoordinatorMoved()] if error in COORDINATOR_MOVED_ERRORS else events

    def _on_rebalance(self, now: float) -> list[MemberEvent]:
        """Join again after revoked partitions were released; heartbeats go on until then."""
        # The coordinator knows the member, so this answer prolongs the session like any other.
        self._last_response_at = now
        self._backoff.reset()
        self.next_request_at = now + self.heartbeat_interval
        if self._phase is _Phase.SYNC:
            self._phase = _Phase.MEMBER
        self._join_reason = self._join_reason or "the group rebalances"
        self._advance_phase(now)
        return []

    def _on_unknown_member(self, error: int, now: float) -> list[MemberEvent]:
        """Lose everything and join again, at once the first time."""
        is_repeated = self._owned_generation == NO_GENERATION and self._generation == NO_GENERATION
        reason = "the coordinator does not know the member"
        if error == ErrorCode.ILLEGAL_GENERATION:
            # The id is kept: under a new one, the group would wait for this member's former self
            # until its session has expired.
            reason = "the group went on without the member"
        else:
            self._member_id, self._fenced_identity = "", None
        events = self._lose_partitions(reason)
        # A member that is refused again and again must not load the coordinator.
        self.next_request_at = (
            now + self._backoff.next_delay(Cause.CONNECTION) if is_repeated else now
        )
        return events

    def _expire_session(self, now: float) -> list[MemberEvent]:
        if not self.owned or now - self._last_response_at < self.session_timeout:
            return []
        return self._lose_partitions("the coordinator did not answer for the session timeout")

    def _lose_partitions(self, reason: str) -> list[MemberEvent]:
        lost, self.owned, self._revoking = self.owned, frozenset(), frozenset()
        self._phase = _Phase.JOIN
        self._generation = NO_GENERATION
        self._owned_generation = NO_GENERATION
        self._join_reason = reason
        self.has_unknown_topics = False
        self._is_leader = False
        self._subscriptions = ()
        return [PartitionsLost(lost, reason)] if lost else []

    def _request_rejoin(self, reason: str, now: float) -> None:
        self._join_reason = self._join_reason or reason
        self._advance_phase(now)

    def _advance_phase(self, now: float) -> None:
        if self._phase is _Phase.MEMBER and self._join_reason and not self._revoking:
            self._phase = _Phase.JOIN
        if self._phase is _Phase.JOIN and self._in_flight is None and self._final_state is None:
            self.next_request_at = min(self.next_request_at, now)

    def _needed_counts(self) -> dict[str, int]:
        return {
            name: self._partition_counts[name]
            for name in self.needed_topics & self._partition_counts.keys()
        }
