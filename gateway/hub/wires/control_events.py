"""Events that are no records: their names and their data, for all wires.

A new control event has its place here.
"""

from __future__ import annotations

from typing import Any

from gateway.core.log.record import Fault, Gap, News, Ready, Reason, SnapshotEnd, TopicPartition

REFUSED: dict[str, Any] = {
    "topic": None, "partition": None, "from": None, "to": None, "reason": Reason.POSITION_REFUSED
}  # fmt: skip


def tell(entry: News) -> tuple[str, dict[str, Any]] | None:
    """The name and the data of what is no record; None for what is not told."""
    if type(entry) is Gap:
        return "gap", gap(entry)
    if type(entry) is Ready:
        return "ready", ready(entry)
    if type(entry) is Fault:
        return "error", fault(entry)
    if type(entry) is SnapshotEnd:
        return "snapshot-end", snapshot_end(entry)
    return None


def where(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def gap(entry: Gap) -> dict[str, Any]:
    """`from`: where the stream stood; `to`: the offset it goes on at."""
    return {**where(entry.tp), "from": entry.offset, "to": entry.next, "reason": entry.reason}


def ready(entry: Ready) -> dict[str, Any]:
    return {**where(entry.tp), "offset": entry.next, "resolved": resolution(entry)}


def resolution(entry: Ready) -> str:
    """Return how the offset was found at which a partition goes on."""
    return "approximate" if entry.approximate else "exact"


def fault(entry: Fault) -> dict[str, Any]:
    message = f"{entry.tp} cannot be read for now ({entry.cause}); the stream goes on by itself"
    return {**where(entry.tp), "code": entry.cause, "message": message}


def snapshot_end(entry: SnapshotEnd) -> dict[str, Any]:
    """`pending`: partitions that could not be read; what they hold comes when they can."""
    told = {"topics": list(entry.topics), "records": entry.records}
    return {**told, "pending": list(map(where, entry.pending))} if entry.pending else told
