"""Events that are no records: their names and their data, for all wires.

A new control event has its place here.
"""

from __future__ import annotations

from typing import Any

from gateway.core.log.record import (
    Fault,
    Gap,
    GapReason,
    Ready,
    SnapshotEnd,
    StreamItem,
    TopicPartition,
)

POSITION_REFUSED_GAP: dict[str, Any] = {
    "topic": None, "partition": None, "from": None, "to": None, "reason": GapReason.POSITION_REFUSED
}  # fmt: skip


def describe_entry(entry: StreamItem) -> tuple[str, dict[str, Any]] | None:
    """The name and the data of what is no record; None for what is not told."""
    if type(entry) is Gap:
        return "gap", describe_gap(entry)
    if type(entry) is Ready:
        return "ready", describe_ready(entry)
    if type(entry) is Fault:
        return "error", describe_fault(entry)
    if type(entry) is SnapshotEnd:
        return "snapshot-end", describe_snapshot_end(entry)
    return None


def describe_partition(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def describe_gap(entry: Gap) -> dict[str, Any]:
    """`from`: where the stream stood; `to`: the offset it goes on at."""
    return {
        **describe_partition(entry.tp),
        "from": entry.offset,
        "to": entry.next_offset,
        "reason": entry.reason,
    }


def describe_ready(entry: Ready) -> dict[str, Any]:
    return {
        **describe_partition(entry.tp),
        "offset": entry.next_offset,
        "resolved": describe_resolution(entry),
    }


def describe_resolution(entry: Ready) -> str:
    """Return how the offset was found at which a partition goes on."""
    return "approximate" if entry.approximate else "exact"


def describe_fault(entry: Fault) -> dict[str, Any]:
    message = f"{entry.tp} cannot be read for now ({entry.cause}); the stream goes on by itself"
    return {**describe_partition(entry.tp), "code": entry.cause, "message": message}


def describe_snapshot_end(entry: SnapshotEnd) -> dict[str, Any]:
    """`pending`: partitions that could not be read; what they hold comes when they can."""
    told = {"topics": list(entry.topics), "records": entry.records}
    return (
        {**told, "pending": list(map(describe_partition, entry.pending))} if entry.pending else told
    )
