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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.config.sections.job import Job
from gateway.config.sections.pipelines import Join, Pipelines
from gateway.config.sections.settings import Settings
from gateway.errors import PipelineError
from gateway.pipeline import topics
from gateway.pipeline.checkpoint.job_checkpoint import JobCheckpoint, prepare_checkpoint
from gateway.pipeline.inputs.schemas import has_schema
from gateway.pipeline.jobs import get_output
from gateway.pipeline.progress.open_transactions import OpenTransactions
from gateway.pipeline.spark.client_config import build_client_config, find_cluster
from gateway.pipeline.spark.session import (
    build_checkpoint_conf,
    create_job_session,
    create_session,
    is_submitted,
)
from gateway.pipeline.state import damage, integrity, lease, profiles, recovery
from gateway.pipeline.state.files import open_files

from . import query
from .dead_letter_format import get_dead_letter_topic
from .job_run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.exactly_once.recreated_topics import InputTopics

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 50.0  # for batches to end after a signal
EXIT_TIMEOUT_S = 60.0  # for the process to end, whatever Kafka, Redis or Spark do
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL_INTERVAL_S = 1.0  # between two checks of the queries; a signal ends the wait at once


def run_jobs(settings: Settings, pipelines: Pipelines, jobs: Sequence[Job], *, fresh: bool) -> int:
    """Run jobs until all have ended, or a signal arrives; return 1 if one failed, else 0."""
    with stop_on_signals() as stop_event, ExitStack() as stack:
        spark = create_session(pipelines.spark, f"gateway-{settings.name}")
        if not is_submitted():
            stack.callback(spark.stop)
        _install_signal_handlers()  # again, because Spark installs one for SIGINT
        runs = _create_runs(spark, settings, pipelines, jobs, stack, fresh, stop_event)
        try:
            poll_runs(runs, stop_event)
        finally:
            stop_runs(runs)
    failed = [run for run in runs if run.failure_reason is not None]
    # Logged again at the end, because the other jobs have logged much since.
    for run in failed:
        log.error("job %s has failed: %s", run.job.name, run.failure_reason)
    return 1 if failed else 0


def _create_runs(
    spark: SparkSession,
    settings: Settings,
    pipelines: Pipelines,
    jobs: Sequence[Job],
    stack: ExitStack,
    fresh: bool,
    stop_event: threading.Event,
) -> list[JobRun]:
    from gateway.pipeline.progress.listener import report_progress

    listener = stack.enter_context(
        report_progress(pipelines, jobs, _build_progress_client_config(settings))
    )
    sessions = {job.name: create_configured_session(spark, pipelines, job) for job in jobs}
    for session in sessions.values():
        listener.watch_session(session)
    stack.callback(damage.StateLogWatcher(spark).close)
    # If Kafka does not answer, each job logs that and waits when it starts.
    with suppress(PipelineError):
        for job in jobs:  # all outputs before a job starts, because it may read another's output
            _ensure_output_topics(settings, job)
        _warn_of_few_cores(spark, settings, jobs)
    return [
        _create_run(sessions[job.name], settings, pipelines, job, stack, fresh, stop_event)
        for job in jobs
    ]


def create_configured_session(spark: SparkSession, pipelines: Pipelines, job: Job) -> SparkSession:
    """Return a session for a job: settings of the user override those for its state."""
    checkpoint_conf = build_checkpoint_conf(pipelines.checkpoints)
    return create_job_session(
        spark, {**checkpoint_conf, **profiles.build_job_conf(job), **pipelines.spark.conf}
    )


def _create_run(
    spark: SparkSession,
    settings: Settings,
    pipelines: Pipelines,
    job: Job,
    stack: ExitStack,
    fresh: bool,
    stop_event: threading.Event,
) -> JobRun:
    """Return the run of a job, whose resources are closed with the job or the stack."""
    job_lease = lease.Lease(f"{pipelines.checkpoints.rstrip('/')}/{job.name}", job.name)
    starter = _QueryStarter(
        spark, settings, pipelines, job, fresh=fresh, stop_event=stop_event, job_lease=job_lease
    )
    run = JobRun(
        job,
        lambda: starter.start_query(run),
        finish=starter.finish_query,
        find_recreated=starter.find_recreated,
        on_waiting=starter.scan_idle,
    )
    # Entered first and therefore closed last: the lease outlasts the clients of the queries.
    run.resources.enter_context(job_lease)
    run.resources.callback(starter.close_queries)
    stack.callback(run.resources.close)
    return run


