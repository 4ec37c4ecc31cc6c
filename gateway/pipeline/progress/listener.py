"""Report the progress of running queries to Prometheus, a topic, the log, and the doctor's file.

    with report_progress(section, jobs, client_config) as reporter:
        reporter.watch_session(session)  # each session that starts queries

The name of a query is that of its job. Spark calls all listeners of a session in one thread, so
`QueryListener` only puts events into a queue, and the thread of `ProgressReporter` handles them. A
slow disk or Kafka therefore delays no query; if the queue is full, events are counted and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, TypeAlias

from gateway.config.sections.job import Job
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.doctor.query_run import BatchProgress
from gateway.pipeline.job_settings import get_dead_letter_topic, get_inputs, get_output
from gateway.pipeline.reports import LATE_ALERT, Reports
from gateway.pipeline.spark.internals import create_java_listener
from gateway.telemetry.logs import log_context
from gateway.telemetry.samples import MetricSamples

from . import records
from .metrics import MetricsServer, ProgressMetrics, add_zero_series
from .records import ProgressProducer
from .tasks import TaskMetricsReader

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 1000  # of a few KB each
TASK_INTERVAL_S = 10.0  # between two reads of the times of a job's tasks
_LAST_EVENT_TIMEOUT_S = 5.0  # from the end of a query to the event of it
_LATE_WINDOW_BATCHES = 10  # over which the share of late rows is computed

_EventHandler: TypeAlias = Callable[[], None]


class QueryListener:
    """A listener whose methods Spark's JVM calls, in a thread of Spark.

    `ProgressReporter.watch_session` creates one for each session. The methods must neither take
    time nor raise, because Spark's other listeners wait for them.

    It does not derive from pyspark's `StreamingQueryListener`, which calls the JVM for every number
    of an event, hundreds of times per batch. This class gets an event as JSON in one call. With
    pyspark's listener, and a read of the tasks after each batch, reporting a join took 166 ms of
    Spark's thread and 66 ms of Python per batch (2 shared cores); now it takes 1 and 6 ms.
    """

    def __init__(self, reporter: ProgressReporter, job: str | None = None) -> None:
        """Report all queries of the session, or only those of a job."""
        self._reporter = reporter
        self._job = job
        self._reported: set[str] = set()  # the ids of queries
        self._has_ended = threading.Event()  # one of them

    def onQueryStarted(self, event: Any) -> None:
        data = json.loads(event.json())
        query, run, name = data["id"], data["runId"], data["name"]
        if self._job not in (None, name):
            return
        self._reported.add(query)
        self._reporter.enqueue(
            lambda: self._reporter.on_query_started(query, run, name), name or query
        )

    def onQueryProgress(self, event: Any) -> None:
        record = json.loads(event.json())["progress"]
        if record["id"] not in self._reported:
            return
        self._reporter.enqueue(
            lambda: self._reporter.on_query_progress(record), record["name"] or ""
        )

    def onQueryIdle(self, event: Any) -> None:
        """Ignore a trigger without new records."""

    def onQueryTerminated(self, event: Any) -> None:
        """Enqueue the end of a query. The event has its id, but not its name."""
        data = json.loads(event.json())
        query, run, error = data["id"], data["runId"], data.get("exception")
        if query not in self._reported:
            return
        error_class = data.get("errorClassOnException")
        self._reporter.enqueue(
            lambda: self._reporter.on_query_terminated(query, run, error, error_class), query
        )
        self._has_ended.set()

    def await_end(self, timeout_s: float) -> None:
        """Wait for the event of the end of a query that has begun: it comes after the end."""
        if self._reported:
            self._has_ended.wait(timeout_s)

    @cached_property
    def _jlistener(self) -> Any:
        """The Java object that `addListener` and `removeListener` of pyspark take."""
        return create_java_listener(self)

    class Java:
        """The Java interface of this class, for py4j."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class ProgressReporter:
    """The thread that handles the events of all queries, one after the other.

    `report_progress` creates one for a process and closes it. `QueryListener` adds events in
    Spark's threads. The state of each job is changed by the reporter's thread only.
    """

    def __init__(
        self,
        section: Pipelines,
        jobs: Sequence[Job],
        client_config: Mapping[str, Any] | None = None,
        reports: Reports | None = None,
        task_interval_s: float = TASK_INTERVAL_S,
        task_reader: TaskMetricsReader | None = None,
    ) -> None:
        """Start the thread.

        Args:
            client_config: The settings of librdkafka for the cluster of `progress.topic`, or None
                to send no records.
            reports: What the jobs report themselves.
            task_reader: Reads them; by default one of the first session that is watched.
        """
        self._reports = reports or Reports()
        self.metrics = ProgressMetrics(self._reports)
        self.port: int | None = None
        self._section = section
        self._jobs = {job.name: job for job in jobs}
        self._job_names: dict[str, str] = {}  # by the id of the query
        self._progress_files: dict[str, records.ProgressFile] = {}
        self._recent_batches: dict[str, list[BatchProgress]] = {}
        self._jobs_with_invalid: set[str] = set()  # whose latest batch with input had some
        self._task_reader = task_reader
        self._task_interval_s = task_interval_s
        self._tasks_read_at: dict[str, float] = {}
        self._producer: ProgressProducer | None = None
        if section.progress.topic is not None and client_config is not None:
            self._producer = ProgressProducer(
                section.progress.topic, client_config, self.metrics.record_untold_event
            )
        # None ends the thread.
        self._events: queue.Queue[_EventHandler | None] = queue.Queue(MAX_QUEUED_EVENTS)
        self._thread = threading.Thread(target=self._handle_events, name="progress", daemon=True)
        self._thread.start()

    def watch_session(self, spark: Any, job: str | None = None) -> Callable[[], None]:
        """Report the queries of a session; return what ends that, after the query of `job`.

        All sessions must share one Spark context.

        Args:
            job: The job to report; by default all queries of the session are reported.
        """
        if self._task_reader is None:
            self._task_reader = TaskMetricsReader(spark)
        listener = QueryListener(self, job)
        spark.streams.addListener(listener)

        def stop_watching() -> None:
            listener.await_end(_LAST_EVENT_TIMEOUT_S)
            spark.streams.removeListener(listener)

        return stop_watching

    def collect_metrics(self) -> MetricSamples:
        samples = MetricSamples()
        add_zero_series(self._jobs.values(), samples)
        self.metrics.collect_metrics(samples)
        return samples

    def enqueue(self, event: _EventHandler, job: str) -> None:
        """Let the reporter's thread handle an event; count and drop it if the queue is full."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self.metrics.record_untold_event(self._job_names.get(job, job))

    def close(self, timeout_s: float = 10.0) -> None:
        """Handle the queued events, then end the thread; each may take `timeout_s`."""
        self._events.put(None)
        self._thread.join(timeout_s)
        if self._producer is not None:
            self._producer.close(timeout_s)

    def on_query_started(self, query: str, run: str, name: str | None) -> None:
        job = self._job_names[query] = name or query
        self.metrics.record_start(job)
        with log_context(job=job, query=query, run=run):
            log.info("query of job %s begins", job)

    def on_query_progress(self, record: dict[str, Any]) -> None:
        """Report a batch everywhere, and add `tasks`, `notes` and `alerts` to its record."""
        query, job = record["id"], record.get("name") or record["id"]
        if "addBatch" not in record.get("durationMs", {}):
            return  # the trigger ran no batch
        if self._task_reader is not None and self._should_read_tasks(job, record):
            record["tasks"] = self._task_reader.read_batch(record["runId"], record["batchId"])
        record["notes"] = self._reports.pop_notes(query, record["batchId"])
        batch = self.metrics.record_batch(job, record)
        with log_context(job=job, query=query, run=record["runId"], batch=batch.id):
            log.info("%s", format_batch(batch))
            self._update_late_alert(job, batch)
            self._warn_of_invalid(job, batch)
        record["alerts"] = dict(self._reports.get_alerts(job))
        self._get_progress_file(job).append(record)
        if self._producer is not None:
            self._producer.send_record(job, record)

    def on_query_terminated(
        self, query: str, run: str, error: str | None, error_class: str | None
    ) -> None:
        """Count and log the end of a query. Without an error, it was stopped."""
        job = self._job_names.get(query, query)
        self.metrics.record_end(job, (error_class or "unknown") if error else None)
        with log_context(job=job, query=query, run=run):
            if error:
                log.error("query of job %s failed: %s", job, error.strip().partition("\n")[0])
            else:
                log.info("query of job %s is stopped", job)

    def _should_read_tasks(self, job: str, record: Mapping[str, Any]) -> bool:
        """Return whether a new interval begins: the tasks of one batch are read in each."""
        now = time.monotonic()
        if (
            not record["numInputRows"]
            or now - self._tasks_read_at.get(job, -self._task_interval_s) < self._task_interval_s
        ):
            return False
        self._tasks_read_at[job] = now
        return True

    def _update_late_alert(self, job: str, batch: BatchProgress) -> None:
        recent = self._recent_batches.setdefault(job, [])
        recent.append(batch)
        del recent[:-_LATE_WINDOW_BATCHES]
        rows = sum(each.rows for each in recent)
        late = sum(each.dropped_rows for batch in recent for each in batch.operators)
        limit = self._jobs[job].alert_late if job in self._jobs else 0.2
        if rows and late / rows > limit:
            message = f"more than {limit:.0%} of its rows come too late; see its watermark"
            self._reports.raise_alert(job, LATE_ALERT, message)
        elif rows:
            self._reports.clear_alert(job, LATE_ALERT)

    def _warn_of_invalid(self, job: str, batch: BatchProgress) -> None:
        """Warn when batches begin to have invalid records. Each progress line has their number."""
        if not batch.rows:
            return
        had_invalid = job in self._jobs_with_invalid
        if not batch.invalid_records:
            self._jobs_with_invalid.discard(job)
        elif not had_invalid:
            self._jobs_with_invalid.add(job)
            for name, count in batch.invalid_counts.items():
                known = job in self._jobs and name in get_inputs(self._jobs[job])
                fate = _describe_fate(self._jobs[job], name) if known else "left out"
                log.warning("invalid records of the input '%s': %d, %s", name, count, fate)

    def _get_progress_file(self, job: str) -> records.ProgressFile:
        if job not in self._progress_files:
            self._progress_files[job] = records.ProgressFile(
                records.get_progress_path(self._section.checkpoints, job)
            )
        return self._progress_files[job]

    def _handle_events(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                event()
            except Exception:  # the report of this event is lost, but queries must go on
                log.exception("progress could not be reported")


@contextmanager
def report_progress(
    section: Pipelines,
    jobs: Sequence[Job],
    client_config: Mapping[str, Any] | None = None,
    reports: Reports | None = None,
    task_interval_s: float = TASK_INTERVAL_S,
    task_reader: TaskMetricsReader | None = None,
) -> Iterator[ProgressReporter]:
    """Report progress while the context is entered; see `ProgressReporter`."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each call as INFO
    with ExitStack() as stack:
        reporter = ProgressReporter(
            section, jobs, client_config, reports, task_interval_s, task_reader
        )
        stack.callback(reporter.close)
        if section.progress.listen is not None:
            host, port = section.progress.host, section.progress.listen
            server = stack.enter_context(MetricsServer(host, port, reporter.collect_metrics))
            reporter.port = server.port
            log.info("metrics of jobs: http://%s:%d/metrics", host, reporter.port)
        yield reporter


