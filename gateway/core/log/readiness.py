"""Decide when a merged stream may begin.

A client is answered (BEGIN) as soon as one partition can be read, or after the readiness timeout,
whichever comes first: the slowest partition must not delay all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .record import TopicPartition


@dataclass(slots=True)
class Readiness:
    """Track which partitions of a topic set can be read.

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
