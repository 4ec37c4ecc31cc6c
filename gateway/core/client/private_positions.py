"""Keep the partitions that a client reads privately, and where it stands in each.

These positions differ from the tail's, or may. A position that came with a token has the lineage
UNVERIFIED_LINEAGE until it was compared with the log. One of a partition that metadata does not
know yet is kept as it came.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.channel.chunk import Chunk, CohortKey
from gateway.core.log.position import RETIRED_EPOCH, UNVERIFIED_LINEAGE, PartitionPosition, Position
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail

from .shared_cursor import SharedCursor
from .terms import PartitionPredicate


class PrivatePositions(dict[TopicPartition, PartitionPosition]):
    """The positions of one client in the partitions that it reads privately.

    Owned by its `PrivateReader`. Only `put`, `detach` and `attach` may change it, because they keep
    the cohort of the client and the state of its snapshot up to date.
    """

    __slots__ = ("_cohort_key", "_cursor", "_issued_at")

    def __init__(self, cursor: SharedCursor) -> None:
        self._cursor = cursor
        self._cohort_key: CohortKey | None = None  # None after a change, until it is needed
        self._issued_at: int | None = None  # of the cohort's ids; None for that of the tail

    def put(self, tp: TopicPartition, position: PartitionPosition) -> None:
        if self._cursor.snapshot is not None:
            self._cursor.snapshot.on_moved(tp, position)
        self[tp] = position
        self._cohort_key = None

    def detach(self, tp: TopicPartition, position: PartitionPosition) -> None:
        """Read a partition privately from where the shared cursor was.

        If that was pending, the position is where the shared read has begun since. A pending
        position that came with a token stays pending: it is of an earlier time than the shared read
        here may be, and is resolved as of that time.
        """
        log = self._cursor.channel.tail.logs.get(tp)
        is_shared = position.lineage != UNVERIFIED_LINEAGE
        if position.is_pending and is_shared and log is not None:
            position = log.initial_position or position
        self.put(tp, position)

    def attach(self, tp: TopicPartition) -> None:
        del self[tp]
        self._cohort_key = None

    def detach_at(self, position: Position) -> set[TopicPartition]:
        """Move the shared cursor to the head; return the partitions that stood elsewhere."""
        tail = self._cursor.channel.tail
        self._cursor.advance_to_head()
        detached: set[TopicPartition] = set()
        for tp, partition_position in position.items():
            # What stood at the head already needs no private reading: it goes on there.
            if tp not in self and partition_position != tail.position[tp]:
                self.detach(tp, partition_position)
                detached.add(tp)
        return detached

    def get_cohort_data(self, chunk: Chunk) -> bytes:
        if self._cohort_key is None:
            # While something is pending, the time of issue has to stay the client's own: it says
            # as of when the partition is to be resolved. So it is a part of what a cohort shares.
            has_pending = any(position.is_pending for position in self.values())
            self._issued_at = self._cursor.resolve_since if has_pending else None
            # Sorted: clients that detached partitions in different orders are still one cohort.
            self._cohort_key = (self._issued_at, *sorted(self.items(), key=lambda item: item[0]))
        return self._cursor.channel.get_cohort_data(chunk, self, self._cohort_key, self._issued_at)

    def has_reached_end(self, tp: TopicPartition) -> bool:
        """Return whether the client is at the end of its stream. An unverified position is not."""
        end_offsets, position = self._cursor.end_offsets, self[tp]
        if end_offsets is None or position.offset is None or position.lineage == UNVERIFIED_LINEAGE:
            return False
        # A partition without an end was added later, and is no part of the stream.
        return position.offset >= end_offsets.get(tp, 0)


class FastForwardPartitions:
    """Partitions of a token that hold nothing for its client.

    They are not read from where the token left them: the client is moved to where the tail stands,
    as soon as that is known. Created by `PrivateReader.apply_terms`. The answer of
    `reads_partition` may change from no to yes when the topic gets more partitions.
    """

    __slots__ = ("_reads_partition", "remaining")

    def __init__(self, reads_partition: PartitionPredicate, positions: PrivatePositions) -> None:
        unread = (
            tp for tp, position in positions.items() if position.lineage == UNVERIFIED_LINEAGE
        )
        self._reads_partition, self.remaining = (
            reads_partition,
            {tp for tp in unread if not reads_partition(tp)},
        )

    def iter_ready(
        self, positions: PrivatePositions, tail: Tail
    ) -> Iterator[tuple[TopicPartition, PartitionPosition]]:
        for tp in list(self.remaining):
            tail_position = tail.position.get(tp)
            if tail_position is not None and tail_position.is_pending:
                continue
            self.remaining.discard(tp)
            if tail_position is not None and self._can_fast_forward(
                tp, positions.get(tp, tail_position), tail_position, tail
            ):
                yield tp, tail_position

    def _can_fast_forward(
        self,
        tp: TopicPartition,
        position: PartitionPosition,
        tail_position: PartitionPosition,
        tail: Tail,
    ) -> bool:
        """Return whether the client may be moved: not back, nor past a topic's recreation."""
        if (
            position.epoch == RETIRED_EPOCH
            or position.lineage != UNVERIFIED_LINEAGE
            or self._reads_partition(tp)
        ):
            return False
        is_ahead = (position.offset or 0) > (tail_position.offset or 0)
        return not is_ahead and not tail.is_retiring(tp)
