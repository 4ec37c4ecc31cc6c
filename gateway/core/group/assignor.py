"""Who of a classic group reads which partition: cooperative sticky assignment (KIP-429, KIP-54).

One member, the leader, computes it for all. The target is as even as the subscriptions allow
(no chain of hand-overs could take from one to give to another with two less), and moves from
their owners only what that demands. A partition that is to move is given to nobody as long as a
living member holds it: that one gives it up and joins again, and the next round hands it out.
Racks are not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

GroupAssignment = dict[str, frozenset[TopicPartition]]


class MemberSubscription(NamedTuple):
    """What one member says as it joins.

    owned:      what it reads now. generation: of the group, when it was given that; -1 unknown.
    """

    member_id: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1


class AssignmentPlan(NamedTuple):
    """target: where everything shall be. now: what of it can be given out in this round."""

    target: GroupAssignment
    current: GroupAssignment

    @property
    def is_settled(self) -> bool:
        return self.target == self.current


def assign(
    subscriptions: Sequence[MemberSubscription], partitions: Mapping[str, int]
) -> AssignmentPlan:
    """The next assignment. partitions: how many each topic has; topics without are not assigned."""
    owners = _find_owners(subscriptions)
    spread = _Balancer(subscriptions, partitions, owners)
    spread.assign_initial()
    spread.balance()
    target = spread.build_assignment()
    return AssignmentPlan(target, _withhold_owned(subscriptions, owners, target))


def _find_owners(subscriptions: Iterable[MemberSubscription]) -> dict[TopicPartition, str]:
    """Who holds what. The later generation is believed (KIP-792), of two in the same, neither."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, _, owned, generation in subscriptions:
        for tp in owned:
            known = best.get(tp)
            if known is None or generation > known[0]:
                best[tp] = generation, member
            elif generation == known[0]:
                best[tp] = generation, None
    return {tp: member for tp, (_, member) in best.items() if member is not None}


def _withhold_owned(
    subscriptions: Iterable[MemberSubscription],
    owners: Mapping[TopicPartition, str],
    target: GroupAssignment,
) -> GroupAssignment:
    """`target` without what others than the new owner still hold."""
    held = frozenset().union(*(claim.owned for claim in subscriptions))
    return {
        member: frozenset(tp for tp in tps if tp not in held or owners.get(tp) == member)
        for member, tps in target.items()
    }


_PartitionsByMember = dict[str, defaultdict[str, set[int]]]  # member, topic, partitions


