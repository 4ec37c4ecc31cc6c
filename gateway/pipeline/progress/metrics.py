"""Keep metrics of jobs: counters since the process began, and gauges of the latest batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from gateway.pipeline.doctor.query_run import BatchProgress, parse_batch
from gateway.telemetry import catalog
from gateway.telemetry.counts import Histogram
from gateway.telemetry.samples import MetricSamples

# The phases of a batch that are reported, by Spark's names in `durationMs`.
PHASES = ("triggerExecution", "addBatch", "latestOffset", "getBatch", "queryPlanning",
          "walCommit", "commitOffsets")  # fmt: skip


class ProgressMetrics:
    """The metrics of all jobs of this process, by the names of the jobs.

    `ProgressReporter` owns it. `record_untold_event` and `collect_metrics` may be called in any
    thread, so a lock guards all state.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = Lock()
        self._starts: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._batches: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._late_rows: Counter[str] = Counter()
        self._untold_events: Counter[str] = Counter()
        self._running: dict[str, bool] = {}
        self._latest_batches: dict[str, tuple[BatchProgress, float]] = {}  # with rows per second
        self._phase_seconds: dict[tuple[str, str], Histogram] = {}

    def record_start(self, job: str) -> None:
        with self._lock:
            self._starts[job] += 1
            self._running[job] = True

    def record_end(self, job: str, error: str | None) -> None:
        """Record the end of a query, with Spark's name for the error unless it was stopped."""
        with self._lock:
            self._running[job] = False
            if error:
                self._failures[job, error] += 1

    def record_untold_event(self, job: str) -> None:
        """Count an event that was dropped, or a record that Kafka did not accept."""
        with self._lock:
            self._untold_events[job] += 1

    def record_batch(self, job: str, progress: Mapping[str, Any]) -> BatchProgress:
        batch = parse_batch(progress)
        with self._lock:
            self._batches[job] += 1
            self._rows[job] += batch.rows
            self._late_rows[job] += sum(each.dropped_rows for each in batch.operators)
            self._latest_batches[job] = batch, float(progress.get("processedRowsPerSecond") or 0)
            for phase in PHASES:
                if phase in batch.phases:
                    histogram = self._phase_seconds.setdefault((job, phase), Histogram())
                    histogram.observe(batch.phases[phase])
        return batch

    def collect_metrics(self, samples: MetricSamples) -> None:
        with self._lock:
            self._collect_counters(samples)
            for (job, phase), histogram in self._phase_seconds.items():
                samples.add_histogram(catalog.PIPELINE_BATCH_SECONDS, histogram, job, phase)
            for job, (latest, rate) in self._latest_batches.items():
                samples.add(catalog.PIPELINE_ROWS_PER_SECOND, rate, job)
                _collect_state_metrics(samples, job, latest)
                if latest.watermark is not None:
                    age = max(0.0, self._clock() - latest.watermark)
                    samples.add(catalog.PIPELINE_WATERMARK_AGE_SECONDS, age, job)
                for source in latest.sources:
                    if source.offsets_behind is not None:
                        samples.add(
                            catalog.PIPELINE_BEHIND_OFFSETS, source.offsets_behind, job, source.name
                        )

    def _collect_counters(self, samples: MetricSamples) -> None:
        samples.add_counts(catalog.PIPELINE_RUNNING, self._running)
        samples.add_counts(catalog.PIPELINE_STARTS, self._starts)
        samples.add_counts(catalog.PIPELINE_FAILURES, self._failures)
        samples.add_counts(catalog.PIPELINE_BATCHES, self._batches)
        samples.add_counts(catalog.PIPELINE_ROWS, self._rows)
        samples.add_counts(catalog.PIPELINE_LATE_ROWS, self._late_rows)
        samples.add_counts(catalog.PIPELINE_PROGRESS_UNTOLD, self._untold_events)


def _collect_state_metrics(samples: MetricSamples, job: str, latest: BatchProgress) -> None:
    for each in latest.operators:
        samples.add(catalog.PIPELINE_STATE_ROWS, each.rows, job, each.name)
        size = each.get_metric("rocksdbSstFileSize")
        samples.add(catalog.PIPELINE_STATE_BYTES, size, job, each.name)
        samples.add(catalog.PIPELINE_STATE_MEMORY_BYTES, each.memory_bytes, job, each.name)
