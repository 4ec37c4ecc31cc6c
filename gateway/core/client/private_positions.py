"""The partitions that a client reads alone, and where it stands in each.

These places differ from the tail's, or may. One that came with a token is UNVERIFIED until it was
held against the log; one of a partition that metadata does not know yet is kept as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from gateway.core.channel.channel import Chunk, CohortKey
from gateway.core.log.position import RETIRED_EPOCH, UNVERIFIED_LINEAGE, PartitionPosition, Position
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail

from .shared_cursor import SharedCursor

PartitionPredicate: TypeAlias = Callable[[TopicPartition], bool]


class PrivatePositions(dict[TopicPartition, PartitionPosition]):
    """See the module. Set by `put` and taken out by `give_back`."""

    __slots__ = ("_cohort_key", "_cursor", "_issued_at")

    def __init__(self, cursor: SharedCursor) -> None:
        self._cursor = cursor
        self._cohort_key: CohortKey | None = None  # of those who miss the same
        self._issued_at: int | None = None

    def put(self, tp: TopicPartition, place: PartitionPosition) -> None:
        """Read it alone from here on."""
        if self._cursor.snapshot is not None:
            self._cursor.snapshot.on_moved(tp, place)
        self[tp] = place
        self._cohort_key = None

    def detach(self, tp: TopicPartition, place: PartitionPosition) -> None:
        """Read it alone from where the ride was. While that was pending, it is where the shared
        read has begun since."""
        log = self._cursor.channel.tail.logs.get(tp)
        if place.is_pending and log is not None:
            place = log.initial_position or place
        self.put(tp, place)

    def attach(self, tp: TopicPartition) -> None:
        """It stands where the tail stands: it rides from here on."""
        del self[tp]
        self._cohort_key = None

    def detach_at(self, position: Position) -> set[TopicPartition]:
        """Leave the ride at this position; the partitions that are to be read alone from it."""
        channel, tail = self._cursor.channel, self._cursor.channel.tail
        self._cursor.next_seq = channel.next_seq
        parted: set[TopicPartition] = set()
        for tp, place in position.items():
            if tp not in self and place != tail.position[tp]:
                self.detach(tp, place)
                parted.add(tp)
        return parted

    def get_cohort_data(self, chunk: Chunk) -> bytes:
        """What is left of a chunk for those who ride without these."""
        if self._cohort_key is None:
            pending = any(place.is_pending for place in self.values())
            self._issued_at = self._cursor.resolve_since if pending else None
            self._cohort_key = (self._issued_at, *sorted(self.items(), key=lambda item: item[0]))
        return self._cursor.channel.get_cohort_data(chunk, self, self._cohort_key, self._issued_at)

    def has_reached_end(self, tp: TopicPartition) -> bool:
        """Did it come to where the client's stream ends? An unverified place has come nowhere:
        its offset may be of another log."""
        until, place = self._cursor.end_offsets, self[tp]
        if until is None or place.offset is None or place.lineage == UNVERIFIED_LINEAGE:
            return False
        return place.offset >= until.get(tp, 0)


class FastForwardPartitions:
    """Partitions of a token that hold nothing for its client: it is not read from there, but taken
    to where the tail stands, as soon as that is known.

    reads: may a partition hold what the client sees? It may once there are more of them.
    left:  those of which it is not known yet.
    """

    __slots__ = ("_reads_partition", "remaining")

    def __init__(self, reads_partition: PartitionPredicate, positions: PrivatePositions) -> None:
        unread = (tp for tp, place in positions.items() if place.lineage == UNVERIFIED_LINEAGE)
        self._reads_partition, self.remaining = (
            reads_partition,
            {tp for tp in unread if not reads_partition(tp)},
        )

    def iter_ready(
        self, positions: PrivatePositions, tail: Tail
    ) -> Iterator[tuple[TopicPartition, PartitionPosition]]:
        """Where those go on of which that is known by now."""
        for tp in list(self.remaining):
            now = tail.position.get(tp)
            if now is not None and now.is_pending:
                continue
            self.remaining.discard(tp)
            if now is not None and self._can_fast_forward(tp, positions.get(tp, now), now, tail):
                yield tp, now

    def _can_fast_forward(
        self, tp: TopicPartition, place: PartitionPosition, now: PartitionPosition, tail: Tail
    ) -> bool:
        """No id goes back, and of a topic created anew it is told."""
        if (
            place.epoch == RETIRED_EPOCH
            or place.lineage != UNVERIFIED_LINEAGE
            or self._reads_partition(tp)
        ):
            return False
        ahead = (place.offset or 0) > (now.offset or 0)
        return not ahead and not tail.is_retiring(tp)
