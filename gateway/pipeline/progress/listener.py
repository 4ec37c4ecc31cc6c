"""Progress of running queries: to Prometheus, to a topic, to the log, and to the doctor's file.

    with telling(section, jobs, client) as told:
        told.watch(session)          # each session that starts queries; their names are their jobs'

Spark tells its listeners of one thread; it only puts what it hears into a queue here. A thread of
our own asks for times of tasks, counts, writes and sends: a slow disk or Kafka holds up nobody, and
what is too much is counted and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from gateway.config.sections.job import Job
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.doctor.query_run import BatchProgress
from gateway.telemetry.log_context import log_context
from gateway.telemetry.samples import MetricSamples

from . import alerts, counts, progress_file
from .metrics import ProgressMetrics
from .metrics_server import MetricsServer
from .producer import ProgressProducer
from .tasks import TaskMetricsReader

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 1000  # events, of some KB each
TASK_INTERVAL_S = 10.0  # s between two looks at the tasks of a job
_LATE_WINDOW_BATCHES = 10  # batches that the share of late rows is of

_EventHandler: TypeAlias = Callable[[], None]


class QueryListener:
    """What Spark calls. Nothing in here may take time, or raise.

    An event is taken as its JSON, in one call: pyspark's own listener asks Spark for each number of
    it, hundreds a batch. With those, and a look at tasks in each batch, to tell of a join took
    166 ms of Spark's thread and 66 of Python a batch (2 shared cores); now 1 and 6.
    """

    def __init__(self, reporter: ProgressReporter) -> None:
        self._reporter = reporter

    def onQueryStarted(self, event: Any) -> None:
        said = json.loads(event.json())
        query, run, name = said["id"], said["runId"], said["name"]
        self._reporter.enqueue(
            lambda: self._reporter.on_query_started(query, run, name), name or query
        )

    def onQueryProgress(self, event: Any) -> None:
        said = json.loads(event.json())["progress"]
        self._reporter.enqueue(lambda: self._reporter.on_query_progress(said), said["name"] or "")

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        said = json.loads(event.json())
        query, run, error = said["id"], said["runId"], said.get("exception")
        kind = said.get("errorClassOnException")
        self._reporter.enqueue(
            lambda: self._reporter.on_query_terminated(query, run, error, kind), query
        )

    @property
    def _jlistener(self) -> Any:
        """What `spark.streams.addListener` registers."""
        from pyspark import SparkContext

        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class ProgressReporter:
    """See the module. jobs: those that run, by name. every: seconds between two looks at the tasks
    of a job."""

    def __init__(
        self,
        section: Pipelines,
        jobs: Sequence[Job],
        client_config: Mapping[str, Any] | None = None,
        task_interval_s: float = TASK_INTERVAL_S,
    ) -> None:
        self.metrics = ProgressMetrics()
        self.port: int | None = None  # of Prometheus, once it listens
        self._section = section
        self._jobs = {job.name: job for job in jobs}
        self._job_names: dict[str, str] = {}
        self._progress_files: dict[str, progress_file.ProgressFile] = {}
        self._recent_batches: dict[str, list[BatchProgress]] = {}
        self._task_reader: TaskMetricsReader | None = None
        self._task_interval_s = task_interval_s
        self._tasks_read_at: dict[str, float] = {}
        self._producer = _create_producer(section, client_config, self.metrics)
        self._events: queue.Queue[_EventHandler | None] = queue.Queue(MAX_QUEUED_EVENTS)
        self._thread = threading.Thread(target=self._handle_events, name="progress", daemon=True)
        self._thread.start()

    def watch_session(self, spark: Any) -> None:
        """The queries that a session will start; each session has listeners of its own."""
        if self._task_reader is None:
            self._task_reader = TaskMetricsReader(spark)
        spark.streams.addListener(QueryListener(self))

    def collect_metrics(self) -> MetricSamples:
        """All that is known of the jobs of this process, now."""
        into = MetricSamples()
        self.metrics.collect_metrics(into)
        counts.collect_metrics(into)
        alerts.collect_metrics(into)
        return into

    def enqueue(self, event: _EventHandler, job: str) -> None:
        """From Spark's thread."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self.metrics.record_untold_event(self._job_names.get(job, job))

    def close(self, timeout_s: float = 10.0) -> None:
        """What was heard is told first."""
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
        query, job = record["id"], record.get("name") or record["id"]
        if "addBatch" not in record.get("durationMs", {}):
            return  # nothing was done
        if self._task_reader is not None and self._should_read_tasks(job, record):
            record["tasks"] = self._task_reader.read_batch(record["runId"], record["batchId"])
        record["notes"] = progress_file.pop_notes(query, record.get("name"), record["batchId"])
        found = self.metrics.record_batch(job, record)
        with log_context(job=job, query=query, run=record["runId"], batch=found.id):
            log.info("%s", format_batch(found))
            self._update_late_alert(job, found)
        self._get_progress_file(job).append(record)
        if self._producer is not None:
            self._producer.send_record(job, record)

    def on_query_terminated(
        self, query: str, run: str, error: str | None, error_class: str | None
    ) -> None:
        job = self._job_names.get(query, query)
        self.metrics.record_end(job, (error_class or "unknown") if error else None)
        with log_context(job=job, query=query, run=run):
            if error:
                log.error("query of job %s failed: %s", job, error.strip().partition("\n")[0])
            else:
                log.info("query of job %s is stopped", job)

    def _should_read_tasks(self, job: str, record: Mapping[str, Any]) -> bool:
        """Are its tasks looked at? Of batches with input, one in so many seconds."""
        now = time.monotonic()
        if (
            not record["numInputRows"]
            or now - self._tasks_read_at.get(job, -self._task_interval_s) < self._task_interval_s
        ):
            return False
        self._tasks_read_at[job] = now
        return True

    def _update_late_alert(self, job: str, batch: BatchProgress) -> None:
        held = self._recent_batches.setdefault(job, [])
        held.append(batch)
        del held[:-_LATE_WINDOW_BATCHES]
        rows = sum(each.rows for each in held)
        late = sum(each.dropped_rows for batch in held for each in batch.operators)
        limit = self._jobs[job].alert_late if job in self._jobs else 0.2
        if rows and late / rows > limit:
            what = f"more than {limit:.0%} of its rows come too late; see its watermark"
            alerts.raise_alert(job, "late", what)
        elif rows:
            alerts.clear_alert(job, "late")

    def _get_progress_file(self, job: str) -> progress_file.ProgressFile:
        if job not in self._progress_files:
            self._progress_files[job] = progress_file.ProgressFile(
                progress_file.get_progress_path(self._section.checkpoints, job)
            )
        return self._progress_files[job]

    def _handle_events(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                event()
            except Exception:  # a record less; the query goes on, and so do others'
                log.exception("progress could not be told")


@contextmanager
def report_progress(
    section: Pipelines,
    jobs: Sequence[Job],
    client_config: Mapping[str, Any] | None = None,
    task_interval_s: float = TASK_INTERVAL_S,
) -> Iterator[ProgressReporter]:
    """For as long as jobs run. client: librdkafka's settings of the cluster that `progress.topic`
    is of. every: seconds between two looks at a job's tasks. Raises PipelineError where
    `progress.listen` is taken."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each call that it hears
    with ExitStack() as stack:
        told = ProgressReporter(section, jobs, client_config, task_interval_s)
        stack.callback(told.close)
        if section.progress.listen is not None:
            at = (section.progress.host, section.progress.listen)
            told.port = stack.enter_context(MetricsServer(*at, told.collect_metrics)).port
            log.info("metrics of jobs: http://%s:%d/metrics", at[0], told.port)
        yield told


def format_batch(batch: BatchProgress) -> str:
    """`1,200 rows in 0.41 s, 3,400 of state, 12 late, 500 behind`"""
    said = [f"{batch.rows:,} rows in {batch.seconds:.2f} s"]
    if batch.operators:
        said.append(f"{sum(each.rows for each in batch.operators):,} of state")
    late = sum(each.dropped_rows for each in batch.operators)
    behind = sum(each.offsets_behind or 0 for each in batch.sources)
    said += [f"{late:,} late"] * bool(late) + [f"{behind:,} behind"] * bool(behind)
    return ", ".join(said)


def _create_producer(
    section: Pipelines, client_config: Mapping[str, Any] | None, metrics: ProgressMetrics
) -> ProgressProducer | None:
    if section.progress.topic is None or client_config is None:
        return None
    return ProgressProducer(section.progress.topic, client_config, metrics.record_untold_event)
