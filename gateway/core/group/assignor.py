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

Assignment = dict[str, frozenset[TopicPartition]]


class Claim(NamedTuple):
    """What one member says as it joins.

    owned:      what it reads now. generation: of the group, when it was given that; -1 unknown.
    """

    member: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1


class Plan(NamedTuple):
    """target: where everything shall be. now: what of it can be given out in this round."""

    target: Assignment
    now: Assignment

    @property
    def settled(self) -> bool:
        return self.target == self.now


def assign(claims: Sequence[Claim], partitions: Mapping[str, int]) -> Plan:
    """The next assignment. partitions: how many each topic has; topics without are not assigned."""
    owners = _owners(claims)
    spread = _Spread(claims, partitions, owners)
    spread.place()
    spread.even()
    target = spread.assignment()
    return Plan(target, _given(claims, owners, target))


def _owners(claims: Iterable[Claim]) -> dict[TopicPartition, str]:
    """Who holds what. The later generation is believed (KIP-792), of two in the same, neither."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, _, owned, generation in claims:
        for tp in owned:
            known = best.get(tp)
            if known is None or generation > known[0]:
                best[tp] = generation, member
            elif generation == known[0]:
                best[tp] = generation, None
    return {tp: member for tp, (_, member) in best.items() if member is not None}


def _given(
    claims: Iterable[Claim], owners: Mapping[TopicPartition, str], target: Assignment
) -> Assignment:
    """`target` without what others than the new owner still hold."""
    held = frozenset().union(*(claim.owned for claim in claims))
    return {
        member: frozenset(tp for tp in tps if tp not in held or owners.get(tp) == member)
        for member, tps in target.items()
    }


_Held = dict[str, defaultdict[str, set[int]]]  # member, topic, partitions


class _Spread:
    """Partitions on members while they are evened out. `_loose` has what is held by others than
    the owner, or has none: to move it on costs nothing."""

    def __init__(
        self,
        claims: Sequence[Claim],
        partitions: Mapping[str, int],
        owners: Mapping[TopicPartition, str],
    ) -> None:
        self._partitions = partitions
        self._owners = owners
        self._load = {claim.member: 0 for claim in claims}
        self._held: _Held = {member: defaultdict(set) for member in self._load}
        self._loose: _Held = {member: defaultdict(set) for member in self._load}
        self._readers: dict[str, tuple[str, ...]] = {
            topic: tuple(sorted(c.member for c in claims if topic in c.topics))
            for topic in sorted(partitions)
        }

    def place(self) -> None:
        """Everything to its owner, and what has none to whoever has the least."""
        free = [tp for tp in self._all() if not self._keep(tp)]
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
            self._add(heap[0][1], topic, partition)

    def even(self) -> None:
        """Until no hand-over, nor a chain of them, makes it more even (an optimal
        semi-matching: Harvey et al., 2006): first of what nobody would have to give up, so that
        what is even already, with what is free, moves nothing."""
        for within in (self._loose, self._held):
            while self._level(within):
                pass
        while self._return():
            pass

    def _level(self, within: _Held) -> bool:
        """Take from who has the most as long as there is somebody to give to."""
        moved = False
        heap = [(-load, member) for member, load in self._load.items()]
        heapify(heap)
        while heap:
            known, member = heap[0]
            if -known != self._load[member]:  # it was given something since
                heapreplace(heap, (-self._load[member], member))
            elif chain := self._chain(member, within):
                for step in chain:
                    self._hand(*step)
                moved = True
            else:
                heappop(heap)
        return moved

    def _return(self) -> bool:
        """Back to the owner what it could as well have kept: its holder has one more anyway, or
        takes something else for it."""
        moved = False
        for holder, topics in self._loose.items():
            for tp in [
                TopicPartition(topic, one) for topic, held in topics.items() for one in held
            ]:
                owner = self._owners.get(tp)
                if owner is None or owner not in self._readers[tp.topic]:
                    continue
                if self._load[holder] <= self._load[owner]:
                    if (other := self._exchanged(owner, holder)) is None:
                        continue
                    self._hand(owner, other, holder)
                self._take(holder, *tp)
                self._add(owner, *tp)
                moved = True
        return moved

    def _exchanged(self, giver: str, taker: str) -> str | None:
        """A topic of which one could give another a partition that is not its own."""
        topics = (topic for topic, held in self._loose[giver].items() if held)
        return next((topic for topic in topics if taker in self._readers[topic]), None)

    def assignment(self) -> Assignment:
        return {
            member: frozenset(
                TopicPartition(topic, partition)
                for topic, held in topics.items()
                for partition in held
            )
            for member, topics in self._held.items()
        }

    def _all(self) -> Iterator[TopicPartition]:
        for topic, readers in self._readers.items():
            if readers:
                for partition in range(self._partitions[topic]):
                    yield TopicPartition(topic, partition)

    def _keep(self, tp: TopicPartition) -> bool:
        owner = self._owners.get(tp)
        if owner is None or owner not in self._readers[tp.topic]:
            return False
        self._add(owner, *tp)
        return True

    def _chain(self, start: str, within: _Held) -> list[tuple[str, str, str]]:
        """The shortest way to take one from `start` and give one to somebody with two less:
        (giver, topic, taker) of each step; empty where there is none."""
        enough = self._load[start] - 2
        if min(self._load.values()) > enough:
            return []
        came: dict[str, tuple[str, str]] = {start: ("", "")}
        topics: set[str] = set()
        level = [start]
        while level:
            level = list(self._reached(level, came, topics, within))
            least = min(level, key=lambda name: (self._load[name], name), default=start)
            if self._load[least] <= enough:
                return _steps(came, least)
        return []

    def _reached(
        self,
        level: Iterable[str],
        came: dict[str, tuple[str, str]],
        topics: set[str],
        within: _Held,
    ) -> Iterator[str]:
        """Who can be given something by one of `level`; each member and topic once."""
        for giver in level:
            held = within[giver]
            # What it has most of goes first: topics stay mixed.
            for topic in sorted(held, key=lambda name: (-len(held[name]), name)):
                if topic in topics or not held[topic]:
                    continue
                topics.add(topic)
                for taker in self._readers[topic]:
                    if taker not in came:
                        came[taker] = giver, topic
                        yield taker

    def _hand(self, giver: str, topic: str, taker: str) -> None:
        """One partition, if possible one that is the taker's, or at least not the giver's."""
        partition = min(
            self._loose[giver][topic] or self._held[giver][topic],
            key=lambda one: (self._owners.get(TopicPartition(topic, one)) != taker, -one),
        )
        self._take(giver, topic, partition)
        self._add(taker, topic, partition)

    def _take(self, member: str, topic: str, partition: int) -> None:
        self._held[member][topic].remove(partition)
        self._loose[member][topic].discard(partition)
        self._load[member] -= 1

    def _add(self, member: str, topic: str, partition: int) -> None:
        self._held[member][topic].add(partition)
        if self._owners.get(TopicPartition(topic, partition)) != member:
            self._loose[member][topic].add(partition)
        self._load[member] += 1


def _steps(came: Mapping[str, tuple[str, str]], end: str) -> list[tuple[str, str, str]]:
    """The way back from `end`, the last hand-over first: nobody ever gives what it lacks."""
    steps = []
    giver, topic = came[end]
    while giver:
        steps.append((giver, topic, end))
        end = giver
        giver, topic = came[end]
    return steps
