"""What a client that begins with a snapshot is still to be told before it is live.

Each partition has a fixed end, found out when the client has come. A partition that the client
never read is *fresh*: the table of it is sent, the latest of each key without tombstones. In one
that it comes back to, what it missed is sent, the latest of each key with tombstones. One that
is at its end waits for the others, so that nothing live comes before `snapshot-end`; unless a
partition cannot be read now: it is told as pending, and comes when it can.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.filters import ALL, Filters
from gateway.core.log.position import UNVERIFIED, Place
from gateway.core.log.record import SnapshotEnd, TopicPartition


class Snapshot:
    """partitions: all of the view's. fresh: those of which the client has nothing. filters: of the
    view; its table is of what they let through.

    ends:    offsets, as far as they are known yet.
    left:    partitions that are not at their ends.
    overdue: those that are left cannot be read now; they are not waited for.
    """

    __slots__ = ("ends", "filters", "fresh", "left", "overdue", "records", "told", "topics")

    def __init__(
        self,
        topics: Iterable[str],
        partitions: Iterable[TopicPartition],
        fresh: Iterable[TopicPartition],
        filters: Filters = ALL,
    ) -> None:
        self.topics = tuple(topics)
        self.left = set(partitions)
        self.fresh = set(fresh)
        self.filters = filters
        self.ends: dict[TopicPartition, int] = {}
        self.records = 0
        self.overdue = self.told = False

    def is_fresh(self, tp: TopicPartition) -> bool:
        """Is its table being sent?"""
        return tp in self.left and tp in self.fresh

    def seeks(self, tp: TopicPartition) -> bool:
        """Is something of it to be found out, or to be brought?"""
        return tp in self.left and (tp in self.fresh or tp not in self.ends)

    def holds(self, tp: TopicPartition) -> bool:
        """Is nothing more of it to be sent for now?"""
        return tp not in self.ends if tp in self.left else not self.told

    def moved(self, tp: TopicPartition, place: Place) -> None:
        """Its place is another one."""
        end = self.ends.get(tp)
        if end is None or place.offset is None or place.lineage == UNVERIFIED:
            return
        if place.offset >= end:
            self.left.discard(tp)

    def parted(self, tp: TopicPartition) -> None:
        """Its log went back: the end that is known is of its past."""
        self.ends.pop(tp, None)

    def end(self) -> SnapshotEnd | None:
        """What closes it, once, when that is due."""
        if self.told or (self.left and not self.overdue):
            return None
        self.told = True
        return SnapshotEnd(self.topics, self.records, tuple(sorted(self.left)))
