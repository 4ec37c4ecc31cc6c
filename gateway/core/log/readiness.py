"""Decide when a merged stream may begin.

A client is answered (BEGIN) as soon as one partition can be read, or when the readiness timeout has
passed, whichever comes first: the slowest partition must not delay all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .record import TopicPartition


@dataclass(slots=True)
class Readiness:
    """Track which partitions of a topic set can be read.

    One instance per topic set, owned by its `Tail`. A ready partition is always one of
    `partitions`. Sans-I/O: callers pass the time, in seconds of any monotonic clock.

    Attributes:
        partitions: All partitions that are known by now; metadata may still add some.
    """

    partitions: set[TopicPartition] = field(default_factory=set)
    _ready: set[TopicPartition] = field(default_factory=set)

    def mark_ready(self, partition: TopicPartition) -> None:
        """Record that a partition can be read."""
        self.partitions.add(partition)
        self._ready.add(partition)

    def mark_pending(self, partition: TopicPartition) -> None:
        """Record that a partition cannot be read now. Streams that have begun stay open."""
        self._ready.discard(partition)

    def should_begin(self, deadline: float, now: float) -> bool:
        """Return whether BEGIN is due.

        Args:
            deadline: When the client's readiness timeout expires, in seconds of the same clock as
                `now`.
            now: The current time in seconds of any monotonic clock.
        """
        return bool(self._ready) or now >= deadline

    def list_pending(self) -> Sequence[TopicPartition]:
        """Return the known partitions that cannot be read now, in order."""
        return sorted(self.partitions - self._ready)
