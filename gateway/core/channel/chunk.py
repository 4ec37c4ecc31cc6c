"""Hold one update of a channel as it goes on the wire, and the events that it was encoded from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.core.log.record import Gap, TopicPartition

from .byte_counts import ByteSum

CHUNK_OVERHEAD_BYTES = 256  # bytes that a chunk costs beside its data


class ChannelEvent(NamedTuple):
    """One event, not on a wire yet.

    Attributes:
        tp: The partition whose position it moves; None for an event that every client may get,
            wherever it stands in the partition.
        payload: The part that all clients of the view share: everything but the id.
        timestamp: The timestamp of a record, in milliseconds since 1970.
    """

    tp: TopicPartition | None
    payload: bytes
    token_text: bytes | None
    timestamp: int | None = None


CohortKey = tuple[object, ...]  # equal for the clients that get the same bytes of every chunk


@dataclass(slots=True)
class Chunk:
    """One update as it goes on the wire.

    Attributes:
        ending_partitions: Partitions whose gap ends the clients that get the chunk.
        is_only_ready: It says nothing but that partitions became ready.
        total_before: The total of its channel before it; None on wires without sums.
        cohort_data: The bytes by cohort, encoded when the first client of a cohort needs them.
    """

    update_seq: int
    events: list[ChannelEvent]
    data: bytes
    ending_partitions: frozenset[TopicPartition] = frozenset()
    is_only_ready: bool = False
    total_before: ByteSum | None = None
    cohort_data: dict[CohortKey, bytes] | None = None
    gaps: Sequence[Gap] = ()
    traced_records: Sequence[Any] = ()

    @property
    def size(self) -> int:
        # Twice the data: the events hold their payloads once more.
        size = CHUNK_OVERHEAD_BYTES + 2 * len(self.data)
        return size if self.cohort_data is None else size + sum(map(len, self.cohort_data.values()))
