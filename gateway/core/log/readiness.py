"""When a merged stream may begin.

A client is answered (BEGIN) as soon as one partition can be read, or when the
readiness timeout has passed, whichever comes first: the slowest partition must not
decide for all. Sans-I/O: time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .record import TopicPartition


@dataclass(slots=True)
class Readiness:
    """Tracks which partitions of a topic set can be read.

    partitions: all that are known by now; metadata may still bring some.
    """

    partitions: set[TopicPartition] = field(default_factory=set)
    _ready: set[TopicPartition] = field(default_factory=set)

    def mark_ready(self, partition: TopicPartition) -> None:
        """Note that a partition can be read."""
        self.partitions.add(partition)
        self._ready.add(partition)

    def mark_pending(self, partition: TopicPartition) -> None:
        """It cannot be read now: pending again. Streams that began stay begun."""
        self._ready.discard(partition)

    def should_begin(self, deadline: float, now: float) -> bool:
        """Is BEGIN due for a client whose readiness timeout ends at `deadline`?"""
        return bool(self._ready) or now >= deadline

    def list_pending(self) -> Sequence[TopicPartition]:
        return sorted(self.partitions - self._ready)
