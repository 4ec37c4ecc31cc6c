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

from gateway.config.sections.pipeline import Job
from gateway.config.sections.pipelines import Join, Pipelines
from gateway.config.sections.settings import Settings
from gateway.errors import PipelineError
from gateway.pipeline import topics
from gateway.pipeline.checkpoint.place import Place, ready
from gateway.pipeline.inputs.schemas import has_schema
from gateway.pipeline.jobs import output
from gateway.pipeline.spark.connect import client, cluster_of
from gateway.pipeline.spark.session import of_checkpoints, of_job, session, submitted
from gateway.pipeline.state import damage, lease, mend, profiles, whole
from gateway.pipeline.state.files import files

from . import query
from .dead_letters import dead_letters_of
from .run import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.exactly_once.recreated import InputTopics

log = logging.getLogger(__name__)

WITHIN = 60.0  # s for batches to end once we are told to
TURN = 1.0  # s between two looks at the queries; to be told to end is heard at once


def run(settings: Settings, pipelines: Pipelines, jobs: Sequence[Job], *, fresh: bool) -> int:
    """Run jobs until all have ended. fresh: with new checkpoints.

    0: all ended as they should, or we were told to end; 1: at least one failed, as the log says.
    Raises PipelineError: Spark cannot be started.
    """
    with told_to_end() as told, ExitStack() as stack:
        spark = session(pipelines.spark, f"gateway-{settings.name}")
        if not submitted():
            stack.callback(spark.stop)
        signals_are_ours(told)
        runs = _runs(spark, settings, pipelines, jobs, stack, fresh, told)
        try:
            turns(runs, told)
        finally:
            end(runs)
    failed = [each for each in runs if each.reason is not None]
    for each in failed:
        log.error("job %s has failed: %s", each.job.name, each.reason)
    return 1 if failed else 0


def _runs(
    spark: SparkSession,
    settings: Settings,
    pipelines: Pipelines,
    jobs: Sequence[Job],
    stack: ExitStack,
    fresh: bool,
    ending: threading.Event,
) -> list[Run]:
    from gateway.pipeline.progress.listener import telling

    told = stack.enter_context(telling(pipelines, jobs, _first_client(settings)))
    sessions = {job.name: session_of(spark, pipelines, job) for job in jobs}
    for each in sessions.values():
        told.watch(each)
    stack.callback(damage.Watch(spark).close)
    with suppress(PipelineError):  # of Kafka that is away: each job says so, and waits
        for job in jobs:  # all of them first: what one writes another may read
            _outputs(settings, job)
        _warn(spark, settings, jobs)
    return [
        _run(sessions[job.name], settings, pipelines, job, stack, fresh, ending) for job in jobs
    ]


def session_of(spark: SparkSession, pipelines: Pipelines, job: Job) -> SparkSession:
    """With what its state and its checkpoint want, and above all what the user does."""
    place = of_checkpoints(pipelines.checkpoints)
    return of_job(spark, {**place, **profiles.of(job), **pipelines.spark.conf})


def _run(
    spark: SparkSession,
    settings: Settings,
    pipelines: Pipelines,
    job: Job,
    stack: ExitStack,
    fresh: bool,
    ending: threading.Event,
) -> Run:
    places: list[Place] = []  # a new version is begun once, not by each try
    read: list[InputTopics] = []  # of the query that runs

    def start() -> Any:
        _outputs(settings, job)
        _inputs(settings, job, has_run=bool(read))
        taken.take()
        if not places:
            hot = partial(_hot, spark, settings, job)
            places.append(ready(pipelines.checkpoints, job, spark, fresh=fresh, hot=hot))
        _mend(spark, settings, job, places[0], damaged=made.damaged)
        made.note_mended()
        found = made.take_unreadable()
        read[:] = [query.input_topics(job, settings)]
        return query.start(
            spark, job, settings, places[0], ending=ending, unreadable=found, inputs=read[0]
        )

    def finish() -> None:
        from gateway.pipeline.exactly_once import beside

        beside.finish(places[0].query)

    def close() -> None:
        for each in places:
            query.close(each.query)

    made = Run(job, start, finish=finish, have_inputs_changed=lambda: read[0].have_changed())
    taken = made.held.enter_context(
        lease.Lease(f"{pipelines.checkpoints.rstrip('/')}/{job.name}", job.name)
    )
    made.held.callback(close)
    stack.callback(made.held.close)
    return made


