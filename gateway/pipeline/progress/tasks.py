"""What the tasks of a batch took: skew, collection of garbage, Python, waiting.

Spark's progress has none of it. The status store in the driver has (also without its UI): asked of
each job and stage, as JSON. A look at a batch of a join takes 60 ms beside the query, of which
Python computes 6 to 10 (2 shared cores); so the listener takes one in ten seconds.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

PYTHON_TIME_METRIC = "time to execute Python code"
"""Spark's name of what Python workers took, without sending rows to and fro."""

_QUANTILES = (0.0, 0.5, 1.0)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME_PATTERN = re.compile(r"([\d.,]+) (ms|s|min|m|h)\b")
_MAX_EXECUTIONS = 50  # of SQL, that are looked through: other jobs have theirs among them
_JOB_END_TIMEOUT_S = (
    2.0  # s for the status store to hear of what is done: it has a queue of its own
)


class TaskMetricsReader:
    """Of the queries of one Spark context. cores: of all executors, where that is known."""

    def __init__(self, spark: Any) -> None:
        context = spark.sparkContext
        self._tracker = context._jsc.statusTracker()
        self._status_store = context._jsc.sc().statusStore()
        self._sql_store = spark._jsparkSession.sharedState().statusStore()
        writer = context._jvm.org.apache.spark.status.api.v1.JacksonMessageWriter()
        self._json_mapper = writer.mapper()
        self._java_quantiles = context._gateway.new_array(context._jvm.double, len(_QUANTILES))
        for at, each in enumerate(_QUANTILES):
            self._java_quantiles[at] = each
        self._context = context

    @property
    def cores(self) -> int:
        return int(self._context.defaultParallelism)

    def read_batch(self, run_id: str, batch: int) -> dict[str, Any] | None:
        """What `doctor.reading` reads; None if nothing is known any more."""
        jobs = self._find_jobs(run_id, batch)
        stages = [self._read_stage(each) for job in jobs for each in sorted(job["stageIds"])]
        found = [each for each in stages if each is not None]
        if not found:
            return None
        return {
            "cores": self.cores,
            "jobs": round(_covered_seconds([_get_span(job) for job in jobs]), 3),
            "python": round(self._sum_python_seconds({job["jobId"] for job in jobs}), 3),
            "busy": is_busy(),
            "stages": found,
        }

    def _find_jobs(self, run_id: str, batch: int) -> list[dict[str, Any]]:
        """A job's description says its batch. From the latest back: Spark keeps a thousand, of
        which a few are of this batch."""
        found = []
        for job_id in sorted(
            self._to_python(self._tracker.getJobIdsForGroup(run_id)), reverse=True
        ):
            job = self._wait_for_job(job_id)
            of = _parse_batch_id(job) if job else None
            if job is not None and of == batch:
                found.append(job)
            elif of is not None and of < batch:
                break
        return found

    def _wait_for_job(self, job_id: int) -> dict[str, Any] | None:
        until = time.monotonic() + _JOB_END_TIMEOUT_S
        while True:
            job = self._call_store(self._status_store.job, job_id)
            if job is None or "completionTime" in job or time.monotonic() > until:
                return job if job and "completionTime" in job else None
            time.sleep(0.05)

    def _read_stage(self, stage_id: int) -> dict[str, Any] | None:
        stage = self._call_store(self._status_store.lastStageAttempt, stage_id)
        if stage is None or stage["status"] != "COMPLETE" or not stage["numTasks"]:
            return None  # one whose output was there already was skipped
        summary = self._call_store_option(
            self._status_store.taskSummary, stage_id, stage["attemptId"], self._java_quantiles
        )
        return summarize_stage(stage, summary or {})

    def _sum_python_seconds(self, job_ids: set[int]) -> float:
        """Of the SQL executions of these jobs, from the latest back: times are told as text for
        people."""
        total = 0.0
        count = self._sql_store.executionsCount()
        latest = self._sql_store.executionsList(max(0, count - _MAX_EXECUTIONS), _MAX_EXECUTIONS)
        for at in reversed(range(latest.size())):
            execution = latest.apply(at)
            of = set(map(int, self._to_python(execution.jobs())))
            if of and max(of) < min(job_ids):
                break
            if not job_ids.isdisjoint(of):
                total += self._read_python_seconds(execution)
        return total

    def _read_python_seconds(self, execution: Any) -> float:
        ids = {
            each["accumulatorId"]
            for each in self._to_python(execution.metrics())
            if each["name"] == PYTHON_TIME_METRIC
        }
        if not ids:
            return 0.0
        values = self._to_python(self._sql_store.executionMetrics(execution.executionId()))
        return sum(parse_seconds(text) for each, text in values.items() if int(each) in ids)

    def _call_store(self, method: Any, *args: Any) -> dict[str, Any] | None:
        from py4j.protocol import Py4JJavaError

        try:
            found: dict[str, Any] = self._to_python(method(*args))
        except Py4JJavaError:  # NoSuchElementException: Spark keeps the latest thousand
            return None
        return found

    def _call_store_option(self, method: Any, *args: Any) -> dict[str, Any] | None:
        found = method(*args)
        read: dict[str, Any] | None = self._to_python(found.get()) if found.isDefined() else None
        return read

    def _to_python(self, value: Any) -> Any:
        return json.loads(self._json_mapper.writeValueAsString(value))


