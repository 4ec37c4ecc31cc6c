"""Read the times of a batch's tasks: of the slowest one, in garbage collection, and in Python.

Spark's progress does not contain them. They are read from the status store of the driver, which
exists even without Spark's UI, with one call for each job and stage, as JSON. To read a batch of a
join takes 60 ms while the query goes on, 6 to 10 of them in Python (2 shared cores). The listener
therefore reads one batch in ten seconds.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.pipeline.spark.internals import open_status_stores

PYTHON_TIME_METRIC = "time to execute Python code"
"""Spark's name for the time in Python workers, without the transfer of rows."""

_QUANTILES = (0.0, 0.5, 1.0)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME_PATTERN = re.compile(r"([\d.,]+) (ms|s|min|m|h)\b")
# How many of the latest SQL executions are searched: those of other jobs are among them.
_MAX_EXECUTIONS = 50
# How long the status store may be behind: it is updated through a queue.
_JOB_END_TIMEOUT_S = 2.0


class TaskMetricsReader:
    """A reader of the times of tasks, for the queries of one Spark context.

    `ProgressReporter` owns it. Spark keeps the latest thousand jobs, so a batch must be read soon.
    """

    def __init__(self, spark: Any) -> None:
        self._stores = open_status_stores(spark, _QUANTILES)
        self._context = spark.sparkContext

    def read_batch(self, run_id: str, batch: int) -> dict[str, Any] | None:
        """Return the times of a batch's tasks, or None if Spark does not know them any more.

        Args:
            run_id: The id of the query's start, which Spark uses as the job group.
        """
        jobs = self._find_jobs(run_id, batch)
        all_stages = [self._read_stage(each) for job in jobs for each in sorted(job["stageIds"])]
        stages = [each for each in all_stages if each is not None]
        if not stages:
            return None
        times = ("submissionTime", "completionTime")
        spans = [tuple(_parse_time(job[name]) for name in times) for job in jobs]
        return {
            "cores": int(self._context.defaultParallelism),
            "jobs": round(_covered_seconds(spans), 3),
            "python": round(self._sum_python_seconds({job["jobId"] for job in jobs}), 3),
            "busy": is_busy(),
            "stages": stages,
        }

    def _find_jobs(self, run_id: str, batch: int) -> list[dict[str, Any]]:
        """Return the jobs of a batch, searching backwards: Spark keeps a thousand."""
        jobs = []
        for job_id in sorted(
            self._to_python(self._stores.tracker.getJobIdsForGroup(run_id)), reverse=True
        ):
            job = self._wait_for_job(job_id)
            job_batch = _parse_batch_id(job) if job else None
            if job is not None and job_batch == batch:
                jobs.append(job)
            elif job_batch is not None and job_batch < batch:
                break
        return jobs

    def _wait_for_job(self, job_id: int) -> dict[str, Any] | None:
        """Return a job once the store knows its end, or None if it does not in time."""
        deadline = time.monotonic() + _JOB_END_TIMEOUT_S
        while True:
            job = self._call_store(self._stores.jobs.job, job_id)
            if job is None or "completionTime" in job or time.monotonic() > deadline:
                return job if job and "completionTime" in job else None
            time.sleep(0.05)

    def _read_stage(self, stage_id: int) -> dict[str, Any] | None:
        stage = self._call_store(self._stores.jobs.lastStageAttempt, stage_id)
        # Spark skips a stage whose shuffle output an earlier job has written.
        if stage is None or stage["status"] != "COMPLETE" or not stage["numTasks"]:
            return None
        option = self._stores.jobs.taskSummary(stage_id, stage["attemptId"], self._stores.quantiles)
        summary = self._to_python(option.get()) if option.isDefined() else {}
        return summarize_stage(stage, summary)

    def _sum_python_seconds(self, job_ids: set[int]) -> float:
        """Return the seconds of Python workers over all tasks, from metrics of SQL executions."""
        total = 0.0
        count = self._stores.sql.executionsCount()
        executions = self._stores.sql.executionsList(
            max(0, count - _MAX_EXECUTIONS), _MAX_EXECUTIONS
        )
        for index in reversed(range(executions.size())):
            execution = executions.apply(index)
            execution_jobs = set(map(int, self._to_python(execution.jobs())))
            if execution_jobs and max(execution_jobs) < min(job_ids):
                break
            if not job_ids.isdisjoint(execution_jobs):
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
        values = self._to_python(self._stores.sql.executionMetrics(execution.executionId()))
        return sum(parse_seconds(text) for each, text in values.items() if int(each) in ids)

    def _call_store(self, method: Any, *args: Any) -> dict[str, Any] | None:
        """Return the result of a method of the store, or None if the store has no such element."""
        from py4j.protocol import Py4JJavaError

        try:
            result: dict[str, Any] = self._to_python(method(*args))
        except Py4JJavaError:  # NoSuchElementException: Spark keeps the latest thousand
            return None
        return result

    def _to_python(self, value: Any) -> Any:
        """Return a Java object as Python's, by one call for its JSON instead of one per field."""
        return json.loads(self._stores.json_mapper.writeValueAsString(value))


def summarize_stage(stage: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of a stage in seconds, with the names of `query_run.StageMetrics`.

    Args:
        summary: The quantiles of Spark's metrics over the tasks: minimum, median, maximum.
    """
    # Spark's times are in ms, except for the CPU's in ns.
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
        "last": stage["shuffleWriteBytes"] == 0,  # no later stage reads its output
    }


def parse_seconds(text: str) -> float:
    r"""Return the seconds of a metric, which Spark formats as text for its UI.

    Args:
        text: `total (min, med, max)\n1.2 s (0.5 s, ...)`, of which the total counts, or `12 ms`.
    """
    match = _TIME_PATTERN.search(text.rpartition("\n")[2])
    return float(match[1].replace(",", "")) * _UNIT_SECONDS[match[2]] if match else 0.0


def is_busy() -> bool:
    """Return whether this machine's load average is more than 1.5 times its cores.

    Tasks then wait for a core, so the doctor cannot conclude that they wait for the output.
    """
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)


def _parse_batch_id(job: Mapping[str, Any]) -> int | None:
    match = re.search(r"^batch = (\d+)$", job.get("description", ""), re.MULTILINE)
    return int(match[1]) if match else None


def _covered_seconds(spans: Iterable[tuple[float, ...]]) -> float:
    """Return the length of the union of time spans."""
    total, covered_until = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total


def _parse_time(text: str) -> float:
    """Return the seconds since 1970 of a time such as `2026-01-02T03:04:05.678GMT`."""
    time_utc = datetime.strptime(text.removesuffix("GMT"), "%Y-%m-%dT%H:%M:%S.%f")
    return time_utc.replace(tzinfo=UTC).timestamp()
