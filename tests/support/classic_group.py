"""A coordinator of a classic group in a few lines, without I/O, and members that talk to it.

It does what a broker does with JoinGroup, SyncGroup, Heartbeat and LeaveGroup; when sessions end
and how long a rebalance is waited for is up to the test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gateway.core.group.assignor import Assignment, Claim
from gateway.core.group.classic_member import ClassicMember
from gateway.core.group.classic_requests import (
    Code,
    HeartbeatAnswer,
    HeartbeatAsk,
    JoinAnswer,
    JoinAsk,
    LeaveAnswer,
    LeaveAsk,
    SyncAnswer,
    SyncAsk,
)
from gateway.core.group.member import Answer, Ask, Assigned, Event, Lost, Revoking, State, Topic
from gateway.core.log.record import TopicPartition


@dataclass
class _Slot:
    claim: Claim
    instance: str | None
    join: tuple[Peer, Ask] | None = None
    sync: tuple[Peer, Ask] | None = None


@dataclass
class Coordinator:
    """stable: everybody has its assignment. open: it waits for members to join."""

    generation: int = 0
    stable: bool = False
    open: bool = True
    leader: str = ""
    members: dict[str, _Slot] = field(default_factory=dict)
    plan: Assignment = field(default_factory=dict)
    invited: set[str] = field(default_factory=set)
    rebalances: int = 0
    _ids: Any = field(default_factory=count)

    def hear(self, peer: Peer, ask: Ask) -> None:
        """Answer at once, or later."""
        if isinstance(ask, JoinAsk):
            self._join(peer, ask)
        elif isinstance(ask, SyncAsk):
            self._sync(peer, ask)
        elif isinstance(ask, HeartbeatAsk):
            error = self._wrong(ask) or (Code.REBALANCE_IN_PROGRESS if self.open else 0)
            peer.told(ask, HeartbeatAnswer(0, error))
        elif isinstance(ask, LeaveAsk):
            known = ask.identity.member_id in self.members
            peer.told(ask, LeaveAnswer(0, 0 if known else Code.UNKNOWN_MEMBER_ID))
            self.expire(ask.identity.member_id)

    def expire(self, member: str) -> None:
        """Its session is over, or it left."""
        if self.members.pop(member, None) is not None:
            self._prepare()
            self._complete()

    def wait_no_more(self) -> list[str]:
        """The rebalance timeout: who has not joined is out."""
        late = [name for name, slot in self.members.items() if slot.join is None]
        if self.open:
            for name in late:
                del self.members[name]
            self._complete()
            return late
        return []

    def _join(self, peer: Peer, ask: JoinAsk) -> None:
        name, _, instance = ask.identity
        static = next(
            (m for m, s in self.members.items() if instance and s.instance == instance), ""
        )
        if not name and static:
            return self._returned(static, peer, ask)
        if not name and not instance:
            name = f"member-{next(self._ids)}"
            self.invited.add(name)
            return peer.told(ask, JoinAnswer(0, Code.MEMBER_ID_REQUIRED, member_id=name))
        if static not in ("", name):
            return peer.told(ask, JoinAnswer(0, Code.FENCED_INSTANCE_ID))
        if name and name not in self.members and name not in self.invited:
            return peer.told(ask, JoinAnswer(0, Code.UNKNOWN_MEMBER_ID))
        name = name or f"{instance}-{next(self._ids)}"
        self.invited.discard(name)
        known = self.members.get(name)
        claim = ask.claim._replace(member=name)
        if known is not None and known.claim == claim and not self.open and name != self.leader:
            return peer.told(ask, self._told(name))
        self.members[name] = _Slot(claim, instance, (peer, ask))
        self._prepare()
        self._complete()

    def _returned(self, old: str, peer: Peer, ask: JoinAsk) -> None:
        """A static member is back: under another name, to what it had (KIP-345, KIP-814)."""
        name = f"{ask.identity.instance_id}-{next(self._ids)}"
        slot = self.members.pop(old)
        slot.claim = ask.claim._replace(member=name)
        self.members[name] = slot
        if self.leader == old:
            self.leader = name
        self.plan[name] = self.plan.pop(old, frozenset())
        if self.stable:
            return peer.told(ask, self._told(name)._replace(assigned=self.leader == name))
        slot.join = peer, ask
        self._prepare()
        self._complete()

    def _told(self, name: str) -> JoinAnswer:
        claims = tuple(slot.claim for slot in self.members.values())
        return JoinAnswer(
            0,
            0,
            self.generation,
            "cooperative-sticky",
            self.leader,
            name,
            claims if name == self.leader else (),
        )

    def _prepare(self) -> None:
        self.stable, self.open = False, True
        for slot in self.members.values():
            if slot.sync is not None:
                (peer, ask), slot.sync = slot.sync, None
                peer.told(ask, SyncAnswer(0, Code.REBALANCE_IN_PROGRESS))

    def _complete(self) -> None:
        if any(slot.join is None for slot in self.members.values()):
            return
        self.generation += 1
        self.rebalances += 1
        self.open, self.plan = not self.members, {}
        if self.leader not in self.members:
            self.leader = next(iter(self.members), "")
        for name, slot in self.members.items():
            assert slot.join is not None
            (peer, ask), slot.join = slot.join, None
            peer.told(ask, self._told(name))

    def _wrong(self, ask: SyncAsk | HeartbeatAsk) -> int:
        if ask.identity.member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        return 0 if ask.identity.epoch == self.generation else Code.ILLEGAL_GENERATION

    def _sync(self, peer: Peer, ask: SyncAsk) -> None:
        name = ask.identity.member_id
        if error := self._wrong(ask) or (Code.REBALANCE_IN_PROGRESS if self.open else 0):
            return peer.told(ask, SyncAnswer(0, error))
        if self.stable:
            return peer.told(ask, SyncAnswer(0, 0, self.plan.get(name, frozenset())))
        self.members[name].sync = peer, ask
        if name == self.leader and ask.assignment is not None:
            self.plan, self.stable = dict(ask.assignment), True
            for member, slot in self.members.items():
                if slot.sync is not None:
                    (one, asked), slot.sync = slot.sync, None
                    one.told(asked, SyncAnswer(0, 0, self.plan.get(member, frozenset())))


@dataclass
class Peer:
    """One member and what lies between it and the coordinator.

    events: all it was told to do. revoking: what its listener has not let go yet.
    """

    member: ClassicMember
    answer: tuple[Ask, Answer] | None = None
    waiting: Ask | None = None
    events: list[Event] = field(default_factory=list)
    revoking: frozenset[TopicPartition] = frozenset()

    def told(self, ask: Ask, answer: Answer) -> None:
        """An answer is on its way; one to a question that was given up is not."""
        if ask is self.waiting:
            self.answer = ask, answer

    def send(self, to: Coordinator, now: float) -> Ask | None:
        """What is due, to the coordinator."""
        if (ask := self.member.ask(now)) is not None:
            self.waiting = ask
            to.hear(self, ask)
        return ask

    def take(self, now: float) -> bool:
        """The answer that came, if one did."""
        if self.answer is None:
            return False
        (ask, answer), self.answer, self.waiting = self.answer, None, None
        self.note(self.member.answered(ask, answer, now))
        return True

    def cut(self, now: float, retry_after: float = 0.0) -> None:
        """The connection breaks: whatever was asked has no answer."""
        if self.waiting is not None:
            ask, self.waiting, self.answer = self.waiting, None, None
            self.note(self.member.unanswered(ask, now, retry_after))

    def release(self, now: float) -> bool:
        gone, self.revoking = self.revoking, frozenset()
        if gone:
            self.note(self.member.released(gone, now))
        return bool(gone)

    def note(self, events: Iterable[Event]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, Revoking):
                self.revoking |= event.tps
            elif isinstance(event, Lost):
                self.revoking -= event.tps

    @property
    def assigned(self) -> list[frozenset[TopicPartition]]:
        return [event.tps for event in self.events if isinstance(event, Assigned)]


def member(instance_id: str | None = None, topics: Iterable[str] = ("orders",)) -> ClassicMember:
    """One that wants `topics`, at time 0."""
    made = ClassicMember(
        "group",
        session_timeout=10.0,
        rebalance_timeout=60.0,
        interval=3.0,
        random=lambda: 0.5,
        instance_id=instance_id,
    )
    made.subscribe(tuple(topics), 0.0)
    return made


def known(**partitions: int) -> dict[str, Topic]:
    return {name: Topic(None, count) for name, count in partitions.items()}


def settled(to: Coordinator, peers: Iterable[Peer]) -> bool:
    """Everybody runs in the group's generation. (A member may think so of an earlier one.)"""
    return all(
        peer.member.state is State.RUNNING
        and peer.member.identity.epoch == to.generation
        and peer.member.identity.member_id in to.members
        and to.stable
        for peer in peers
    )


def settle(to: Coordinator, peers: Iterable[Peer], now: float) -> float:
    """Until nobody has anything to say or to give up, heartbeats apart. The time it is then."""
    peers = list(peers)
    for _ in range(400):
        busy = [peer.take(now) or peer.release(now) for peer in peers]
        busy += [isinstance(peer.send(to, now), (JoinAsk, SyncAsk)) for peer in peers]
        if not any(busy) and not any(peer.answer for peer in peers):
            if settled(to, peers):
                return now
            now += 1.0  # a heartbeat or a retry is due
    raise AssertionError("the group does not settle")
