"""Run jobs for `gateway pipeline run`: queries in one Spark process, until all have ended.

If a job fails, the others continue. SIGTERM and SIGINT end each job after its current batch, but
after `STOP_TIMEOUT_S` at the latest, and the process after `EXIT_TIMEOUT_S`. The next start repeats
a batch that was not finished.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.config.sections.job import Job
from gateway.config.sections.pipelines import Join, Pipelines
from gateway.config.sections.settings import Settings
from gateway.config.types.formats import needs_catalog
from gateway.errors import PipelineError
from gateway.pipeline import clusters
from gateway.pipeline.checkpoint import damage, repair
from gateway.pipeline.checkpoint.files import open_files
from gateway.pipeline.checkpoint.job_checkpoint import JobCheckpoint, prepare_checkpoint
from gateway.pipeline.checkpoint.maintenance import hold_lease
from gateway.pipeline.clusters import build_client_config, find_cluster
from gateway.pipeline.exactly_once.input_topics import OpenTransactions
from gateway.pipeline.job_settings import (
    get_dead_letter_topic,
    get_output,
    list_read_topics,
    resolve_inputs,
)
from gateway.pipeline.progress.listener import report_progress
from gateway.pipeline.reports import Reports
from gateway.pipeline.skew import find_join_hot_keys
from gateway.pipeline.spark.session import (
    build_checkpoint_conf,
    build_job_conf,
    create_job_session,
    create_session,
    is_submitted,
)

from . import query
from .job_run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 50.0  # for batches to end after a signal
EXIT_TIMEOUT_S = 60.0  # for the process to end, whatever Kafka, Redis or Spark do
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL_INTERVAL_S = 1.0  # between two checks of the queries; a signal ends the wait at once


def run_jobs(settings: Settings, pipelines: Pipelines, jobs: Sequence[Job], *, fresh: bool) -> int:
    """Run jobs until all have ended, or a signal arrives; return the exit status."""
    with stop_on_signals() as stop_event, ExitStack() as stack:
        spark = create_session(pipelines.spark, f"gateway-{settings.name}")
        if not is_submitted():
            stack.callback(spark.stop)
        _install_signal_handlers()  # again, because Spark installs one for SIGINT
        process = _JobProcess(settings, pipelines, fresh, stop_event, Reports())
        runs = _create_runs(spark, process, jobs, stack)
        try:
            poll_runs(runs, stop_event)
        finally:
            stopped = [run for run in runs if not run.is_done]
            stop_runs(runs)
    failed = [run for run in runs if run.failure_reason is not None]
    # Logged again at the end, because the other jobs have logged much since.
    for run in failed:
        log.error("job %s has failed: %s", run.job.name, run.failure_reason)
    return choose_status([run.job for run in stopped], has_failed=bool(failed))


def choose_status(stopped: Iterable[Job], *, has_failed: bool) -> int:
    """Return 1 after a failure, and 143, as of SIGTERM, if a job was stopped before its end."""
    is_unfinished = any(job.trigger == "available-now" for job in stopped)
    return 1 if has_failed else 143 if is_unfinished else 0


@dataclass(frozen=True, slots=True)
class _JobProcess:
    """What all jobs of a process share."""

    settings: Settings
    pipelines: Pipelines
    fresh: bool
    stop_event: threading.Event
    reports: Reports


def _create_runs(
    spark: SparkSession, process: _JobProcess, jobs: Sequence[Job], stack: ExitStack
) -> list[JobRun]:
    """Return the runs of jobs, whose resources are closed with the job or the stack."""
    settings, pipelines = process.settings, process.pipelines
    # Progress is written to the first cluster.
    client_config = build_client_config(next(iter(settings.clusters.values())))
    listener = stack.enter_context(report_progress(pipelines, jobs, client_config, process.reports))
    sessions = {job.name: create_configured_session(spark, pipelines, job) for job in jobs}
    for job_session in sessions.values():
        listener.watch_session(job_session)
    stack.callback(damage.StateLogWatcher(spark, process.reports).close)
    # If Kafka does not answer, each job logs that and waits when it starts.
    with suppress(PipelineError):
        for job in jobs:  # all outputs before a job starts, because it may read another's output
            ensure_output_topics(settings, job)
        _warn_of_few_cores(spark, settings, jobs)
    runs = []
    for job in jobs:
        queries = _JobQueries(process, job, sessions[job.name])
        run = JobRun(
            job,
            queries.start_query,
            finish=queries.finish_query,
            find_recreated=queries.find_recreated,
            on_waiting=queries.scan_idle,
            ensure_ownership=queries.ensure_ownership,
        )
        stack.callback(run.resources.close)
        runs.append(run)
    return runs


def create_configured_session(spark: SparkSession, pipelines: Pipelines, job: Job) -> SparkSession:
    """Return a session for a job: settings of the user override those for its state."""
    checkpoint_conf = build_checkpoint_conf(pipelines.checkpoints)
    return create_job_session(
        spark, {**checkpoint_conf, **build_job_conf(job), **pipelines.spark.conf}
    )


class _JobQueries:
    """The queries of one job, one after the other, as its `JobRun` asks for them.

    The checkpoint is prepared by the first start that gets so far, and kept: with `fresh`, each
    preparation would create a new version. From then on no other process changes the checkpoint or
    runs the job.
    """

    def __init__(self, process: _JobProcess, job: Job, spark: SparkSession) -> None:
        self._process = process
        self._job = job
        self._spark = spark
        self._has_lease = False
        self._checkpoint: JobCheckpoint | None = None  # None before the first start
        self._context: query.QueryContext | None = None  # of the latest query
        self._transactions = OpenTransactions(job.name, process.reports)

    def start_query(self, run: JobRun) -> Any:
        process, job, spark = self._process, self._job, self._spark
        ensure_output_topics(process.settings, job)
        check_input_topics(process.settings, job, has_run=self._context is not None)
        if not self._has_lease:
            directory = f"{process.pipelines.checkpoints.rstrip('/')}/{job.name}"
            run.resources.enter_context(hold_lease(directory, job.name))
            self._has_lease = True
            # Closed before the lease, which outlasts the clients of the queries.
            run.resources.callback(self._close)
        if self._checkpoint is None:
            self._checkpoint = prepare_checkpoint(
                process.pipelines.checkpoints,
                job,
                spark,
                fresh=process.fresh,
                find_hot_keys=self._find_hot_keys,
            )
        repair.recover_state(
            open_files(self._checkpoint.location, spark),
            job.name,
            self._replay_batch,
            process.reports,
            state_error=run.state_error,
            # The contents of files are only checked if the state could not be read.
            check_content=damage.create_content_check(spark) if run.state_error else None,
        )
        run.mark_state_readable()
        return query.start_query(self._open_context())

    def finish_query(self) -> None:
        assert self._context is not None
        if (side_outputs := self._context.side_outputs) is not None:
            side_outputs.finish()

    def scan_idle(self) -> None:
        assert self._context is not None
        if (side_outputs := self._context.side_outputs) is not None:
            side_outputs.scan_idle()

    def ensure_ownership(self) -> bool:
        """Take the job over unless this process has; return False if it has no ledger for that."""
        assert self._context is not None
        if (side_outputs := self._context.side_outputs) is None:
            return False
        side_outputs.ensure_main()
        return True

    def find_recreated(self) -> PipelineError | None:
        assert self._context is not None
        if ends := self._context.topics.fetch_ends():
            self._transactions.update(ends)
        return self._context.topics.find_recreated()

    def _close(self) -> None:
        self._transactions.close()
        if self._context is not None:
            self._context.close()

    def _open_context(self, *, replay_state: bool = False) -> query.QueryContext:
        process = self._process
        assert self._checkpoint is not None
        context = query.QueryContext(
            self._spark,
            self._job,
            process.settings,
            self._checkpoint,
            process.reports,
            threading.Event() if replay_state else process.stop_event,
            replay_state,
        )
        if self._context is not None:
            self._context.close()
        self._context = context
        return context

    def _replay_batch(self) -> None:
        query.start_query(self._open_context(replay_state=True)).awaitTermination()

    def _find_hot_keys(self) -> Sequence[str]:
        if not isinstance(self._job, Join) or self._job.salt is None:
            return ()
        settings = self._process.settings
        return find_join_hot_keys(self._spark, self._job, settings.clusters, settings.catalogs)


def ensure_output_topics(settings: Settings, job: Job) -> None:
    to = get_output(job)
    if to is None:
        return
    client_config = build_client_config(find_cluster(settings.clusters, to.kafka))
    clusters.create_topic(client_config, to.topic, to.partitions)
    # Spark's sink creates no topics.
    if to.guarantee == "at-least-once" and needs_catalog(to.model):
        clusters.create_topic(client_config, get_dead_letter_topic(to.topic))


def check_input_topics(settings: Settings, job: Job, *, has_run: bool = False) -> None:
    """Check that the topics exist. Spark would report that only after a minute.

    Raises:
        TopicMissing: A topic does not exist that the job has read before. It may be recreated, so
            the job waits for it.
    """
    for kafka, topic in list_read_topics(job).values():
        if topic not in clusters.list_topics(find_cluster(settings.clusters, kafka)):
            if has_run:
                raise clusters.TopicMissing(f"topic {topic} does not exist any more")
            raise PipelineError(f"topic {topic} does not exist; create it, or correct its name")


def _warn_of_few_cores(spark: SparkSession, settings: Settings, jobs: Sequence[Job]) -> None:
    """Warn if real-time jobs have more partitions, each with a task at all times, than cores."""
    cores = int(spark.sparkContext.defaultParallelism)
    needed = 0
    for job in jobs:
        if job.trigger == "realtime":
            for each in resolve_inputs(job).values():
                known = clusters.list_topics(find_cluster(settings.clusters, each.kafka))
                needed += known.get(each.topic, 0)
    if needed > cores:
        problem = "jobs in real-time mode need a core for each partition they read"
        log.warning("%s: %d, and there are %d; set spark.master", problem, needed, cores)


def poll_runs(
    runs: Sequence[JobRun], stop_event: threading.Event, interval_s: float = POLL_INTERVAL_S
) -> None:
    """Poll the runs until all are done, or the event is set, which ends the wait at once."""
    while not stop_event.is_set() and not all(run.is_done for run in runs):
        for run in runs:
            # A query that its batch has retired at the signal may not have read all.
            if not stop_event.is_set():
                run.poll()
        stop_event.wait(interval_s)


def stop_runs(runs: Sequence[JobRun], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Stop each run after its current batch, or when the time is over, and end them."""
    deadline = time.monotonic() + timeout_s
    running = [run for run in runs if not run.is_done]
    pending = list(running)
    while pending:
        is_over = time.monotonic() >= deadline
        for run in pending:
            run.retire()
        for run in [run for run in pending if is_over or run.is_idle()]:
            run.stop()
            pending.remove(run)
        # Short, because a query with a short trigger is idle only for moments.
        time.sleep(0.005 if pending else 0)
    for run in running:
        run.end(is_over=time.monotonic() >= deadline)


