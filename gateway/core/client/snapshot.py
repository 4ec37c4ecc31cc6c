"""Keep the partitions that a client's snapshot still has to send before the client is live.

Each partition has a fixed end, which is found when the client has come. A partition that the client
never read is *fresh*: its table is sent, the latest record of each key without tombstones. Of a
partition to which the client comes back, the latest missed record of each key is sent, with
tombstones. A partition that is at its end waits for the others, so that nothing live is sent before
`snapshot-end`. A partition that cannot be read now is not waited for: it is reported as pending,
and its records follow when they can be read.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.filters import MATCH_ALL, Filters
from gateway.core.log.position import UNVERIFIED_LINEAGE, PartitionPosition
from gateway.core.log.record import SnapshotEnd, TopicPartition


class Snapshot:
    """The progress of one client's snapshot.

    Owned by the client's subscription, which forgets it when it is closed and nothing remains. Each
    partition passes through: in `remaining` without an end, in `remaining` with an end, at its end
    (no longer in `remaining`). The snapshot is closed once, when `remaining` is empty or
    `is_overdue` is set.

    Attributes:
        fresh: Partitions of which the client has nothing yet.
        filters: The filters of the view and of its table.
        end_offsets: The end of each partition, as far as it is known.
        is_overdue: The remaining partitions cannot be read now and are not waited for.
        is_closed: The end of the snapshot was sent.
    """

    __slots__ = (
        "end_offsets",
        "filters",
        "fresh",
        "is_closed",
        "is_overdue",
        "records",
        "remaining",
        "topics",
    )

    def __init__(
        self,
        topics: Iterable[str],
        partitions: Iterable[TopicPartition],
        fresh: Iterable[TopicPartition],
        filters: Filters = MATCH_ALL,
    ) -> None:
        self.topics = tuple(topics)
        self.remaining = set(partitions)
        self.fresh = set(fresh)
        self.filters = filters
        self.end_offsets: dict[TopicPartition, int] = {}
        self.records = 0
        self.is_overdue = self.is_closed = False

    def is_fresh(self, tp: TopicPartition) -> bool:
        return tp in self.remaining and tp in self.fresh

    def needs_data(self, tp: TopicPartition) -> bool:
        return tp in self.remaining and (tp in self.fresh or tp not in self.end_offsets)

    def withholds(self, tp: TopicPartition) -> bool:
        """Return whether a partition waits: for its end to be known, or the snapshot to close."""
        return tp not in self.end_offsets if tp in self.remaining else not self.is_closed

    def on_moved(self, tp: TopicPartition, position: PartitionPosition) -> None:
        end = self.end_offsets.get(tp)
        if end is None or position.offset is None or position.lineage == UNVERIFIED_LINEAGE:
            return
        if position.offset >= end:
            self.remaining.discard(tp)

    def set_end(self, tp: TopicPartition, offset: int, position: PartitionPosition) -> None:
        self.end_offsets[tp] = offset
        self.on_moved(tp, position)

    def count_records(self, count: int) -> None:
        self.records += count

    def stop_waiting(self) -> None:
        """Close the snapshot without the partitions that remain: they cannot be read now."""
        self.is_overdue = True

    def forget_end(self, tp: TopicPartition) -> None:
        """Forget the end of a partition whose log went back: it is of the log's past."""
        self.end_offsets.pop(tp, None)

    def close_if_complete(self) -> SnapshotEnd | None:
        if self.is_closed or (self.remaining and not self.is_overdue):
            return None
        self.is_closed = True
        return SnapshotEnd(self.topics, self.records, tuple(sorted(self.remaining)))
