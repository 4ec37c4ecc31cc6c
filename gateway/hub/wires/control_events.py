"""Describe the events that are not records: their names and data, for all wires.

To add a control event, add a line to `describe_entry`.
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
"""The data of the `gap` for a client whose resume token could not be used."""


def describe_entry(entry: StreamItem) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the data of the event for an entry; None if it has none."""
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
    """Return a partition as control events name it."""
    return {"topic": tp.topic, "partition": tp.partition}


def describe_gap(entry: Gap) -> dict[str, Any]:
    """Return the data of a `gap`.

    `from` is where the stream stood, `to` is the offset at which it goes on.
    """
    return {
        **describe_partition(entry.tp),
        "from": entry.offset,
        "to": entry.next_offset,
        "reason": entry.reason,
    }


def describe_ready(entry: Ready) -> dict[str, Any]:
    """Return the data of a `ready`."""
    return {
        **describe_partition(entry.tp),
        "offset": entry.next_offset,
        "resolved": describe_resolution(entry),
    }


def describe_resolution(entry: Ready) -> str:
    """Return how the offset was found at which a partition goes on."""
    return "approximate" if entry.is_approximate else "exact"


def describe_fault(entry: Fault) -> dict[str, Any]:
    """Return the data of an `error` about a partition."""
    message = f"{entry.tp} cannot be read for now ({entry.cause}); the stream goes on by itself"
    return {**describe_partition(entry.tp), "code": entry.cause, "message": message}


def describe_snapshot_end(entry: SnapshotEnd) -> dict[str, Any]:
    """Return the data of a `snapshot-end`.

    `pending` has the partitions that could not be read; what they hold is sent when they can be.
    """
    data = {"topics": list(entry.topics), "records": entry.records}
    return (
        {**data, "pending": list(map(describe_partition, entry.pending))} if entry.pending else data
    )
