"""Assign partitions to the members of a classic group: cooperative sticky (KIP-429, KIP-54).

One member, the leader, computes the assignment for all. The target is as even as the subscriptions
allow (no chain of moves could take a partition from one member so that another with two fewer gets
one), and a partition moves away from its owner only if that requires it. A partition that is to
move is assigned to nobody as long as a living member holds it: that member gives it up and joins
again, and the next round assigns it. Racks are not considered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

GroupAssignment = dict[str, frozenset[TopicPartition]]


class MemberSubscription(NamedTuple):
    """One member's topics, and the partitions that it owns since a generation (-1: unknown)."""

    member_id: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1


class AssignmentPlan(NamedTuple):
    """The final place of each partition, and the part that can be assigned in this round."""

    target: GroupAssignment
    current: GroupAssignment

    @property
    def is_settled(self) -> bool:
        return self.target == self.current


def assign(
    subscriptions: Sequence[MemberSubscription], partitions: Mapping[str, int]
) -> AssignmentPlan:
    owners = _find_owners(subscriptions)
    balancer = _Balancer(subscriptions, partitions, owners)
    balancer.assign_initial()
    balancer.balance()
    target = balancer.build_assignment()
    return AssignmentPlan(target, _withhold_owned(subscriptions, owners, target))


def _find_owners(subscriptions: Iterable[MemberSubscription]) -> dict[TopicPartition, str]:
    """Return the owner of each partition that is held.

    Of several claims, that of the latest generation counts (KIP-792). Two of the same generation
    contradict each other, so that neither counts.
    """
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, _, owned, generation in subscriptions:
        for tp in owned:
            claim = claims.get(tp)
            if claim is None or generation > claim[0]:
                claims[tp] = generation, member
            elif generation == claim[0]:
                claims[tp] = generation, None
    return {tp: member for tp, (_, member) in claims.items() if member is not None}


def _withhold_owned(
    subscriptions: Iterable[MemberSubscription],
    owners: Mapping[TopicPartition, str],
    target: GroupAssignment,
) -> GroupAssignment:
    held = frozenset().union(*(subscription.owned for subscription in subscriptions))
    return {
        member: frozenset(tp for tp in tps if tp not in held or owners.get(tp) == member)
        for member, tps in target.items()
    }


_PartitionsByMember = dict[str, defaultdict[str, set[int]]]  # member, topic, partitions


class _Balancer:
    """Partitions and the members that have them, while they are being evened out.

    `_load` is the number of partitions of each member. `_assigned` has the partitions of each
    member; `_movable` those of them that a member does not own, because another member owns them or
    nobody does: moving these once more costs nothing.
    """

    def __init__(
        self,
        subscriptions: Sequence[MemberSubscription],
        partitions: Mapping[str, int],
        owners: Mapping[TopicPartition, str],
    ) -> None:
        self._partitions = partitions
        self._owners = owners
        self._load = {subscription.member_id: 0 for subscription in subscriptions}
        self._assigned: _PartitionsByMember = {member: defaultdict(set) for member in self._load}
        self._movable: _PartitionsByMember = {member: defaultdict(set) for member in self._load}
        self._readers: dict[str, tuple[str, ...]] = {
            topic: tuple(
                sorted(
                    subscription.member_id
                    for subscription in subscriptions
                    if topic in subscription.topics
                )
            )
            for topic in sorted(partitions)
        }

    def assign_initial(self) -> None:
        """Assign every partition to its owner, and those without one to members with the fewest."""
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
        """Move partitions until no move, nor a chain of them, makes the assignment more even.

        That is an optimal semi-matching (Harvey et al., 2006). First only movable partitions move,
        so that nothing is taken from its owner if free partitions can even things out.
        """
        for candidates in (self._movable, self._assigned):
            while self._balance_once(candidates):
                pass
        while self._return_to_owners():
            pass

    def _balance_once(self, candidates: _PartitionsByMember) -> bool:
        moved = False
        heap = [(-load, member) for member, load in self._load.items()]
        heapify(heap)
        while heap:
            load_then, member = heap[0]
            if -load_then != self._load[member]:  # the load in the heap is out of date
                heapreplace(heap, (-self._load[member], member))
            elif chain := self._find_chain(member, candidates):
                for step in chain:
                    self._move_partition(*step)
                moved = True
            else:
                heappop(heap)
        return moved

    def _return_to_owners(self) -> bool:
        """Return partitions to owners that could as well have kept them.

        That is so if the holder has more than the owner, or takes another one in exchange.
        """
        moved = False
        for holder, topics in self._movable.items():
            # A list, because the loop changes what is movable.
            for tp in [
                TopicPartition(topic, partition)
                for topic, held in topics.items()
                for partition in held
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
        """Find the shortest chain of moves from a member to one that has two fewer.

        The search is breadth-first and visits each member and each topic once. The result is the
        giver, topic and taker of each move, in order; empty if there is no chain.
        """
        # A taker with only one fewer would end up where the start was: nothing gets more even.
        max_load = self._load[start] - 2
        if min(self._load.values()) > max_load:
            return []
        reached_by: dict[str, tuple[str, str]] = {start: ("", "")}
        topics: set[str] = set()
        level = [start]
        while level:
            level = list(self._iter_reachable(level, reached_by, topics, candidates))
            taker = min(level, key=lambda name: (self._load[name], name), default=start)
            if self._load[taker] <= max_load:
                return _trace_chain(reached_by, taker)
        return []

    def _iter_reachable(
        self,
        level: Iterable[str],
        reached_by: dict[str, tuple[str, str]],
        seen_topics: set[str],
        candidates: _PartitionsByMember,
    ) -> Iterator[str]:
        for giver in level:
            held = candidates[giver]
            # The topic of which it has most goes first, so that topics stay mixed on members.
            for topic in sorted(held, key=lambda name: (-len(held[name]), name)):
                # All readers of a topic are reached by the first giver of it.
                if topic in seen_topics or not held[topic]:
                    continue
                seen_topics.add(topic)
                for taker in self._readers[topic]:
                    if taker not in reached_by:
                        reached_by[taker] = giver, topic
                        yield taker

    def _move_partition(self, giver: str, topic: str, taker: str) -> None:
        """Move a partition, if possible one that the taker owns, or else one the giver does not."""
        partition = min(
            self._movable[giver][topic] or self._assigned[giver][topic],
            key=lambda number: (self._owners.get(TopicPartition(topic, number)) != taker, -number),
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


def _trace_chain(reached_by: Mapping[str, tuple[str, str]], end: str) -> list[tuple[str, str, str]]:
    """Return the moves of a chain, the last one first, so that no member gives what it has not."""
    steps = []
    giver, topic = reached_by[end]
    while giver:
        steps.append((giver, topic, end))
        end = giver
        giver, topic = reached_by[end]
    return steps
