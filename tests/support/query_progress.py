"""Progress of queries, written by hand: what Spark would tell of batches like these."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

BATCH_0_TIME_S = 1_700_000_000.0  # seconds of the epoch, of batch 0


def build_progress(
    batch: int,
    *,
    rows: int = 10_000,
    seconds: float = 2.0,
    interval_s: float | None = None,
    phases: Mapping[str, float] = {},
    operators: list[dict[str, Any]] | None = None,
    sources: list[dict[str, Any]] | None = None,
    newest: float | None = None,
    watermark: float | None = None,
    tasks: dict[str, Any] | None = None,
    notes: dict[str, float] | None = None,
) -> dict[str, Any]:
    """every: seconds from one to the next, if not at once. newest, watermark: since `BEGAN`."""
    spent = {"addBatch": seconds * 0.9, "triggerExecution": seconds, **phases}
    times = {"max": newest, "watermark": watermark}
    made: dict[str, Any] = {
        "id": "0b1c", "runId": "1f2e", "name": "orders", "batchId": batch,
        "timestamp": _format_time(batch * (interval_s or seconds)),
        "numInputRows": rows, "processedRowsPerSecond": rows / seconds,
        "durationMs": {name: round(value * 1000) for name, value in spent.items()},
        "eventTime": {name: _format_time(at) for name, at in times.items() if at is not None},
        "stateOperators": operators or [],
        "sources": sources or [{"description": "rate", "numInputRows": rows}],
    }  # fmt: skip
    if tasks is not None:
        made["tasks"] = tasks
    return made | ({"notes": notes} if notes else {})


def build_operator(
    name: str = "stateStoreSave",
    partitions: int = 2,
    *,
    row_count: int = 1000,
    dropped_count: int = 0,
    update_s: float = 0.1,
    commit_s: float = 0.1,
    **metrics: float,
) -> dict[str, Any]:
    """Seconds are of all tasks; metrics as Spark names them."""
    return {
        "operatorName": name, "numRowsTotal": row_count, "numRowsUpdated": row_count,
        "numRowsDroppedByWatermark": dropped_count, "allUpdatesTimeMs": update_s * 1000,
        "allRemovalsTimeMs": 0, "commitTimeMs": commit_s * 1000, "memoryUsedBytes": 4096,
        "numShufflePartitions": partitions, "numStateStoreInstances": partitions,
        "customMetrics": metrics,
    }  # fmt: skip


def build_tasks(*stages: dict[str, Any], cores: int = 2, **others: Any) -> dict[str, Any]:
    jobs = sum(each["seconds"] for each in stages)
    return {"cores": cores, "jobs": jobs, "python": 0.0, "stages": list(stages), **others}


def build_stage(*runs: float, **others: Any) -> dict[str, Any]:
    """Of its tasks' seconds; on two cores, computing all the time, if nothing else is said."""
    told = {
        "tasks": len(runs), "seconds": max(max(runs), sum(runs) / 2), "total": sum(runs),
        "slowest": max(runs), "least": min(runs), "cpu": sum(runs), "gc": 0.0,
        "rows": 1000 * len(runs), "most_rows": 1000, "shuffles": True, "last": True,
    }  # fmt: skip
    return told | others


def build_kafka_source(topic: str, end: int, latest: int, rows: int = 10_000) -> dict[str, Any]:
    return {
        "description": f"KafkaV2[Subscribe[{topic}]]", "numInputRows": rows,
        "endOffset": {topic: {"0": end}}, "latestOffset": {topic: {"0": latest}},
    }  # fmt: skip


def _format_time(since: float) -> str:
    at = datetime.fromtimestamp(BATCH_0_TIME_S + since, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
