"""Define the entries of a partition's log, and the positions between them.

Everything that moves a position is an *entry*: a record, skipped offsets, a gap, or a change of
state. Entries of one partition follow each other in offset order. Each says at which offset it
starts and which offset is to be fetched next, so a position is never guessed from a jump of
offsets: holes that compaction, aborted transactions and control batches leave are covered by a
`Skip`, while records that Kafka no longer has are reported as a `Gap`.

Every entry has the fields `tp`, `offset` and `epoch` and a `next_offset`. They are named tuples
because one is made per record; `type(entry) is Record` tells them apart on the hot paths.

A position is the next offset to fetch, for every partition. An offset is meaningful only within a
*lineage*. The log of a partition can go back (an unclean election truncates it; deleting and
creating a topic starts it again at 0). Each time it does, this process counts the partition's
lineage up by one. Offsets can therefore be compared within one lineage only. A position that came
from a client and was not compared with the log yet has the lineage UNVERIFIED_LINEAGE.

`Readiness` decides when a stream of merged partitions may begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

HEADER_OVERHEAD_BYTES = 64  # bytes that a header takes in memory beside its name and content


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """One record of Kafka, with the leader epoch of its batch and a timestamp in ms since 1970.

    The value is None for a tombstone. The name of a header may occur more than once.
    """

    tp: TopicPartition
    offset: int
    epoch: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @property
    def payload_size(self) -> int:
        size = len(self.key or b"") + len(self.value or b"")
        for name, content in self.headers:
            size += len(name) + len(content or b"")
        return size


class Skip(NamedTuple):
    """Offsets that hold nothing to deliver: control batches, aborted or compacted records."""

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int


class GapReason(StrEnum):
    """Why records are missing; the `reason` of a `gap` event."""

    RETENTION = "retention"
    SKIPPED = "skipped"
    TRUNCATED = "truncated"
    RECREATED = "recreated"
    COMPACTED = "compacted"
    CORRUPT = "corrupt"
    TOO_LARGE = "too-large"
    POSITION_REFUSED = "position-refused"


# Gaps of these reasons say that the log itself went back: offsets from `next_offset` on will be
# written again with other records. They are the only gaps that may lead to a lower offset.
REWIND_REASONS = frozenset({GapReason.TRUNCATED, GapReason.RECREATED})
# Kafka has the records, and they cannot be read here. Whoever has no gap to tell stops there.
UNREADABLE_REASONS = frozenset({GapReason.CORRUPT, GapReason.TOO_LARGE})


class Gap(NamedTuple):
    """Records between two offsets that Kafka no longer has, or that will not be sent.

    `next_offset` is below `offset` only if the log itself went back (see `REWIND_REASONS`). The
    epoch is that of the answer that revealed the gap, not that of a record.
    """

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    reason: GapReason


class Ready(NamedTuple):
    """The partition can be read, for the first time or again, from `next_offset` on.

    If `is_approximate`, the start was found by timestamp and not by offset, so that some records
    from before it may be sent too.
    """

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    is_approximate: bool = False


class Fault(NamedTuple):
    """The partition cannot be read, for a reason that its clients are informed of."""

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    cause: str


Entry: TypeAlias = Record | Skip | Gap | Ready | Fault


class SnapshotEnd(NamedTuple):
    """The end of a client's snapshot, which no log holds. Records of pending partitions follow."""

    topics: tuple[str, ...]
    records: int
    pending: tuple[TopicPartition, ...] = ()


StreamItem: TypeAlias = Entry | SnapshotEnd


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


@dataclass(slots=True)
class Readiness:
    """Track which partitions of a topic set can be read.

    A client is answered (BEGIN) as soon as one partition can be read, or after the readiness
    timeout, whichever comes first: the slowest partition must not delay all others.

    One instance per topic set, owned by its `Tail`. A ready partition is always one of
    `partitions`, to which metadata may still add. Times are in seconds of any monotonic clock.
    """

    partitions: set[TopicPartition] = field(default_factory=set)
    _ready: set[TopicPartition] = field(default_factory=set)

    def mark_ready(self, partition: TopicPartition) -> None:
        self.partitions.add(partition)
        self._ready.add(partition)

    def mark_pending(self, partition: TopicPartition) -> None:
        """Record that a partition cannot be read now. Streams that have begun stay open."""
        self._ready.discard(partition)

    def should_begin(self, deadline: float, now: float) -> bool:
        return bool(self._ready) or now >= deadline

    def list_pending(self) -> Sequence[TopicPartition]:
        return sorted(self.partitions - self._ready)
