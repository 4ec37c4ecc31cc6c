"""Render a replay as JSON."""

from __future__ import annotations

from typing import Any

from gateway.core.delivery.replay import Destination, Replay
from gateway.core.times import format_time

DELIVERY_GUARANTEES = {
    Destination.TOPIC: "exactly-once",
    Destination.BACKEND: "at-least-once",
}


def render_replay(replay: Replay, rate: float) -> dict[str, Any]:
    """Render a replay; `rate` is in records per second."""
    return {
        "id": replay.id,
        "state": replay.state,
        "topic": replay.topic,
        "destination": replay.destination,
        "destinationTopic": replay.target or None,
        "consumerGroup": replay.group or None,
        "delivery": DELIVERY_GUARANTEES[replay.destination],
        "progress": round(replay.progress, 4),
        "records": replay.records,
        "bytes": replay.bytes,
        "deadLetters": replay.dead,
        "recordsPerSecond": round(rate, 1),
        "partitions": [
            {
                "partition": partition,
                "startOffset": span.start,
                "endOffset": span.end,
                "nextOffset": span.next_offset,
            }
            for partition, span in sorted(replay.spans.items())
        ],
        "gaps": [
            {
                "partition": missing.partition,
                "startOffset": missing.offset,
                "endOffset": missing.next_offset,
                "reason": missing.reason,
            }
            for missing in replay.lacks
        ],
        "owner": replay.owner or None,
        "error": replay.error or None,
        "createdBy": replay.by or None,
        "createdAt": format_time(replay.created),
        "updatedAt": format_time(replay.updated),
    }
