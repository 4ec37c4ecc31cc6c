"""What a client that begins with a snapshot is still to be told before it is live.

Each partition has a fixed end, found out when the client has come. A partition that the client
never read is *fresh*: the table of it is sent, the latest of each key without tombstones. In one
that it comes back to, what it missed is sent, the latest of each key with tombstones. One that
is at its end waits for the others, so that nothing live comes before `snapshot-end`; unless a
partition cannot be read now: it is told as pending, and comes when it can.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.filters import MATCH_ALL, Filters
from gateway.core.log.position import UNVERIFIED_LINEAGE, PartitionPosition
from gateway.core.log.record import SnapshotEnd, TopicPartition


class Snapshot:
    """partitions: all of the view's. fresh: those of which the client has nothing. filters: of the
    view; its table is of what they let through.

    ends:    offsets, as far as they are known yet.
    left:    partitions that are not at their ends.
    overdue: those that are left cannot be read now; they are not waited for.
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
        """Is its table being sent?"""
        return tp in self.remaining and tp in self.fresh

    def needs_data(self, tp: TopicPartition) -> bool:
        """Is something of it to be found out, or to be brought?"""
        return tp in self.remaining and (tp in self.fresh or tp not in self.end_offsets)

    def withholds(self, tp: TopicPartition) -> bool:
        """Is nothing more of it to be sent for now?"""
        return tp not in self.end_offsets if tp in self.remaining else not self.is_closed

    def on_moved(self, tp: TopicPartition, place: PartitionPosition) -> None:
        """Its place is another one."""
        end = self.end_offsets.get(tp)
        if end is None or place.offset is None or place.lineage == UNVERIFIED_LINEAGE:
            return
        if place.offset >= end:
            self.remaining.discard(tp)

    def forget_end(self, tp: TopicPartition) -> None:
        """Its log went back: the end that is known is of its past."""
        self.end_offsets.pop(tp, None)

    def close_if_complete(self) -> SnapshotEnd | None:
        """What closes it, once, when that is due."""
        if self.is_closed or (self.remaining and not self.is_overdue):
            return None
        self.is_closed = True
        return SnapshotEnd(self.topics, self.records, tuple(sorted(self.remaining)))
