"""Where a stream stands: the next offset to fetch, for every partition.

A place is an offset *in a lineage*. The log of a partition can go back (an unclean
election truncates it, deleting and creating a topic starts it anew); each time it does,
this process counts one lineage further. Places compare by offset within a lineage only;
one that came from a client and has not been held against the log yet is UNVERIFIED.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .record import TopicPartition

UNVERIFIED_LINEAGE = -1
NO_EPOCH = -1
RETIRED_EPOCH = -2


class PartitionPosition(NamedTuple):
    """Where one partition is read next.

    offset:  next offset to fetch; None while nobody knows it (pending).
    epoch:   leader epoch of the record before it; while pending, the epoch known when
             the client connected; NO_EPOCH if none is known. RETIRED, in a token: the offset
             is of an earlier topic of this name.
    lineage: how often this process saw the log go back, or UNVERIFIED.
    """

    offset: int | None
    epoch: int = NO_EPOCH
    lineage: int = 0

    @property
    def is_pending(self) -> bool:
        return self.offset is None

    def is_behind(self, other: PartitionPosition) -> bool:
        """In the same lineage, and both are known."""
        if self.lineage != other.lineage or self.offset is None or other.offset is None:
            return False
        return self.offset < other.offset


Position: TypeAlias = dict[TopicPartition, PartitionPosition]