class _Balancer:
    """Partitions on members while they are evened out. `_loose` has what is held by others than
    the owner, or has none: to move it on costs nothing."""

    def __init__(
        self,
        subscriptions: Sequence[MemberSubscription],
        partitions: Mapping[str, int],
        owners: Mapping[TopicPartition, str],
    ) -> None:
        self._partitions = partitions
        self._owners = owners
        self._load = {claim.member_id: 0 for claim in subscriptions}
        self._assigned: _PartitionsByMember = {member: defaultdict(set) for member in self._load}
        self._movable: _PartitionsByMember = {member: defaultdict(set) for member in self._load}
        self._readers: dict[str, tuple[str, ...]] = {
            topic: tuple(sorted(c.member_id for c in subscriptions if topic in c.topics))
            for topic in sorted(partitions)
        }

    def assign_initial(self) -> None:
        """Everything to its owner, and what has none to whoever has the least."""
        free = [tp for tp in self._iter_partitions() if not self._keep_owner(tp)]
        # Loads only grow here, so a heap for each set of readers may lag behind them.
        heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        for topic, partition in free:
            readers = self._readers[topic]
            heap = heaps.get(readers)
            if heap is None:
                heap = heaps[readers] = [(self._load[member], member) for member in readers]
                heapify(heap)
            while heap[0][0] != self._load[heap[0][1]]:
                heapreplace(heap, (self._load[heap[0][1]], heap[0][1]))
            self._add_partition(heap[0][1], topic, partition)

    def balance(self) -> None:
        """Until no hand-over, nor a chain of them, makes it more even (an optimal
        semi-matching: Harvey et al., 2006): first of what nobody would have to give up, so that
        what is even already, with what is free, moves nothing."""
        for within in (self._movable, self._assigned):
            while self._balance_once(within):
                pass
        while self._return_to_owners():
            pass

    def _balance_once(self, candidates: _PartitionsByMember) -> bool:
        """Take from who has the most as long as there is somebody to give to."""
        moved = False
        heap = [(-load, member) for member, load in self._load.items()]
        heapify(heap)
        while heap:
            known, member = heap[0]
            if -known != self._load[member]:  # it was given something since
                heapreplace(heap, (-self._load[member], member))
            elif chain := self._find_chain(member, candidates):
                for step in chain:
                    self._move_partition(*step)
                moved = True
            else:
                heappop(heap)
        return moved

    def _return_to_owners(self) -> bool:
        """Back to the owner what it could as well have kept: its holder has one more anyway, or
        takes something else for it."""
        moved = False
        for holder, topics in self._movable.items():
            for tp in [
                TopicPartition(topic, one) for topic, held in topics.items() for one in held
            ]:
                owner = self._owners.get(tp)
                if owner is None or owner not in self._readers[tp.topic]:
                    continue
                if self._load[holder] <= self._load[owner]:
                    if (other := self._find_exchange(owner, holder)) is None:
                        continue
                    self._move_partition(owner, other, holder)
                self._remove_partition(holder, *tp)
                self._add_partition(owner, *tp)
                moved = True
        return moved

    def _find_exchange(self, giver: str, taker: str) -> str | None:
        """A topic of which one could give another a partition that is not its own."""
        topics = (topic for topic, held in self._movable[giver].items() if held)
        return next((topic for topic in topics if taker in self._readers[topic]), None)

    def build_assignment(self) -> GroupAssignment:
        return {
            member: frozenset(
                TopicPartition(topic, partition)
                for topic, held in topics.items()
                for partition in held
            )
            for member, topics in self._assigned.items()
        }

    def _iter_partitions(self) -> Iterator[TopicPartition]:
        for topic, readers in self._readers.items():
            if readers:
                for partition in range(self._partitions[topic]):
                    yield TopicPartition(topic, partition)

    def _keep_owner(self, tp: TopicPartition) -> bool:
        owner = self._owners.get(tp)
        if owner is None or owner not in self._readers[tp.topic]:
            return False
        self._add_partition(owner, *tp)
        return True

    def _find_chain(
        self, start: str, candidates: _PartitionsByMember
    ) -> list[tuple[str, str, str]]:
        """The shortest way to take one from `start` and give one to somebody with two less:
        (giver, topic, taker) of each step; empty where there is none."""
        enough = self._load[start] - 2
        if min(self._load.values()) > enough:
            return []
        came: dict[str, tuple[str, str]] = {start: ("", "")}
        topics: set[str] = set()
        level = [start]
        while level:
            level = list(self._iter_reachable(level, came, topics, candidates))
            least = min(level, key=lambda name: (self._load[name], name), default=start)
            if self._load[least] <= enough:
                return _trace_chain(came, least)
        return []

    def _iter_reachable(
        self,
        level: Iterable[str],
        came: dict[str, tuple[str, str]],
        topics: set[str],
        candidates: _PartitionsByMember,
    ) -> Iterator[str]:
        """Who can be given something by one of `level`; each member and topic once."""
        for giver in level:
            held = candidates[giver]
            # What it has most of goes first: topics stay mixed.
            for topic in sorted(held, key=lambda name: (-len(held[name]), name)):
                if topic in topics or not held[topic]:
                    continue
                topics.add(topic)
                for taker in self._readers[topic]:
                    if taker not in came:
                        came[taker] = giver, topic
                        yield taker

    def _move_partition(self, giver: str, topic: str, taker: str) -> None:
        """One partition, if possible one that is the taker's, or at least not the giver's."""
        partition = min(
            self._movable[giver][topic] or self._assigned[giver][topic],
            key=lambda one: (self._owners.get(TopicPartition(topic, one)) != taker, -one),
        )
        self._remove_partition(giver, topic, partition)
        self._add_partition(taker, topic, partition)

    def _remove_partition(self, member: str, topic: str, partition: int) -> None:
        self._assigned[member][topic].remove(partition)
        self._movable[member][topic].discard(partition)
        self._load[member] -= 1

    def _add_partition(self, member: str, topic: str, partition: int) -> None:
        self._assigned[member][topic].add(partition)
        if self._owners.get(TopicPartition(topic, partition)) != member:
            self._movable[member][topic].add(partition)
        self._load[member] += 1


def _trace_chain(came: Mapping[str, tuple[str, str]], end: str) -> list[tuple[str, str, str]]:
    """The way back from `end`, the last hand-over first: nobody ever gives what it lacks."""
    steps = []
    giver, topic = came[end]
    while giver:
        steps.append((giver, topic, end))
        end = giver
        giver, topic = came[end]
    return steps