def _mend(
    spark: SparkSession, settings: Settings, job: Job, place: Place, *, damaged: bool
) -> None:
    """State that a query could not read, before it is begun again."""
    deep = whole.by_jvm(spark._jvm) if damaged else None

    def once() -> None:
        query.start(spark, job, settings, place, again=True).awaitTermination()

    mend.mend(files(place.location, spark), job.name, once, damaged=damaged, deep=deep)


def _hot(spark: SparkSession, settings: Settings, job: Job) -> Sequence[str]:
    if not isinstance(job, Join) or job.salt is None:
        return ()
    from gateway.pipeline.skew import found_hot

    return found_hot(spark, job, settings.clusters, settings.catalogs)


def _outputs(settings: Settings, job: Job) -> None:
    to = output(job)
    if to is None:
        return
    kafka = cluster_of(settings.clusters, to.kafka)
    known = topics.present(kafka)
    topics.ensure(kafka, to.topic, to.partitions, known)
    if to.guarantee == "at-least-once" and has_schema(to.model):  # Spark's sink makes no topics
        topics.ensure(kafka, dead_letters_of(to.topic), None, known)


def _inputs(settings: Settings, job: Job, *, has_run: bool) -> None:
    """Look whether the topics are there: Spark would say so after a minute.

    Raises:
        TopicMissing: One is not there that the job has read, and may be recreated.
        PipelineError: One is not there.
    """
    for each in query.read(job).values():
        if each.topic not in topics.present(cluster_of(settings.clusters, each.kafka)):
            if has_run:
                raise topics.TopicMissing(f"topic {each.topic} does not exist any more")
            raise PipelineError(f"topic {each.topic} does not exist; make it, or correct its name")


def _warn(spark: SparkSession, settings: Settings, jobs: Sequence[Job]) -> None:
    """Real-time mode runs a task for each partition all the time: fewer cores, and some wait."""
    cores = int(spark.sparkContext.defaultParallelism)
    needed = 0
    for job in jobs:
        if job.trigger == "realtime":
            for each in query.read(job).values():
                known = topics.present(cluster_of(settings.clusters, each.kafka))
                needed += known.get(each.topic, 0)
    if needed > cores:
        what = "jobs in real-time mode need a core for each partition they read"
        log.warning("%s: %d, and there are %d; set spark.master", what, needed, cores)


def turns(runs: Sequence[Run], told: threading.Event) -> None:
    while not told.is_set() and not all(each.done for each in runs):
        for each in runs:
            each.look()
        told.wait(TURN)


def end(runs: Sequence[Run], within: float = WITHIN) -> None:
    """Each after the batch that is under way; after so many seconds all the same."""
    until = time.monotonic() + within
    left = [each for each in runs if not each.done]
    while left:
        late = time.monotonic() >= until
        for each in left:
            each.retire()
        for each in [each for each in left if late or each.idle()]:
            each.stop()
            left.remove(each)
        time.sleep(0.005 if left else 0)


@contextmanager
def told_to_end() -> Iterator[threading.Event]:
    """Set by SIGTERM and SIGINT; a second one ends without waiting."""
    told = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        signals_are_ours(told)
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signals_are_ours(told: threading.Event) -> None:
    """Also after Spark has taken SIGINT for itself."""

    def heard(number: int, _: object) -> None:
        if told.is_set():
            os._exit(128 + number)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)


def _first_client(settings: Settings) -> dict[str, object]:
    """Of the first cluster: progress goes there."""
    return client(next(iter(settings.clusters.values())))
