"""Spark's event log as records: progress of queries, with the times of their tasks.

Written with spark.eventLog.enabled: one JSON object a line, in one file or in several of a
directory (`eventlog_v2_*`), zstd unless spark.eventLog.compress is false. A job's properties say
the query and batch it is of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.pipeline.progress.tasks import PYTHON

_PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"

Event = Mapping[str, Any]


@dataclass
class _Stage:
    """Of the tasks that succeeded; times in ms."""

    began: float = float("inf")
    ended: float = 0.0
    runs: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    cpu: float = 0.0
    gc: float = 0.0
    python: float = 0.0
    shuffled: int = 0
    written: int = 0

    def task(self, event: Event) -> None:
        told, metrics = event["Task Info"], event.get("Task Metrics") or {}
        self.began = min(self.began, told["Launch Time"])
        self.ended = max(self.ended, told["Finish Time"])
        self.runs.append(metrics.get("Executor Run Time", 0))
        self.cpu += metrics.get("Executor CPU Time", 0)
        self.gc += metrics.get("JVM GC Time", 0)
        read = (metrics.get("Input Metrics") or {}).get("Records Read", 0)
        shuffled = (metrics.get("Shuffle Read Metrics") or {}).get("Total Records Read", 0)
        self.rows.append(read + shuffled)
        self.shuffled += shuffled
        written = metrics.get("Shuffle Write Metrics") or {}
        self.written += written.get("Shuffle Bytes Written", 0)
        self.python += sum(
            float(each.get("Update") or 0)
            for each in told.get("Accumulables", ())
            if each.get("Name") == PYTHON
        )

    def record(self) -> dict[str, Any]:
        return {
            "tasks": len(self.runs),
            "seconds": (self.ended - self.began) / 1000,
            "total": sum(self.runs) / 1000,
            "slowest": max(self.runs) / 1000,
            "least": min(self.runs) / 1000,
            "cpu": self.cpu / 1e9,
            "gc": self.gc / 1000,
            "rows": sum(self.rows),
            "most_rows": max(self.rows),
            "shuffles": self.shuffled > 0,
            "last": self.written == 0,
        }


class Log:
    """Reads events in their order. `records` are those of all queries."""

    def __init__(self) -> None:
        self._cores: dict[str, int] = {}
        self._stages: dict[int, _Stage] = defaultdict(_Stage)
        self._jobs: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(dict)
        self._spans: dict[int, list[float]] = {}
        self._progress: list[dict[str, Any]] = []

    def read(self, event: Event) -> None:
        match event.get("Event"):
            case "SparkListenerExecutorAdded":
                self._cores[event["Executor ID"]] = event["Executor Info"]["Total Cores"]
            case "SparkListenerExecutorRemoved":
                self._cores.pop(event["Executor ID"], None)
            case "SparkListenerJobStart":
                self._job(event)
            case "SparkListenerJobEnd":
                self._spans.setdefault(event["Job ID"], [0.0])[1:] = [event["Completion Time"]]
            case "SparkListenerTaskEnd":
                if event["Task End Reason"]["Reason"] == "Success":
                    self._stages[event["Stage ID"]].task(event)
            case name if name == _PROGRESS:
                self._progress.append(dict(event["progress"]))

    def records(self) -> list[dict[str, Any]]:
        return [self._with_tasks(each) for each in self._progress]

    def _job(self, event: Event) -> None:
        said = event.get("Properties") or {}
        query, batch = said.get("sql.streaming.queryId"), said.get("streaming.sql.batchId")
        self._spans[event["Job ID"]] = [event["Submission Time"]]
        if query and batch:
            self._jobs[query, int(batch)][event["Job ID"]] = event["Stage IDs"]

    def _with_tasks(self, progress: dict[str, Any]) -> dict[str, Any]:
        jobs = self._jobs.get((progress["id"], int(progress["batchId"])), {})
        ids = {stage for stages in jobs.values() for stage in stages}
        stages = [self._stages[each] for each in sorted(ids) if each in self._stages]
        if not stages:
            return progress
        spans = [self._spans[job] for job in jobs]
        return progress | {
            "tasks": {
                "cores": sum(self._cores.values()),
                "jobs": sum(each[1] - each[0] for each in spans if len(each) == 2) / 1000,
                "python": sum(each.python for each in stages) / 1000,
                "busy": False,
                "stages": [each.record() for each in stages],
            }
        }


def records(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Progress of all queries of a log, in its order."""
    log = Log()
    for event in events:
        log.read(event)
    return log.records()