@contextmanager
def stop_on_signals(exit_timeout_s: float = EXIT_TIMEOUT_S) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set.

    A second signal ends the process at once, and so does the end of the timeout, if the context has
    not ended until then. The ledger makes that safe in the middle of a batch.

    Python runs signal handlers in the main thread only, where a call of librdkafka may hold them up
    for as long as a transaction may stay open. So a thread reads the signals, from the descriptor
    to which Python writes each at once.
    """
    stop_event = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    timer = threading.Timer(exit_timeout_s, _end_process, (exit_timeout_s,))
    timer.daemon = True

    def watch_signals() -> None:
        while received := reader.recv(1):  # until the context has closed the writer
            number = received[0]
            if number in _STOP_SIGNALS:
                if stop_event.is_set():
                    os._exit(128 + number)
                stop_event.set()
                timer.start()

    watcher = threading.Thread(target=watch_signals, name="signals", daemon=True)
    watcher.start()
    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    previous_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        _install_signal_handlers()
        yield stop_event
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_descriptor)
        writer.close()
        watcher.join()
        timer.cancel()
        reader.close()


def _install_signal_handlers() -> None:
    """Let Python write the signals to the descriptor of `stop_on_signals`, and do nothing else."""
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)


def _end_process(timeout_s: float) -> None:
    log.warning(
        "a call to Kafka, Redis or Spark has not ended %g s after the signal; the process ends, "
        "and the next start repeats the batch",
        timeout_s,
    )
    os._exit(128 + signal.SIGTERM)  # not 0: a job that has to end, as in a CronJob, has not
