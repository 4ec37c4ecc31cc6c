"""What a partition holds, as the gateway sees it: records, gaps and skips.

Everything that moves a position is an *entry*. Entries of one partition follow each
other in offset order, and each says from which offset it starts and at which the next
one is to be fetched, so a position is never guessed from a jump of offsets: holes left
by compaction, by aborted transactions and by control batches are covered by the entry
after them, while records that Kafka no longer has are told as a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """One record of Kafka. `timestamp` in milliseconds; `epoch` is its batch's leader epoch."""

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
    POSITION_REFUSED = "position-refused"


# The log itself went back: what lies before `next` is of its past.
REWIND_REASONS = frozenset({GapReason.TRUNCATED, GapReason.RECREATED})


class Gap(NamedTuple):
    """Records that Kafka no longer has, or that will not be sent.

    offset: where the stream stood.
    next:   where it goes on. Below `offset` only when the log itself went back
            (`truncated`, `recreated`).
    """

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    reason: GapReason


class Ready(NamedTuple):
    """The partition can be read (again), from `next` on.

    approximate: the start was found by time, not by offset; older records may come too.
    """

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    approximate: bool = False


class Fault(NamedTuple):
    """The partition cannot be read for a reason its clients should hear of."""

    tp: TopicPartition
    offset: int
    next_offset: int
    epoch: int
    cause: str


Entry: TypeAlias = Record | Skip | Gap | Ready | Fault


class SnapshotEnd(NamedTuple):
    """A client has the latest of every key up to its start; what follows is live. Not an entry:
    no log has it.

    records: how many it was sent. pending: what could not be read, and comes when it can.
    """

    topics: tuple[str, ...]
    records: int
    pending: tuple[TopicPartition, ...] = ()


StreamItem: TypeAlias = Entry | SnapshotEnd
