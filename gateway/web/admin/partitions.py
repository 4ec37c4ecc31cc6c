"""Describe how far a stream is in each of its partitions, and what keeps it from going on.

Nothing is asked of Kafka: the stream's position and the last response of each partition's shared
read say it all, so the answer is as quick while a broker is away.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gateway.core.log.partition_reader import PartitionReader
from gateway.core.log.record import PartitionPosition, TopicPartition
from gateway.core.log.recovery import Cause
from gateway.hub.reads.shared_reads import STALE_S, SharedRead


class PartitionState(StrEnum):
    """How a stream fares in one partition; the first that applies.

    Attributes:
        ENDED: The stream has all up to its own end in the partition.
        FAILING: The partition cannot be read; its cause says why.
        PENDING: The partition cannot be read yet, or the start of the stream is still to be found.
        BEHIND: The partition has records that the stream was not sent yet.
    """

    ENDED = "ended"
    LEADERLESS = "leaderless"
    FAILING = "failing"
    PENDING = "pending"
    BEHIND = "behind"
    LIVE = "live"


def describe_partitions(
    position: Mapping[TopicPartition, PartitionPosition],
    shared_reads: Mapping[TopicPartition, SharedRead],
    stop_offsets: Mapping[TopicPartition, int] | None,
    now: float,
) -> list[dict[str, Any]]:
    """Return the partitions of a stream as JSON, in order; `now` is by the loop's clock."""
    return [
        _describe_partition(
            tp, position[tp], shared_reads.get(tp), (stop_offsets or {}).get(tp), now
        )
        for tp in sorted(position)
    ]


def _describe_partition(
    tp: TopicPartition,
    position: PartitionPosition,
    shared_read: SharedRead | None,
    stop_offset: int | None,
    now: float,
) -> dict[str, Any]:
    reader = None if shared_read is None else shared_read.reader
    end_offset = None if reader is None else _get_end_offset(reader)
    lag = None
    # Offsets of different lineages, before and after the log went back, cannot be compared.
    if (
        end_offset is not None
        and position.offset is not None
        and shared_read is not None
        and position.lineage == shared_read.log.lineage
    ):
        lag = max(0, end_offset - position.offset)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "nextOffset": position.offset,
        "endOffset": end_offset,
        "lag": lag,
        "state": _get_state(position, reader, stop_offset, lag, now),
        "cause": None if reader is None else reader.cause,
    }


def _get_end_offset(reader: PartitionReader) -> int | None:
    """Return the known end of a partition; None before its start is found."""
    # Before the first fetch only the start is known, and what precedes it is there.
    offset = reader.position.offset
    return None if offset is None else max(offset, reader.last_stable_offset)


def _get_state(
    position: PartitionPosition,
    reader: PartitionReader | None,
    stop_offset: int | None,
    lag: int | None,
    now: float,
) -> PartitionState:
    if stop_offset is not None and position.offset is not None and position.offset >= stop_offset:
        return PartitionState.ENDED
    if reader is None:
        return PartitionState.PENDING
    if reader.cause is Cause.NO_LEADER or (reader.cause is None and reader.leader is None):
        return PartitionState.LEADERLESS
    # An offset out of range is no failure: the reader finds another one at once.
    if reader.cause not in (None, Cause.OUT_OF_RANGE):
        return PartitionState.FAILING
    # A leader that froze reports nothing, it only does not answer.
    is_readable = reader.is_ready and now - reader.last_response_at <= STALE_S
    if not is_readable or position.is_pending:
        return PartitionState.PENDING
    return PartitionState.LIVE if lag == 0 else PartitionState.BEHIND
