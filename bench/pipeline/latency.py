"""From an event to the row it makes, at 1,000 events a second and a warm JVM.

Sender, Spark and receiver are three processes of one machine and one clock. `told` is from the
event's `at` to the time the job's producer stamped on the row; `received` goes on to a consumer of
committed records. Rows of the first seconds are the compiler's, and left out. Every event has a row
of its own, in the window count too (see `pace.KEYS`): nothing is flattered by a later event.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from gateway.config import Settings
from gateway.pipeline.checkpoint import place
from gateway.pipeline.run import query
from gateway.pipeline.spark import session
from gateway.pipeline.state import profiles

from ..figure import Figure, median, times
from ..kafka import RealKafka, real_kafka
from . import engine
from .pace import beside
from .telling import tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 6  # more than the machine's: a task in real time holds one as long as its batch


@dataclass(frozen=True)
class Load:
    """rate: events a second. warm: seconds that are left out."""

    rate: int = 1000
    partitions: int = 2
    warm: float = 25.0
    seconds: float = 25.0


SMALL = Load(rate=50, warm=20, seconds=10)
COLUMNS = {"type": "query", "sql": "SELECT user, amount, at FROM clicks WHERE amount >= 0"}
COUNTS = {
    "type": "aggregate",
    "by": ["user"],
    "window": {"size": "10s"},
    "measures": {"events": "count(*)", "at": "max(at)"},
    "emit": "updates",
}


@dataclass(frozen=True)
class Case:
    """job: in the words of the YAML. conf: of the job's session, over what jobs have."""

    name: str
    job: Mapping[str, Any]
    guarantee: str = "at-least-once"
    conf: Mapping[str, str] = field(default_factory=dict)

    def settings(self, servers: Sequence[str], read: str, written: str, root: str) -> Settings:
        fields = {"user": "string", "amount": "bigint", "at": "bigint"}
        clicks = {"topic": read, "watermark": "10s", "value": {"fields": fields}}
        query = self.job["type"] == "query"
        whence = {"tables": {"clicks": clicks}} if query else {"from": clicks}
        to = {"topic": written, "guarantee": self.guarantee}
        job = {"name": "measured", "state": {"profile": "latency"}, **self.job, **whence, "to": to}
        kafka = {"servers": list(servers)}
        return Settings.model_validate(
            {"kafka": kafka, "pipelines": {"checkpoints": root, "jobs": [job]}}
        )


class Run(NamedTuple):
    """told, received: seconds. phases: median ms of a batch."""

    told: Sequence[float]
    received: Sequence[float]
    phases: Mapping[str, float]

    def figures(self, case: Case) -> Iterator[Figure]:
        yield from times(f"{case.name}, told", self.told)
        yield from times(f"{case.name}, received", self.received)
        if "triggerExecution" in self.phases and case.job.get("trigger") != "realtime":
            yield Figure(f"{case.name}, a batch", self.phases["triggerExecution"], "ms")


CASES = (
    Case("micro-batch, stateless", COLUMNS),
    Case("micro-batch, stateless, exactly once", COLUMNS, guarantee="exactly-once"),
    Case("micro-batch, window count", COUNTS),
    Case("micro-batch, window count, exactly once", COUNTS, guarantee="exactly-once"),
    Case("real-time, stateless", {**COLUMNS, "trigger": "realtime"}),
)


def measure(load: Load = Load(), cases: Sequence[Case] = CASES) -> list[Figure]:
    figures: list[Figure] = []
    with engine.spark(f"local[{CORES}]") as spark, real_kafka(1, indexed=True) as kafka:
        for case in cases:
            tell(f"{case.name}, {load.warm + load.seconds:g} s")
            done = run(spark, case, kafka, load)
            if not done.told:
                tell(f"{case.name}: no row after {load.warm:g} s, no figure")
                continue
            figures += done.figures(case)
    return figures


def run(spark: SparkSession, case: Case, kafka: RealKafka, load: Load = Load()) -> Run:
    """The job as `gateway pipeline run` starts it, over topics of its own."""
    read, written = kafka.topic(load.partitions), kafka.topic(load.partitions)
    last = load.warm + load.seconds
    with tempfile.TemporaryDirectory() as root:
        settings = case.settings(kafka.bootstrap, read, written, root)
        assert settings.pipelines is not None
        (job,) = settings.pipelines.jobs
        conf = {**profiles.of(job), **session.of_checkpoints(root), **case.conf}
        started = query.start(
            session.of_job(spark, conf), job, settings, place.ready(root, job, spark)
        )
        try:
            with (
                beside("receive", kafka.servers, written, last + 3) as receiver,
                beside("send", kafka.servers, read, load.partitions, load.rate, last),
            ):
                begun = time.time()
                found = receiver.communicate()[0]
            phases = _phases(started)
        finally:
            engine.stop(started, 0 if case.job.get("trigger") == "realtime" else engine.PATIENCE)
    after = 1e6 * (begun + load.warm)
    rows = [row for row in orjson.loads(found) if after <= row[0]]
    told, received = ([(row[which] - row[0]) / 1e6 for row in rows] for which in (1, 2))
    return Run(told, received, phases)


def _phases(started: Any) -> Mapping[str, float]:
    batches = [p["durationMs"] for p in started.recentProgress if p["numInputRows"]]
    names = {name for batch in batches for name in batch}
    return {name: median([batch.get(name, 0) for batch in batches]) for name in sorted(names)}
