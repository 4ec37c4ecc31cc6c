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

from gateway.config.sections.pipeline import Job
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.doctor.reading import Batch
from gateway.telemetry.about import about
from gateway.telemetry.figures import Figures

from . import alerts, counts, progress
from .scrape import Scraped
from .tally import Tally
from .tasks import Tasks
from .topic import Topic

log = logging.getLogger(__name__)

WAITING = 1000  # events, of some KB each
EVERY = 10.0  # s between two looks at the tasks of a job
_LATE_OVER = 10  # batches that the share of late rows is of

_Event: TypeAlias = Callable[[], None]


class Heard:
    """What Spark calls. Nothing in here may take time, or raise.

    An event is taken as its JSON, in one call: pyspark's own listener asks Spark for each number of
    it, hundreds a batch. With those, and a look at tasks in each batch, to tell of a join took
    166 ms of Spark's thread and 66 of Python a batch (2 shared cores); now 1 and 6.
    """

    def __init__(self, told: Telling) -> None:
        self._told = told

    def onQueryStarted(self, event: Any) -> None:
        said = json.loads(event.json())
        query, run, name = said["id"], said["runId"], said["name"]
        self._told.put(lambda: self._told.began(query, run, name), name or query)

    def onQueryProgress(self, event: Any) -> None:
        said = json.loads(event.json())["progress"]
        self._told.put(lambda: self._told.took(said), said["name"] or "")

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        said = json.loads(event.json())
        query, run, error = said["id"], said["runId"], said.get("exception")
        kind = said.get("errorClassOnException")
        self._told.put(lambda: self._told.ended(query, run, error, kind), query)

    @property
    def _jlistener(self) -> Any:
        """What `spark.streams.addListener` registers."""
        from pyspark import SparkContext

        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class Telling:
    """See the module. jobs: those that run, by name. every: seconds between two looks at the tasks
    of a job."""

    def __init__(
        self,
        section: Pipelines,
        jobs: Sequence[Job],
        client: Mapping[str, Any] | None = None,
        every: float = EVERY,
    ) -> None:
        self.tally = Tally()
        self.port: int | None = None  # of Prometheus, once it listens
        self._section = section
        self._jobs = {job.name: job for job in jobs}
        self._names: dict[str, str] = {}
        self._files: dict[str, progress.Kept] = {}
        self._recent: dict[str, list[Batch]] = {}
        self._tasks: Tasks | None = None
        self._every = every
        self._looked: dict[str, float] = {}
        self._topic = _topic(section, client, self.tally)
        self._events: queue.Queue[_Event | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)
        self._thread.start()

    def watch(self, spark: Any) -> None:
        """The queries that a session will start; each session has listeners of its own."""
        if self._tasks is None:
            self._tasks = Tasks(spark)
        spark.streams.addListener(Heard(self))

    def figures(self) -> Figures:
        """All that is known of the jobs of this process, now."""
        into = Figures()
        self.tally.figures(into)
        counts.figures(into)
        alerts.figures(into)
        return into

    def put(self, event: _Event, job: str) -> None:
        """From Spark's thread."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self.tally.untold(self._names.get(job, job))

    def close(self, within: float = 10.0) -> None:
        """What was heard is told first."""
        self._events.put(None)
        self._thread.join(within)
        if self._topic is not None:
            self._topic.close(within)

    def began(self, query: str, run: str, name: str | None) -> None:
        job = self._names[query] = name or query
        self.tally.began(job)
        with about(job=job, query=query, run=run):
            log.info("query of job %s begins", job)

    def took(self, told: dict[str, Any]) -> None:
        query, job = told["id"], told.get("name") or told["id"]
        if "addBatch" not in told.get("durationMs", {}):
            return  # nothing was done
        if self._tasks is not None and self._looks(job, told):
            told["tasks"] = self._tasks.of(told["runId"], told["batchId"])
        told["notes"] = progress.noted(query, told.get("name"), told["batchId"])
        found = self.tally.took(job, told)
        with about(job=job, query=query, run=told["runId"], batch=found.id):
            log.info("%s", line(found))
            self._alert(job, found)
        self._file(job).add(told)
        if self._topic is not None:
            self._topic.tell(job, told)

    def ended(self, query: str, run: str, error: str | None, kind: str | None) -> None:
        job = self._names.get(query, query)
        self.tally.ended(job, (kind or "unknown") if error else None)
        with about(job=job, query=query, run=run):
            if error:
                log.error("query of job %s failed: %s", job, error.strip().partition("\n")[0])
            else:
                log.info("query of job %s is stopped", job)

    def _looks(self, job: str, told: Mapping[str, Any]) -> bool:
        """Are its tasks looked at? Of batches with input, one in so many seconds."""
        now = time.monotonic()
        if not told["numInputRows"] or now - self._looked.get(job, -self._every) < self._every:
            return False
        self._looked[job] = now
        return True

    def _alert(self, job: str, batch: Batch) -> None:
        held = self._recent.setdefault(job, [])
        held.append(batch)
        del held[:-_LATE_OVER]
        rows = sum(each.rows for each in held)
        late = sum(each.dropped for batch in held for each in batch.operators)
        limit = self._jobs[job].alert_late if job in self._jobs else 0.2
        if rows and late / rows > limit:
            what = f"more than {limit:.0%} of its rows come too late; see its watermark"
            alerts.raise_(job, "late", what)
        elif rows:
            alerts.clear(job, "late")

    def _file(self, job: str) -> progress.Kept:
        if job not in self._files:
            self._files[job] = progress.Kept(progress.place(self._section.checkpoints, job))
        return self._files[job]

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                event()
            except Exception:  # a record less; the query goes on, and so do others'
                log.exception("progress could not be told")


@contextmanager
def telling(
    section: Pipelines,
    jobs: Sequence[Job],
    client: Mapping[str, Any] | None = None,
    every: float = EVERY,
) -> Iterator[Telling]:
    """For as long as jobs run. client: librdkafka's settings of the cluster that `progress.topic`
    is of. every: seconds between two looks at a job's tasks. Raises PipelineError where
    `progress.listen` is taken."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each call that it hears
    with ExitStack() as stack:
        told = Telling(section, jobs, client, every)
        stack.callback(told.close)
        if section.progress.listen is not None:
            at = (section.progress.host, section.progress.listen)
            told.port = stack.enter_context(Scraped(*at, told.figures)).port
            log.info("metrics of jobs: http://%s:%d/metrics", at[0], told.port)
        yield told


def line(batch: Batch) -> str:
    """`1,200 rows in 0.41 s, 3,400 of state, 12 late, 500 behind`"""
    said = [f"{batch.rows:,} rows in {batch.seconds:.2f} s"]
    if batch.operators:
        said.append(f"{sum(each.rows for each in batch.operators):,} of state")
    late = sum(each.dropped for each in batch.operators)
    behind = sum(each.behind or 0 for each in batch.sources)
    said += [f"{late:,} late"] * bool(late) + [f"{behind:,} behind"] * bool(behind)
    return ", ".join(said)


def _topic(section: Pipelines, client: Mapping[str, Any] | None, tally: Tally) -> Topic | None:
    if section.progress.topic is None or client is None:
        return None
    return Topic(section.progress.topic, client, tally.untold)