class _QueryStarter:
    """Start the query of one job, as often as its `JobRun` asks for it.

    The checkpoint is prepared by the first start that gets so far, and kept: with `fresh`, each
    preparation would create a new version.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipelines: Pipelines,
        job: Job,
        *,
        fresh: bool,
        stop_event: threading.Event,
        job_lease: lease.Lease,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._pipelines = pipelines
        self._job = job
        self._fresh = fresh
        self._stop_event = stop_event
        self._lease = job_lease
        self._checkpoint: JobCheckpoint | None = None  # None before the first start
        self._input_topics: InputTopics | None = None  # of the current query
        self._transactions = OpenTransactions(job.name)

    def start_query(self, run: JobRun) -> Any:
        spark, settings, job = self._spark, self._settings, self._job
        _ensure_output_topics(settings, job)
        _check_input_topics(settings, job, has_run=self._input_topics is not None)
        # From here on no other process changes the checkpoint or runs the job.
        self._lease.acquire()
        if self._checkpoint is None:
            self._checkpoint = prepare_checkpoint(
                self._pipelines.checkpoints,
                job,
                spark,
                fresh=self._fresh,
                find_hot_keys=partial(_find_hot_keys, spark, settings, job),
            )
        _recover_state(spark, settings, job, self._checkpoint, is_damaged=run.has_damaged_state)
        run.mark_state_readable()
        self._input_topics = query.create_input_topics(job, settings)
        return query.start_query(
            spark,
            job,
            settings,
            self._checkpoint,
            stop_event=self._stop_event,
            input_topics=self._input_topics,
        )

    def finish_query(self) -> None:
        from gateway.pipeline.exactly_once import side_outputs

        assert self._checkpoint is not None
        side_outputs.finish(self._checkpoint.query_id)

    def scan_idle(self) -> None:
        from gateway.pipeline.exactly_once import side_outputs

        assert self._checkpoint is not None
        side_outputs.scan_idle(self._checkpoint.query_id)

    def find_recreated(self) -> PipelineError | None:
        assert self._input_topics is not None
        if ends := self._input_topics.fetch_ends():
            self._transactions.update(ends)
        return self._input_topics.find_recreated()

    def close_queries(self) -> None:
        self._transactions.close()
        if self._checkpoint is not None:
            query.close_clients(self._checkpoint.query_id)


def _recover_state(
    spark: SparkSession,
    settings: Settings,
    job: Job,
    job_checkpoint: JobCheckpoint,
    *,
    is_damaged: bool,
) -> None:
    """Repair the state; the contents of files are only checked if it could not be read."""
    check_content = integrity.create_content_check(spark._jvm) if is_damaged else None

    def run_once() -> None:
        query.start_query(
            spark, job, settings, job_checkpoint, replay_state=True
        ).awaitTermination()

    recovery.recover_state(
        open_files(job_checkpoint.location, spark),
        job.name,
        run_once,
        is_damaged=is_damaged,
        check_content=check_content,
    )


def _find_hot_keys(spark: SparkSession, settings: Settings, job: Job) -> Sequence[str]:
    if not isinstance(job, Join) or job.salt is None:
        return ()
    from gateway.pipeline.skew import find_join_hot_keys

    return find_join_hot_keys(spark, job, settings.clusters, settings.catalogs)


def _ensure_output_topics(settings: Settings, job: Job) -> None:
    to = get_output(job)
    if to is None:
        return
    kafka = find_cluster(settings.clusters, to.kafka)
    known = topics.list_topics(kafka)
    topics.ensure_topic(kafka, to.topic, to.partitions, known)
    # Spark's sink creates no topics.
    if to.guarantee == "at-least-once" and has_schema(to.model):
        topics.ensure_topic(kafka, get_dead_letter_topic(to.topic), None, known)


def _check_input_topics(settings: Settings, job: Job, *, has_run: bool) -> None:
    """Check that the topics exist. Spark would report that only after a minute.

    Raises:
        TopicMissing: A topic does not exist that the job has read before. It may be recreated, so
            the job waits for it.
    """
    for kafka, topic in query.list_read_topics(job).values():
        if topic not in topics.list_topics(find_cluster(settings.clusters, kafka)):
            if has_run:
                raise topics.TopicMissing(f"topic {topic} does not exist any more")
            raise PipelineError(f"topic {topic} does not exist; create it, or correct its name")


def _warn_of_few_cores(spark: SparkSession, settings: Settings, jobs: Sequence[Job]) -> None:
    """Warn if real-time jobs have more partitions, each with a task at all times, than cores."""
    cores = int(spark.sparkContext.defaultParallelism)
    needed = 0
    for job in jobs:
        if job.trigger == "realtime":
            for each in query.resolve_inputs(job).values():
                known = topics.list_topics(find_cluster(settings.clusters, each.kafka))
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
    os._exit(0)


def _build_progress_client_config(settings: Settings) -> dict[str, object]:
    """Return librdkafka's properties of the first cluster, to which progress is written."""
    return build_client_config(next(iter(settings.clusters.values())))
