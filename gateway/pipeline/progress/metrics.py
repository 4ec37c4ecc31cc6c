"""Keep metrics of jobs, and serve them to Prometheus.

They are counters since the process began, and gauges of the latest batch. Jobs run in a process
without the gateway, which serves its own metrics.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any, Self

from gateway.config.sections.job import Job
from gateway.errors import PipelineError
from gateway.pipeline.doctor.query_run import BatchProgress, parse_batch
from gateway.pipeline.job_settings import get_inputs
from gateway.pipeline.reports import ALERT_NAMES, Reports
from gateway.telemetry import catalog
from gateway.telemetry.counts import Histogram
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples

# The phases of a batch that are reported, by Spark's names in `durationMs`.
PHASES = ("triggerExecution", "addBatch", "latestOffset", "getBatch", "queryPlanning",
          "walCommit", "commitOffsets")  # fmt: skip


class ProgressMetrics:
    """The metrics of all jobs of this process, by the names of the jobs: those of Spark's progress.

    `ProgressReporter` owns it. Counters are in `Reports`, beside those of the parts of jobs.
    `record_untold_event` and `collect_metrics` may be called in any thread, so a lock guards the
    rest.
    """

    def __init__(
        self, reports: Reports | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._reports = reports or Reports()
        self._clock = clock
        self._lock = Lock()
        self._latest_batches: dict[str, tuple[BatchProgress, float]] = {}  # with rows per second
        self._phase_seconds: dict[tuple[str, str], Histogram] = {}

    def record_start(self, job: str) -> None:
        self._reports.increment_counter(catalog.PIPELINE_STARTS, 1, job)
        self._reports.set_gauge(catalog.PIPELINE_RUNNING, 1, job)

    def record_end(self, job: str, error: str | None) -> None:
        """Record the end of a query, with Spark's name for the error unless it was stopped."""
        self._reports.set_gauge(catalog.PIPELINE_RUNNING, 0, job)
        if error:
            self._reports.increment_counter(catalog.PIPELINE_FAILURES, 1, job, error)

    def record_untold_event(self, job: str) -> None:
        """Count an event that was dropped, or a record that Kafka did not accept."""
        self._reports.increment_counter(catalog.PIPELINE_PROGRESS_UNTOLD, 1, job)

    def record_batch(self, job: str, progress: Mapping[str, Any]) -> BatchProgress:
        batch = parse_batch(progress)
        late = sum(each.dropped_rows for each in batch.operators)
        self._reports.increment_counter(catalog.PIPELINE_BATCHES, 1, job)
        self._reports.increment_counter(catalog.PIPELINE_ROWS, batch.rows, job)
        self._reports.increment_counter(catalog.PIPELINE_LATE_ROWS, late, job)
        with self._lock:
            self._latest_batches[job] = batch, float(progress.get("processedRowsPerSecond") or 0)
            for phase in PHASES:
                if phase in batch.phases:
                    histogram = self._phase_seconds.setdefault((job, phase), Histogram())
                    histogram.observe(batch.phases[phase])
        return batch

    def collect_metrics(self, samples: MetricSamples) -> None:
        self._reports.collect_metrics(samples)
        with self._lock:
            for (job, phase), histogram in self._phase_seconds.items():
                samples.add_histogram(catalog.PIPELINE_BATCH_SECONDS, histogram, job, phase)
            for job, (latest, rate) in self._latest_batches.items():
                samples.add(catalog.PIPELINE_ROWS_PER_SECOND, rate, job)
                for each in latest.operators:
                    samples.add(catalog.PIPELINE_STATE_ROWS, each.rows, job, each.name)
                    size = each.get_metric("rocksdbSstFileSize")
                    samples.add(catalog.PIPELINE_STATE_BYTES, size, job, each.name)
                    memory = each.memory_bytes
                    samples.add(catalog.PIPELINE_STATE_MEMORY_BYTES, memory, job, each.name)
                if latest.watermark is not None:
                    age = max(0.0, self._clock() - latest.watermark)
                    samples.add(catalog.PIPELINE_WATERMARK_AGE_SECONDS, age, job)
                for source in latest.sources:
                    if source.offsets_behind is not None:
                        samples.add(
                            catalog.PIPELINE_BEHIND_OFFSETS, source.offsets_behind, job, source.name
                        )


QUERY_FAILED = "STREAM_FAILED"  # Spark's name for most failures of a query


def add_zero_series(jobs: Iterable[Job], samples: MetricSamples) -> None:
    for job in jobs:
        name = [job.name]
        for metric in (
            catalog.PIPELINE_RUNNING, catalog.PIPELINE_STARTS, catalog.PIPELINE_BATCHES,
            catalog.PIPELINE_ROWS, catalog.PIPELINE_LATE_ROWS, catalog.PIPELINE_STATE_DAMAGED,
            catalog.PIPELINE_PROGRESS_UNTOLD, catalog.PIPELINE_ROWS_PER_SECOND,
        ):  # fmt: skip
            samples.add_zeros(metric, name)
        samples.add_zeros(catalog.PIPELINE_FAILURES, name, [QUERY_FAILED])
        samples.add_zeros(catalog.PIPELINE_ALERTS, name, ALERT_NAMES)
        topics = [each.topic for each in get_inputs(job).values()]
        samples.add_zeros(catalog.PIPELINE_GAPS, name, topics)
        samples.add_zeros(catalog.PIPELINE_BEHIND_OFFSETS, name, topics)


MAX_CONNECTIONS = 16
REQUEST_TIMEOUT_S = 10.0


class MetricsServer(ThreadingHTTPServer):
    """An HTTP server in threads that answers `GET /metrics` while its context is entered.

    Its clients share threads and file descriptors with the jobs. So there are at most
    `max_connections`, each for at most `timeout_s` seconds, and others are closed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        collect_metrics: Callable[[], MetricSamples],
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Bind the port (0: a free one). `collect_metrics` runs in the thread of each request."""
        try:
            super().__init__((host, port), _create_handler(collect_metrics))
        except OSError as error:
            problem = f"pipelines.progress cannot listen on {host}:{port}: {error.strerror}"
            raise PipelineError(f"{problem}; use another port, or 0 for a free one") from None
        self.port: int = self.server_address[1]
        self._slots = threading.BoundedSemaphore(max_connections)
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="scrape", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A timeout of the socket would begin again with each byte.
        timer = threading.Timer(self._timeout_s, _shut_down, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # which is the end of the connection
            super().handle_error(request, client_address)


def _shut_down(request: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        request.shutdown(socket.SHUT_RDWR)


def _create_handler(collect_metrics: Callable[[], MetricSamples]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "see /metrics")
                return
            media_type, pieces = expose(collect_metrics(), self.headers.get("Accept", ""))
            body = b"".join(pieces)
            self.send_response(200)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the default writes a line to stderr for each request."""

    return Handler
