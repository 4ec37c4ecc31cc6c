"""Define the position of a stream: the next offset to fetch, for every partition.

An offset is meaningful only within a *lineage*. The log of a partition can go back (an unclean
election truncates it; deleting and creating a topic starts it again at 0). Each time it does, this
process counts the partition's lineage up by one. Offsets can therefore be compared within one
lineage only. A position that came from a client and was not compared with the log yet has the
lineage UNVERIFIED_LINEAGE.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .record import TopicPartition

UNVERIFIED_LINEAGE = -1  # the lineage of a client's position before it was checked
NO_EPOCH = -1  # no leader epoch is known; also Kafka's own value for that
RETIRED_EPOCH = -2  # in tokens only: the offset is of an earlier topic of the same name


class PartitionPosition(NamedTuple):
    """The place where one partition is read next.

    Attributes:
        offset: The next offset to fetch; None while nobody knows it (pending).
        epoch: The leader epoch of the record before it; while pending, the epoch that was known
            when the client connected; RETIRED_EPOCH, in tokens, if the offset is of an earlier
            topic of this name.
        lineage: How often this process saw the log go back, or UNVERIFIED_LINEAGE.
    """

    offset: int | None
    epoch: int = NO_EPOCH
    lineage: int = 0

    @property
    def is_pending(self) -> bool:
        return self.offset is None

    def is_behind(self, other: PartitionPosition) -> bool:
        """Return whether both offsets are known, of the same lineage, and this one is lower."""
        if self.lineage != other.lineage or self.offset is None or other.offset is None:
            return False
        return self.offset < other.offset


Position: TypeAlias = dict[TopicPartition, PartitionPosition]
