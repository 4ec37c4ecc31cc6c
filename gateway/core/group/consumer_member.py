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

JOIN, LEAVE, LEAVE_STATIC = 0, -1, -2  # epochs that say what is meant
AGAIN = 0.1  # seconds until what failed is tried again, growing to
AT_MOST = 2.0

LOADING, NO_COORDINATOR, NOT_COORDINATOR = 14, 15, 16
UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH = 25, 110
UNRELEASED_INSTANCE_ID = 111
GROUP_ID_NOT_FOUND = 69
# What ends a membership: it depends on what this process asks for, and on nothing else.
FINAL: Mapping[int, str] = {
    24: "its name is not valid",
    42: "the broker finds the request invalid",
    112: "the broker does not have the assignor",
}
# What others may change while this process goes on as it is.
PASSING: Mapping[int, str] = {
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

Place = tuple[UUID, int]  # a partition of a topic, and not of another with the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Ask):
    """ConsumerGroupHeartbeat. None: as last said. rebalance_timeout in seconds."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rebalance_timeout: float | None = None
    topics: tuple[str, ...] | None = None
    owned: frozenset[Place] | None = None

    @property
    def whole(self) -> bool:
        return self.rebalance_timeout is not None


class BeatAnswer(NamedTuple):
    """`assignment` None: as last told. interval in seconds."""

    error: int
    message: str | None
    member_id: str | None
    epoch: int
    interval: float
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
    interval: float = inf
    due: float = inf
    unresolved: bool = False
    _epoch: int = JOIN
    _over: State | None = None
    _topics: tuple[str, ...] | None = None
    _said_topics: tuple[str, ...] | None = None
    _known: Mapping[str, Topic] = field(default_factory=dict)
    _names: dict[UUID, str] = field(default_factory=dict)  # also of topics that are gone
    _target: frozenset[Place] | None = None
    _owned: frozenset[Place] = frozenset()
    _revoking: frozenset[Place] = frozenset()
    _said: frozenset[Place] | None = None  # what the broker knows to be owned
    _whole: bool = True
    _asking: Beat | None = None
    _joined: bool = False  # the broker may know the member
    _urgent: bool = False
    _failures: int = 0
    _is_refused: bool = False  # for a reason that may pass
    _refusals: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._refusals = Backoff(AT_MOST, self.random)

    @property
    def state(self) -> State:
        if self._over is not None:
            return self._over
        if self._is_refused:
            return State.FAILED
        settled = not self._revoking and self._said == self._owned == self._target
        return State.RUNNING if self._epoch > 0 and settled else State.REBALANCING

    @property
    def is_over(self) -> bool:
        return self._over is not None

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self._tps(self._owned)

    @property
    def identity(self) -> Identity:
        epoch = self._epoch if self._epoch > 0 else -1
        return Identity(self.member_id, epoch, self.instance_id)

    @property
    def interest(self) -> frozenset[str]:
        return frozenset(self._topics or ()) | {self._names[topic] for topic, _ in self._owned}

    def subscribe(self, topics: Collection[str], now: float) -> None:
        before, self._topics = self._topics, tuple(sorted(topics))
        if self._is_refused and self._topics != before and self._asking is None:
            self.due = min(self.due, now)  # it may be one of the former topics that is denied
        self.hurry(now)

    def learn(self, topics: Mapping[str, Topic], now: float) -> Sequence[Event]:
        self._known = topics
        for name, topic in topics.items():
            if topic.id is not None:
                self._names[topic.id] = name
        return self._reconcile(now)

    def ask(self, now: float) -> Beat | None:
        if self._over is not None or self._topics is None or self._asking or now < self.due:
            return None
        whole = self._whole
        beat = Beat(
            group=self.group,
            member_id=self.member_id,
            epoch=self._epoch,
            instance_id=self.instance_id,
            rebalance_timeout=self.rebalance_timeout if whole else None,
            topics=self._topics if whole or self._topics != self._said_topics else None,
            owned=self._owned if whole or self._owned != self._said else None,
        )
        self._asking, self._joined, self._urgent, self.due = beat, True, False, inf
        return beat

    def answered(self, ask: Ask, answer: Answer, now: float) -> Sequence[Event]:
        assert isinstance(ask, Beat) and isinstance(answer, BeatAnswer)
        if self._over is not None or self._asking is not ask:
            return ()
        self._asking = None
        if answer.error:
            return self._refused(ask, answer, now)
        self._is_refused = False
        self._refusals.succeeded()
        self._failures, self._whole, self._epoch = 0, False, answer.epoch
        self.member_id = answer.member_id or self.member_id
        if ask.topics is not None:
            self._said_topics = ask.topics
        if ask.owned is not None:
            self._said = ask.owned
        if answer.assignment is not None:
            self._target = frozenset((t, p) for t, ps in answer.assignment.items() for p in ps)
        # Spread over a fifth: members that joined together do not beat together for ever.
        self.due = now + min(answer.interval, self.interval) * (0.8 + 0.2 * self.random())
        return self._reconcile(now)

    def unanswered(self, ask: Ask, now: float, retry_after: float) -> Sequence[Event]:
        if self._asking is ask:
            self._asking, self._whole = None, True
            self.due = now + max(retry_after, self._delay())
        return ()

    def released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[Event]:
        gone = frozenset(p for p in self._revoking if self._tp(p) in tps)
        self._revoking -= gone
        self._owned -= gone
        return self._reconcile(now)

    def hurry(self, now: float) -> None:
        if self._topics is None or self._over is not None or self._is_refused:
            return
        if self._asking is not None:
            self._urgent = True
        else:
            self.due = min(self.due, now)

    def leave(self, now: float) -> Beat | None:
        over, self._over, self.due = self._over, State.LEFT, inf
        if not self._joined or over is not None:
            return None
        epoch = LEAVE if self.instance_id is None else LEAVE_STATIC
        return Beat(
            group=self.group, member_id=self.member_id, epoch=epoch, instance_id=self.instance_id
        )

    def _reconcile(self, now: float) -> list[Event]:
        """From what is owned towards the target, one step: give up first, then take."""
        events: list[Event] = []
        if self._target is None or self._over is not None:
            return events
        events += self._give_up(self._owned - self._target - self._revoking)
        known = frozenset(p for p in self._target if p[0] in self._names)
        self.unresolved = known != self._target
        added = known - self._owned
        if added and not self._revoking:
            self._owned |= added
            events.append(Assigned(self._tps(added)))
        if self._urgent or self._owned != self._said or self._topics != self._said_topics:
            self.hurry(now)
        return events

    def _give_up(self, gone: frozenset[Place]) -> list[Event]:
        """A topic that was deleted is nobody's: there is nothing to wait for or to commit."""
        events: list[Event] = []
        dead = frozenset(p for p in gone if not self._is_there(p[0]))
        if dead:
            self._owned -= dead
            events.append(Lost(self._tps(dead), "the topic was deleted"))
        if gone - dead:
            self._revoking |= gone - dead
            events.append(Revoking(self._tps(gone - dead)))
        return events

    def _is_there(self, topic: UUID) -> bool:
        known = self._known.get(self._names[topic])
        return known is not None and known.id == topic

    def _refused(self, beat: Beat, answer: BeatAnswer, now: float) -> list[Event]:
        error = answer.error
        # A group whose members all expired is deleted; only who joins makes it again.
        deleted = error == GROUP_ID_NOT_FOUND and beat.epoch > JOIN
        if deleted or error in (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH):
            why = "fenced" if error == FENCED_MEMBER_EPOCH else "the coordinator forgot the member"
            events = self._lose(f"{why}: {answer.message or error}")
            # At once the first time; whoever is fenced again and again is not in a hurry.
            self.due = now if self._failures == 0 else now + self._delay()
            self._failures += 1
            return events
        if error in FINAL:
            events = self._lose(FINAL[error])
            self._over, self.due = State.FAILED, inf
            return [*events, Failed(error, answer.message or FINAL[error], is_final=True)]
        if error in PASSING:
            events = self._lose(PASSING[error])
            self._is_refused = True
            self.due = now + self._refusals.delay(Cause.DENIED)
            return [*events, Failed(error, answer.message or PASSING[error], is_final=False)]
        self._whole, self.due = True, now + self._delay()
        return [Moved()] if error in (NO_COORDINATOR, NOT_COORDINATOR) else []

    def _lose(self, why: str) -> list[Event]:
        lost, self._owned, self._revoking = self._owned, frozenset(), frozenset()
        self._epoch, self._whole, self._target, self._said = JOIN, True, None, None
        self.unresolved = False
        return [Lost(self._tps(lost), why)] if lost else []

    def _delay(self) -> float:
        self._failures += 1
        bound = min(AT_MOST, AGAIN * 2.0 ** min(self._failures - 1, 8))
        return bound * (0.5 + 0.5 * self.random())

    def _tp(self, place: Place) -> TopicPartition:
        return TopicPartition(self._names[place[0]], place[1])

    def _tps(self, places: Collection[Place]) -> frozenset[TopicPartition]:
        return frozenset(self._tp(place) for place in places)
