"""`gateway pipeline run`: jobs as queries of one Spark session, until they end or are ended.

A job that fails ends alone, the others go on. SIGTERM and SIGINT end all after the batch that is
under way, within a bound; what a batch has not finished by then is done by the next start.
"""

from __future__ import annotations

import logging
import os
import signal
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
from .dead_letters import get_dead_letter_topic
from .job_run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.exactly_once.recreated_topics import InputTopics

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 60.0  # s for batches to end once we are told to
POLL_INTERVAL_S = 1.0  # s between two looks at the queries; to be told to end is heard at once


def run_jobs(settings: Settings, pipelines: Pipelines, jobs: Sequence[Job], *, fresh: bool) -> int:
    """Run jobs until all have ended. fresh: with new checkpoints.

    0: all ended as they should, or we were told to end; 1: at least one failed, as the log says.
    Raises PipelineError: Spark cannot be started.
    """
    with stop_on_signals() as told, ExitStack() as stack:
        spark = create_session(pipelines.spark, f"gateway-{settings.name}")
        if not is_submitted():
            stack.callback(spark.stop)
        install_signal_handlers(told)
        runs = _create_runs(spark, settings, pipelines, jobs, stack, fresh, told)
        try:
            poll_runs(runs, told)
        finally:
            stop_runs(runs)
    failed = [each for each in runs if each.failure_reason is not None]
    for each in failed:
        log.error("job %s has failed: %s", each.job.name, each.failure_reason)
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

    told = stack.enter_context(
        report_progress(pipelines, jobs, _build_progress_client_config(settings))
    )
    sessions = {job.name: create_configured_session(spark, pipelines, job) for job in jobs}
    for each in sessions.values():
        told.watch_session(each)
    stack.callback(damage.StateLogWatcher(spark).close)
    with suppress(PipelineError):  # of Kafka that is away: each job says so, and waits
        for job in jobs:  # all of them first: what one writes another may read
            _ensure_output_topics(settings, job)
        _warn_of_few_cores(spark, settings, jobs)
    return [
        _create_run(sessions[job.name], settings, pipelines, job, stack, fresh, stop_event)
        for job in jobs
    ]


def create_configured_session(spark: SparkSession, pipelines: Pipelines, job: Job) -> SparkSession:
    """With what its state and its checkpoint want, and above all what the user does."""
    place = build_checkpoint_conf(pipelines.checkpoints)
    return create_job_session(
        spark, {**place, **profiles.build_job_conf(job), **pipelines.spark.conf}
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
    places: list[JobCheckpoint] = []  # a new version is begun once, not by each try
    read: list[InputTopics] = []  # of the query that runs

    def start_query() -> Any:
        _ensure_output_topics(settings, job)
        _check_input_topics(settings, job, has_run=bool(read))
        taken.acquire()
        if not places:
            hot = partial(_find_hot_keys, spark, settings, job)
            places.append(
                prepare_checkpoint(
                    pipelines.checkpoints, job, spark, fresh=fresh, find_hot_keys=hot
                )
            )
        _recover_state(spark, settings, job, places[0], is_damaged=made.has_damaged_state)
        made.mark_state_readable()
        found = made.take_record_to_skip()
        read[:] = [query.create_input_topics(job, settings)]
        return query.start_query(
            spark,
            job,
            settings,
            places[0],
            stop_event=stop_event,
            unreadable=found,
            input_topics=read[0],
        )

    def finish_query() -> None:
        from gateway.pipeline.exactly_once import side_outputs

        side_outputs.finish(places[0].query_id)

    def close_queries() -> None:
        for each in places:
            query.close_clients(each.query_id)

    made = JobRun(
        job, start_query, finish=finish_query, have_inputs_changed=lambda: read[0].have_changed()
    )
    taken = made.resources.enter_context(
        lease.Lease(f"{pipelines.checkpoints.rstrip('/')}/{job.name}", job.name)
    )
    made.resources.callback(close_queries)
    stack.callback(made.resources.close)
    return made


def _recover_state(
    spark: SparkSession,
    settings: Settings,
    job: Job,
    job_checkpoint: JobCheckpoint,
    *,
    is_damaged: bool,
) -> None:
    """State that a query could not read, before it is begun again."""
    deep = integrity.create_content_check(spark._jvm) if is_damaged else None

    def run_once() -> None:
        query.start_query(
            spark, job, settings, job_checkpoint, replay_state=True
        ).awaitTermination()

    recovery.recover_state(
        open_files(job_checkpoint.location, spark),
        job.name,
        run_once,
        is_damaged=is_damaged,
        check_content=deep,
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
    if to.guarantee == "at-least-once" and has_schema(to.model):  # Spark's sink makes no topics
        topics.ensure_topic(kafka, get_dead_letter_topic(to.topic), None, known)


def _check_input_topics(settings: Settings, job: Job, *, has_run: bool) -> None:
    """Look whether the topics are there: Spark would say so after a minute.

    Raises:
        TopicMissing: One is not there that the job has read, and may be recreated.
        PipelineError: One is not there.
    """
    for each in query.resolve_inputs(job).values():
        if each.topic not in topics.list_topics(find_cluster(settings.clusters, each.kafka)):
            if has_run:
                raise topics.TopicMissing(f"topic {each.topic} does not exist any more")
            raise PipelineError(f"topic {each.topic} does not exist; make it, or correct its name")


def _warn_of_few_cores(spark: SparkSession, settings: Settings, jobs: Sequence[Job]) -> None:
    """Real-time mode runs a task for each partition all the time: fewer cores, and some wait."""
    cores = int(spark.sparkContext.defaultParallelism)
    needed = 0
    for job in jobs:
        if job.trigger == "realtime":
            for each in query.resolve_inputs(job).values():
                known = topics.list_topics(find_cluster(settings.clusters, each.kafka))
                needed += known.get(each.topic, 0)
    if needed > cores:
        what = "jobs in real-time mode need a core for each partition they read"
        log.warning("%s: %d, and there are %d; set spark.master", what, needed, cores)


def poll_runs(runs: Sequence[JobRun], stop_event: threading.Event) -> None:
    while not stop_event.is_set() and not all(each.is_done for each in runs):
        for each in runs:
            each.poll()
        stop_event.wait(POLL_INTERVAL_S)


def stop_runs(runs: Sequence[JobRun], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Each after the batch that is under way; after so many seconds all the same."""
    until = time.monotonic() + timeout_s
    left = [each for each in runs if not each.is_done]
    while left:
        late = time.monotonic() >= until
        for each in left:
            each.retire()
        for each in [each for each in left if late or each.is_idle()]:
            each.stop()
            left.remove(each)
        time.sleep(0.005 if left else 0)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Set by SIGTERM and SIGINT; a second one ends without waiting."""
    told = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        install_signal_handlers(told)
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def install_signal_handlers(stop_event: threading.Event) -> None:
    """Also after Spark has taken SIGINT for itself."""

    def on_signal(number: int, _: object) -> None:
        if stop_event.is_set():
            os._exit(128 + number)
        stop_event.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def _build_progress_client_config(settings: Settings) -> dict[str, object]:
    """Of the first cluster: progress goes there."""
    return build_client_config(next(iter(settings.clusters.values())))
