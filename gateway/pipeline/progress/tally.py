"""Progress of jobs as figures: counters since the process began, gauges of the latest batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from gateway.pipeline.doctor.reading import Batch, batch
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures
from gateway.telemetry.histogram import Histogram

PHASES = ("triggerExecution", "addBatch", "latestOffset", "getBatch", "queryPlanning",
          "walCommit", "commitOffsets")  # fmt: skip


class Tally:
    """Of all jobs of this process; `took` from one thread, `figures` from any."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = Lock()
        self._starts: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._batches: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()
        self._running: dict[str, bool] = {}
        self._latest: dict[str, tuple[Batch, float]] = {}
        self._seconds: dict[tuple[str, str], Histogram] = {}

    def began(self, job: str) -> None:
        with self._lock:
            self._starts[job] += 1
            self._running[job] = True

    def ended(self, job: str, error: str | None) -> None:
        """error: its class, such as `STREAM_FAILED`; None where it was stopped."""
        with self._lock:
            self._running[job] = False
            if error:
                self._failures[job, error] += 1

    def untold(self, job: str) -> None:
        with self._lock:
            self._untold[job] += 1

    def took(self, job: str, progress: Mapping[str, Any]) -> Batch:
        """A batch is done."""
        found = batch(progress)
        with self._lock:
            self._batches[job] += 1
            self._rows[job] += found.rows
            self._late[job] += sum(each.dropped for each in found.operators)
            self._latest[job] = found, float(progress.get("processedRowsPerSecond") or 0)
            for phase in PHASES:
                if phase in found.phases:
                    held = self._seconds.setdefault((job, phase), Histogram())
                    held.observe(found.phases[phase])
        return found

    def figures(self, into: Figures) -> None:
        with self._lock:
            self._counted(into)
            for (job, phase), held in self._seconds.items():
                into.observed(catalog.PIPELINE_SECONDS, held, job, phase)
            for job, (latest, rate) in self._latest.items():
                into.add(catalog.PIPELINE_RATE, rate, job)
                _state(into, job, latest)
                if latest.watermark is not None:
                    age = max(0.0, self._clock() - latest.watermark)
                    into.add(catalog.PIPELINE_WATERMARK_AGE, age, job)
                for source in latest.sources:
                    if source.behind is not None:
                        into.add(catalog.PIPELINE_BEHIND, source.behind, job, source.name)

    def _counted(self, into: Figures) -> None:
        into.count(catalog.PIPELINE_RUNNING, self._running)
        into.count(catalog.PIPELINE_STARTS, self._starts)
        into.count(catalog.PIPELINE_FAILURES, self._failures)
        into.count(catalog.PIPELINE_BATCHES, self._batches)
        into.count(catalog.PIPELINE_ROWS, self._rows)
        into.count(catalog.PIPELINE_LATE, self._late)
        into.count(catalog.PIPELINE_UNTOLD, self._untold)


def _state(into: Figures, job: str, latest: Batch) -> None:
    for each in latest.operators:
        into.add(catalog.PIPELINE_STATE_ROWS, each.rows, job, each.name)
        size = each.count("rocksdbSstFileSize")
        into.add(catalog.PIPELINE_STATE_BYTES, size, job, each.name)
        into.add(catalog.PIPELINE_STATE_MEMORY, each.memory, job, each.name)
