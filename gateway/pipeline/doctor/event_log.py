"""Convert Spark's event log to progress records with the times of tasks.

Spark writes the log if `spark.eventLog.enabled` is set: one JSON object per line, in one file or in
several files of a directory (`eventlog_v2_*`), with zstd unless `spark.eventLog.compress` is false.
The properties of a Spark job name its query and batch. Times in the log are in ms unless said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.pipeline.progress.tasks import PYTHON_TIME_METRIC

_PROGRESS_EVENT = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"

Event = Mapping[str, Any]


@dataclass
class _StageTotals:
    """The sums over the successful tasks of a stage."""

    started_at_ms: float = float("inf")
    ended_at_ms: float = 0.0
    run_times_ms: list[float] = field(default_factory=list)
    task_rows: list[int] = field(default_factory=list)
    cpu_ns: float = 0.0
    gc_ms: float = 0.0
    python_ms: float = 0.0
    shuffled_records: int = 0
    shuffle_bytes_written: int = 0

    def add_task(self, event: Event) -> None:
        """Add the metrics of a task.

        Args:
            event: The event `SparkListenerTaskEnd`.
        """
        info, metrics = event["Task Info"], event.get("Task Metrics") or {}
        self.started_at_ms = min(self.started_at_ms, info["Launch Time"])
        self.ended_at_ms = max(self.ended_at_ms, info["Finish Time"])
        self.run_times_ms.append(metrics.get("Executor Run Time", 0))
        self.cpu_ns += metrics.get("Executor CPU Time", 0)
        self.gc_ms += metrics.get("JVM GC Time", 0)
        read = (metrics.get("Input Metrics") or {}).get("Records Read", 0)
        shuffled = (metrics.get("Shuffle Read Metrics") or {}).get("Total Records Read", 0)
        self.task_rows.append(read + shuffled)
        self.shuffled_records += shuffled
        written = metrics.get("Shuffle Write Metrics") or {}
        self.shuffle_bytes_written += written.get("Shuffle Bytes Written", 0)
        self.python_ms += sum(
            float(each.get("Update") or 0)
            for each in info.get("Accumulables", ())
            if each.get("Name") == PYTHON_TIME_METRIC
        )

    def to_record(self) -> dict[str, Any]:
        """Return the stage in seconds, with the names of `query_run.StageMetrics`."""
        return {
            "tasks": len(self.run_times_ms),
            "seconds": (self.ended_at_ms - self.started_at_ms) / 1000,
            "total": sum(self.run_times_ms) / 1000,
            "slowest": max(self.run_times_ms) / 1000,
            "least": min(self.run_times_ms) / 1000,
            "cpu": self.cpu_ns / 1e9,
            "gc": self.gc_ms / 1000,
            "rows": sum(self.task_rows),
            "most_rows": max(self.task_rows),
            "shuffles": self.shuffled_records > 0,
            "last": self.shuffle_bytes_written == 0,
        }


class EventLogReader:
    """A reader of one event log, which takes the events in their order."""

    def __init__(self) -> None:
        """Begin before the first event."""
        self._executor_cores: dict[str, int] = {}  # by executor, of those that run
        self._stage_totals: dict[int, _StageTotals] = defaultdict(_StageTotals)
        # By query and batch: the Spark jobs, each with its stages.
        self._job_stages: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(dict)
        self._job_spans: dict[int, list[float]] = {}  # by job: the start in ms, and the end if any
        self._progress_records: list[dict[str, Any]] = []

    def read_event(self, event: Event) -> None:
        """Take the next event. Kinds of events that are not needed are ignored."""
        match event.get("Event"):
            case "SparkListenerExecutorAdded":
                self._executor_cores[event["Executor ID"]] = event["Executor Info"]["Total Cores"]
            case "SparkListenerExecutorRemoved":
                self._executor_cores.pop(event["Executor ID"], None)
            case "SparkListenerJobStart":
                self._add_job(event)
            case "SparkListenerJobEnd":
                self._job_spans.setdefault(event["Job ID"], [0.0])[1:] = [event["Completion Time"]]
            case "SparkListenerTaskEnd":
                if event["Task End Reason"]["Reason"] == "Success":
                    self._stage_totals[event["Stage ID"]].add_task(event)
            case name if name == _PROGRESS_EVENT:
                self._progress_records.append(dict(event["progress"]))

    def build_records(self) -> list[dict[str, Any]]:
        """Return the progress of all queries in the order of the log, with `tasks`."""
        return [self._merge_tasks(each) for each in self._progress_records]

    def _add_job(self, event: Event) -> None:
        """Record the start of a Spark job, and its stages if it belongs to a batch."""
        properties = event.get("Properties") or {}
        query = properties.get("sql.streaming.queryId")
        batch = properties.get("streaming.sql.batchId")
        self._job_spans[event["Job ID"]] = [event["Submission Time"]]
        if query and batch:
            self._job_stages[query, int(batch)][event["Job ID"]] = event["Stage IDs"]

    def _merge_tasks(self, progress: dict[str, Any]) -> dict[str, Any]:
        """Return a progress record with `tasks`, or as it is if the log has no task of the batch.

        Executors that were removed later are not counted in `cores`.
        """
        jobs = self._job_stages.get((progress["id"], int(progress["batchId"])), {})
        ids = {stage for stages in jobs.values() for stage in stages}
        stages = [self._stage_totals[each] for each in sorted(ids) if each in self._stage_totals]
        if not stages:
            return progress
        spans = [self._job_spans[job] for job in jobs]
        return progress | {
            "tasks": {
                "cores": sum(self._executor_cores.values()),
                "jobs": sum(each[1] - each[0] for each in spans if len(each) == 2) / 1000,
                "python": sum(each.python_ms for each in stages) / 1000,
                "busy": False,  # the log does not contain the load of the machines
                "stages": [each.to_record() for each in stages],
            }
        }


def read_events(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the progress of all queries of an event log, in its order.

    Args:
        events: The objects of the log.
    """
    log = EventLogReader()
    for event in events:
        log.read_event(event)
    return log.build_records()
