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

from .assignor import Claim, assign
from .classic_requests import (
    FINAL,
    PASSING,
    Code,
    HeartbeatAsk,
    JoinAnswer,
    JoinAsk,
    LeaveAsk,
    SyncAnswer,
    SyncAsk,
)
from .member import (
    NO_EPOCH,
    Answer,
    Ask,
    Assigned,
    Event,
    Failed,
    Identity,
    Lost,
    Moved,
    Revoking,
    State,
    Topic,
)

PATIENCE = 2.0  # seconds that a leader waits for metadata of a topic that may not even exist
# Seconds to the first heartbeat after an assignment, then twice that, up to the interval: what is
# given up is free only when everybody has heard of the next round, which is near. A replacement's
# partitions were silent for 2.5-2.7 s without, 0.05-0.4 s with it (interval 3 s, 3 members).
SOON = 0.1
SUBSCRIBED, CHANGED = "the subscription changed", "the topics changed"
_AGAIN = (0.1, 2.0)  # seconds, the first and the longest until what failed is tried again
_MOVED = (Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)


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
    interval: float
    random: Callable[[], float]
    instance_id: str | None = None
    due: float = inf
    unresolved: bool = False
    owned: frozenset[TopicPartition] = frozenset()
    _phase: _Phase = _Phase.JOIN
    _over: State | None = None
    _asking: Ask | None = None
    _member_id: str = ""
    _generation: int = NO_EPOCH
    _since: int = NO_EPOCH  # the generation that gave what is owned
    _revoking: frozenset[TopicPartition] = frozenset()
    _topics: frozenset[str] | None = None
    _said: frozenset[str] | None = None  # the topics of the last join
    _again: str = "joins"  # why it joins (again); empty: it does not
    _pace: float = inf  # seconds to the next heartbeat
    _heard: float = -inf
    _leads: bool = False
    _absent: frozenset[str] = frozenset()  # topics that were waited for in vain
    _kept: bool = False  # the leader is to change nothing (KIP-814)
    _claims: tuple[Claim, ...] = ()
    _known: dict[str, int] = field(default_factory=dict)
    _ids: dict[str, UUID] = field(default_factory=dict)  # of topics, as last known
    _planned: dict[str, int] = field(default_factory=dict)
    _backoff: Backoff = field(init=False)
    _is_refused: bool = False  # for a reason that may pass
    # Of its own: a failure between two refusals must not make the next one the first.
    _refusals: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(_AGAIN[1], self.random, floor=_AGAIN[0])
        self._refusals = Backoff(_AGAIN[1], self.random)

    @property
    def state(self) -> State:
        if self._over is not None:
            return self._over
        if self._is_refused:
            return State.FAILED
        settled = self._phase is _Phase.MEMBER and not self._again
        return State.RUNNING if settled else State.REBALANCING

    @property
    def is_over(self) -> bool:
        return self._over is not None

    @property
    def identity(self) -> Identity:
        return Identity(self._member_id, self._generation, self.instance_id)

    @property
    def interest(self) -> frozenset[str]:
        return (self._topics or frozenset()).union(*(claim.topics for claim in self._claims))

    def subscribe(self, topics: Collection[str], now: float) -> None:
        self._topics = frozenset(topics)
        if self._topics != self._said:
            self._rejoin(SUBSCRIBED, now)

    def learn(self, topics: Mapping[str, Topic], now: float) -> Sequence[Event]:
        self._known = {name: topic.partitions for name, topic in topics.items()}
        events = self._replace({name: topic.id for name, topic in topics.items() if topic.id})
        if self._phase is _Phase.SYNC and self.unresolved:
            self._resolve(now, self.due)
        elif self._leads and self._phase is _Phase.MEMBER and self._counts() != self._planned:
            self._rejoin(CHANGED, now)
        if events:
            self._turn(now)
        return events

    def _replace(self, ids: Mapping[str, UUID]) -> list[Event]:
        """Lose the partitions of topics that were deleted and made anew, and take the new ones.

        The coordinator goes by names: it tells nobody, and the leader gives out the same again.
        """
        before, self._ids = self._ids, {**self._ids, **ids}
        old = frozenset(
            tp
            for tp in self.owned
            if tp.topic in before and before[tp.topic] != self._ids[tp.topic]
        )
        if not old:
            return []
        new = frozenset(tp for tp in old - self._revoking if tp.partition < self._known[tp.topic])
        self.owned -= old - new
        self._revoking -= old
        lost = Lost(old, "the topic was deleted and made anew")
        return [lost, Assigned(new)] if new else [lost]

    def ask(self, now: float) -> Ask | None:
        idle = self._asking is None and self._over is None
        if not idle or self._topics is None or now < self.due:
            return None
        self.due, self._asking = inf, self._next()
        return self._asking

    def answered(self, ask: Ask, answer: Answer, now: float) -> Sequence[Event]:
        if ask is not self._asking or self._over is not None:
            return ()
        self._asking = None
        if answer.error:
            return self._refused(answer, now)
        self._heard, self._is_refused = now, False
        self._backoff.succeeded()
        self._refusals.succeeded()
        if isinstance(answer, JoinAnswer):
            self._joined(answer, now)
            return ()
        events = self._synced(answer) if isinstance(answer, SyncAnswer) else ()
        self.due = now + self._pace * (0.8 + 0.2 * self.random())
        self._pace = min(2 * self._pace, self.interval)
        self._turn(now)
        return events

    def unanswered(self, ask: Ask, now: float, retry_after: float) -> Sequence[Event]:
        if ask is not self._asking or self._over is not None:
            return ()
        self._asking = None
        events = self._silent(now)
        self.due = now + max(retry_after, self._backoff.delay(Cause.CONNECTION))
        return events

    def released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[Event]:
        gone = tps & self._revoking
        self.owned -= gone
        self._revoking -= gone
        self._turn(now)
        return ()

    def hurry(self, now: float) -> None:
        if self._phase is _Phase.MEMBER and self._asking is None and self._over is None:
            self.due = min(self.due, now)

    def leave(self, now: float) -> Ask | None:
        """A static member does not say that it goes: it comes back within the session timeout to
        what it had, or the coordinator gives it to others then (KIP-345)."""
        over, self._over, self.due = self._over, State.LEFT, inf
        self.owned = self._revoking = frozenset()
        if over is not None or not self._member_id or self.instance_id is not None:
            return None
        return LeaveAsk(group=self.group, identity=self.identity, reason="the consumer is closed")

    def _next(self) -> Ask:
        if self._phase is _Phase.JOIN:
            return self._join()
        if self._phase is _Phase.SYNC:
            return self._sync()
        return HeartbeatAsk(group=self.group, identity=self.identity)

    def _join(self) -> JoinAsk:
        topics = self._topics or frozenset()
        self._said = topics
        return JoinAsk(
            group=self.group,
            identity=self.identity,
            held=self.rebalance_timeout,
            session_timeout=self.session_timeout,
            rebalance_timeout=self.rebalance_timeout,
            claim=Claim(self._member_id, topics, self.owned, self._since),
            reason=self._again,
        )

    def _sync(self) -> SyncAsk:
        self._planned, self.unresolved = self._counts(), False
        self._absent = self.interest - self._known.keys()
        plans = self._leads and not self._kept
        return SyncAsk(
            group=self.group,
            identity=self.identity,
            held=self.rebalance_timeout,
            assignment=assign(self._claims, self._planned).now if plans else None,
        )

    def _joined(self, answer: JoinAnswer, now: float) -> None:
        self._member_id, self._generation = answer.member_id, answer.generation
        self._leads = answer.leader == answer.member_id
        self._claims, self._kept = answer.claims, answer.assigned
        self._phase = _Phase.SYNC
        self._resolve(now, now + PATIENCE)

    def _resolve(self, now: float, deadline: float) -> None:
        """A leader gives out once it knows the topics, or has waited for them long enough."""
        missing = self.interest - self._known.keys() - self._absent
        self.unresolved = self._leads and bool(missing)
        self.due = deadline if self.unresolved else now

    def _synced(self, answer: SyncAnswer) -> list[Event]:
        added, gone = answer.tps - self.owned, self.owned - answer.tps
        self._pace = min(SOON, self.interval)
        self.owned |= added
        self._phase, self._since, self._revoking, self._again = (
            _Phase.MEMBER,
            self._generation,
            gone,
            "",
        )
        if gone:
            self._again = "what was to be given up is given up"
        elif self._topics != self._said:
            self._again = SUBSCRIBED
        elif self._leads and self._counts() != self._planned:
            self._again = CHANGED
        events: list[Event] = [Assigned(added)] if added else []
        return [*events, Revoking(gone)] if gone else events

    def _refused(self, answer: Answer, now: float) -> list[Event]:
        error = answer.error
        if error in FINAL:
            events = self._lose(FINAL[error])
            self._over, self.due = State.FAILED, inf
            return [*events, Failed(error, FINAL[error], is_final=True)]
        if error in PASSING:
            events = self._lose(PASSING[error])
            self._is_refused = True
            self.due = now + self._refusals.delay(Cause.DENIED)
            return [*events, Failed(error, PASSING[error], is_final=False)]
        if error == Code.MEMBER_ID_REQUIRED and isinstance(answer, JoinAnswer):
            self._member_id, self.due = answer.member_id, now
            return []
        if error == Code.REBALANCE_IN_PROGRESS and self._phase is not _Phase.JOIN:
            return self._called(now)
        if error in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION):
            return self._forgotten(error, now)
        events = self._silent(now)
        self.due = now + self._backoff.delay(Cause.CONNECTION)
        return [*events, Moved()] if error in _MOVED else events

    def _called(self, now: float) -> list[Event]:
        """The group rebalances. What is being given up is given up first, with heartbeats."""
        self._heard = now
        self._backoff.succeeded()
        self.due = now + self.interval
        if self._phase is _Phase.SYNC:
            self._phase = _Phase.MEMBER
        self._again = self._again or "the group rebalances"
        self._turn(now)
        return []

    def _forgotten(self, error: int, now: float) -> list[Event]:
        again = self._since == NO_EPOCH and self._generation == NO_EPOCH
        why = "the coordinator does not know the member"
        if error == Code.ILLEGAL_GENERATION:
            why = "the group went on without the member"
        else:
            self._member_id = ""
        events = self._lose(why)
        # Once at once; whoever is refused again and again is not in a hurry.
        self.due = now + self._backoff.delay(Cause.CONNECTION) if again else now
        return events

    def _silent(self, now: float) -> list[Event]:
        if not self.owned or now - self._heard < self.session_timeout:
            return []
        return self._lose("the coordinator was not heard of for the session timeout")

    def _lose(self, why: str) -> list[Event]:
        lost, self.owned, self._revoking = self.owned, frozenset(), frozenset()
        self._phase, self._generation, self._since = _Phase.JOIN, NO_EPOCH, NO_EPOCH
        self._again, self.unresolved, self._leads, self._claims = why, False, False, ()
        return [Lost(lost, why)] if lost else []

    def _rejoin(self, why: str, now: float) -> None:
        self._again = self._again or why
        self._turn(now)

    def _turn(self, now: float) -> None:
        """Join as soon as there is a reason, and nothing is being given up."""
        if self._phase is _Phase.MEMBER and self._again and not self._revoking:
            self._phase = _Phase.JOIN
        if self._phase is _Phase.JOIN and self._asking is None and self._over is None:
            self.due = min(self.due, now)

    def _counts(self) -> dict[str, int]:
        return {name: self._known[name] for name in self.interest & self._known.keys()}
