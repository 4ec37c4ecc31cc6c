"""The partitions that a client reads alone, and where it stands in each.

These places differ from the tail's, or may. One that came with a token is UNVERIFIED until it was
held against the log; one of a partition that metadata does not know yet is kept as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from gateway.core.channel.channel import Chunk, CohortKey
from gateway.core.log.position import RETIRED, UNVERIFIED, Place, Position
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail

from .shared_cursor import Ride

Reads: TypeAlias = Callable[[TopicPartition], bool]


class Own(dict[TopicPartition, Place]):
    """See the module. Set by `put` and taken out by `give_back`."""

    __slots__ = ("_issued", "_key", "_ride")

    def __init__(self, ride: Ride) -> None:
        self._ride = ride
        self._key: CohortKey | None = None  # of those who miss the same
        self._issued: int | None = None

    def put(self, tp: TopicPartition, place: Place) -> None:
        """Read it alone from here on."""
        if self._ride.snapshot is not None:
            self._ride.snapshot.moved(tp, place)
        self[tp] = place
        self._key = None

    def leave(self, tp: TopicPartition, place: Place) -> None:
        """Read it alone from where the ride was. While that was pending, it is where the shared
        read has begun since."""
        log = self._ride.channel.tail.logs.get(tp)
        if place.pending and log is not None:
            place = log.origin or place
        self.put(tp, place)

    def give_back(self, tp: TopicPartition) -> None:
        """It stands where the tail stands: it rides from here on."""
        del self[tp]
        self._key = None

    def part(self, position: Position) -> set[TopicPartition]:
        """Leave the ride at this position; the partitions that are to be read alone from it."""
        channel, tail = self._ride.channel, self._ride.channel.tail
        self._ride.cursor = channel.head
        parted: set[TopicPartition] = set()
        for tp, place in position.items():
            if tp not in self and place != tail.position[tp]:
                self.leave(tp, place)
                parted.add(tp)
        return parted

    def without(self, chunk: Chunk) -> bytes:
        """What is left of a chunk for those who ride without these."""
        if self._key is None:
            pending = any(place.pending for place in self.values())
            self._issued = self._ride.since if pending else None
            self._key = (self._issued, *sorted(self.items(), key=lambda item: item[0]))
        return self._ride.channel.cohort(chunk, self, self._key, self._issued)

    def is_through(self, tp: TopicPartition) -> bool:
        """Did it come to where the client's stream ends? An unverified place has come nowhere:
        its offset may be of another log."""
        until, place = self._ride.until, self[tp]
        if until is None or place.offset is None or place.lineage == UNVERIFIED:
            return False
        return place.offset >= until.get(tp, 0)


class Spared:
    """Partitions of a token that hold nothing for its client: it is not read from there, but taken
    to where the tail stands, as soon as that is known.

    reads: may a partition hold what the client sees? It may once there are more of them.
    left:  those of which it is not known yet.
    """

    __slots__ = ("_reads", "left")

    def __init__(self, reads: Reads, own: Own) -> None:
        unread = (tp for tp, place in own.items() if place.lineage == UNVERIFIED)
        self._reads, self.left = reads, {tp for tp in unread if not reads(tp)}

    def passed(self, own: Own, tail: Tail) -> Iterator[tuple[TopicPartition, Place]]:
        """Where those go on of which that is known by now."""
        for tp in list(self.left):
            now = tail.position.get(tp)
            if now is not None and now.pending:
                continue
            self.left.discard(tp)
            if now is not None and self._may_pass(tp, own.get(tp, now), now, tail):
                yield tp, now

    def _may_pass(self, tp: TopicPartition, place: Place, now: Place, tail: Tail) -> bool:
        """No id goes back, and of a topic created anew it is told."""
        if place.epoch == RETIRED or place.lineage != UNVERIFIED or self._reads(tp):
            return False
        ahead = (place.offset or 0) > (now.offset or 0)
        return not ahead and not tail.is_retiring(tp)
