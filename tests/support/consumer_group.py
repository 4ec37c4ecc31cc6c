"""A small coordinator of KIP-848: who may own what, as the broker reckons it."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.group.consumer_member import Beat, BeatAnswer, Place

UNKNOWN, FENCED, UNRELEASED = 25, 110, 111
INTERVAL = 5.0  # seconds between heartbeats


@dataclass
class Member:
    epoch: int = 0
    before: int = 0
    instance_id: str | None = None
    away: bool = False  # a static one that said it comes back
    target: frozenset[Place] = frozenset()
    assigned: frozenset[Place] = frozenset()
    leaving: frozenset[Place] = frozenset()  # to be given up; another's only when that is said

    @property
    def has(self) -> frozenset[Place]:
        return self.assigned | self.leaving


@dataclass
class Coordinator:
    partitions: frozenset[Place]
    epoch: int = 0
    members: dict[str, Member] = field(default_factory=dict)

    def beat(self, beat: Beat) -> BeatAnswer:
        if beat.epoch < 0:
            return self._left(beat)
        refused = self._join(beat) if beat.epoch == 0 else self._check(beat)
        if refused:
            return answer(refused)
        member = self.members[beat.member_id]
        told = member.assigned
        self._reconcile(member, beat.owned)
        changed = beat.whole or member.assigned != told
        return answer(0, member.epoch, member.assigned if changed else None)

    def expire(self, member_id: str) -> None:
        """Its session is over."""
        if self.members.pop(member_id, None) is not None:
            self.rebalance()

    def _left(self, beat: Beat) -> BeatAnswer:
        member = self.members.get(beat.member_id)
        if member is None:
            return answer(UNKNOWN)
        if beat.epoch == -2:
            member.away = True
        else:
            self.expire(beat.member_id)
        return answer(0, beat.epoch)

    def _join(self, beat: Beat) -> int:
        assert beat.whole and beat.owned == frozenset() and beat.topics is not None
        if beat.member_id in self.members:
            return 0
        for id, other in list(self.members.items()):
            if beat.instance_id is not None and other.instance_id == beat.instance_id:
                if not other.away:
                    return UNRELEASED
                self.members[beat.member_id] = self.members.pop(id)
                self.members[beat.member_id].away = False
                return 0
        self.members[beat.member_id] = Member(instance_id=beat.instance_id)
        self.rebalance()
        return 0

    def _check(self, beat: Beat) -> int:
        member = self.members.get(beat.member_id)
        if member is None:
            return UNKNOWN
        if beat.epoch == member.epoch:
            return 0
        # The answer that brought the epoch was lost.
        lost = beat.epoch == member.before and beat.owned is not None
        return 0 if lost and beat.owned <= member.assigned else FENCED

    def rebalance(self) -> None:
        self.epoch += 1
        ids, places = list(self.members), sorted(self.partitions)
        for at, id in enumerate(ids):
            self.members[id].target = frozenset(places[at :: len(ids)])

    def _reconcile(self, member: Member, owned: frozenset[Place] | None) -> None:
        """What is to be given up and is not said to be owned, in this very beat, is free at once:
        one that joins again owns nothing."""
        for _ in range(2):
            if owned is not None and not owned & member.leaving:
                member.leaving = frozenset()
            if not member.leaving:
                member.leaving = member.assigned - member.target
                member.assigned &= member.target
        if not member.leaving:
            if member.epoch != self.epoch:
                member.before, member.epoch = member.epoch, self.epoch
            others = (other.has for other in self.members.values() if other is not member)
            member.assigned = member.target - frozenset().union(*others)


def answer(error: int, epoch: int = 0, owned: frozenset[Place] | None = None) -> BeatAnswer:
    assignment: dict[UUID, frozenset[int]] | None = None
    if owned is not None:
        assignment = {
            topic: frozenset(p for t, p in owned if t == topic) for topic in {t for t, _ in owned}
        }
    return BeatAnswer(error, None, None, epoch, INTERVAL, assignment)