def summarize_stage(stage: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Of Spark's stage and the quantiles of its tasks (least, median, most), in seconds."""
    run = summary.get("executorRunTime", (0.0, 0.0, 0.0))
    read = summary.get("inputMetrics", {}).get("recordsRead", (0,))[-1]
    shuffled = summary.get("shuffleReadMetrics", {}).get("readRecords", (0,))[-1]
    return {
        "tasks": stage["numTasks"],
        "seconds": round(
            _parse_time(stage["completionTime"]) - _parse_time(stage["submissionTime"]), 3
        ),
        "total": stage["executorRunTime"] / 1000,
        "slowest": run[-1] / 1000,
        "least": run[0] / 1000,
        "cpu": round(stage["executorCpuTime"] / 1e9, 3),
        "gc": stage["jvmGcTime"] / 1000,
        "rows": stage["inputRecords"] + stage["shuffleReadRecords"],
        "most_rows": int(read + shuffled),
        "shuffles": stage["shuffleReadRecords"] > 0 or stage["shuffleReadBytes"] > 0,
        "last": stage["shuffleWriteBytes"] == 0,
    }


def parse_seconds(text: str) -> float:
    """Of what Spark's UI shows: `total (min, med, max)\\n1.2 s (0.5 s, ...)`, or `12 ms`."""
    found = _TIME_PATTERN.search(text.rpartition("\n")[2])
    return float(found[1].replace(",", "")) * _UNIT_SECONDS[found[2]] if found else 0.0


def is_busy() -> bool:
    """Does this machine have more to do than cores? Then that a task waits says nothing."""
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)


def _parse_batch_id(job: Mapping[str, Any]) -> int | None:
    found = re.search(r"^batch = (\d+)$", job.get("description", ""), re.MULTILINE)
    return int(found[1]) if found else None


def _get_span(job: Mapping[str, Any]) -> tuple[float, float]:
    return _parse_time(job["submissionTime"]), _parse_time(job["completionTime"])


def _covered_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in which at least one is."""
    total, end = 0.0, 0.0
    for begin, over in sorted(spans):
        total += max(0.0, over - max(begin, end))
        end = max(end, over)
    return total


def _parse_time(text: str) -> float:
    from datetime import UTC, datetime

    at = datetime.strptime(text.removesuffix("GMT"), "%Y-%m-%dT%H:%M:%S.%f")
    return at.replace(tzinfo=UTC).timestamp()