def format_batch(batch: BatchProgress) -> str:
    """Return a batch as text, in which the last three parts are left out if they are 0.

    Example: `1,200 rows in 0.41 s, 3,400 of state, 12 late, 1 invalid, 500 behind`.
    """
    parts = [f"{batch.rows:,} rows in {batch.seconds:.2f} s"]
    if batch.operators:
        parts.append(f"{sum(each.rows for each in batch.operators):,} of state")
    late = sum(each.dropped_rows for each in batch.operators)
    behind = sum(each.offsets_behind or 0 for each in batch.sources)
    counts = {"late": late, "invalid": batch.invalid_records, "behind": behind}
    return ", ".join([*parts, *(f"{count:,} {name}" for name, count in counts.items() if count)])


def _describe_fate(job: Job, input_name: str) -> str:
    """Return what happens to the invalid records of an input, to end a sentence."""
    job_input, output = get_inputs(job)[input_name], get_output(job)
    is_written = output is not None and (
        output.guarantee == "exactly-once" or "on_invalid" in job_input.model_fields_set
    )
    if is_written and job_input.on_invalid == "dead-letter":
        return f"written to {get_dead_letter_topic(job_input.topic)}, each with the reason"
    hint = "; onInvalid: dead-letter would write them to a topic" if output is not None else ""
    return f"left out{hint}"
