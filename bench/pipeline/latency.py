"""Measure the time from an event to its row, at 1,000 events a second and with a warm JVM.

Sender, Spark and receiver are three processes of one machine and one clock. `told` is from the
event's `at` to the timestamp that the job's producer gave the row; `received` is until a consumer
of committed records has the row. Rows of the first seconds are left out, because code is still
being compiled. Every event has its own row, even in the window count (see `pace.KEYS`), so that no
later event hides the latency of an earlier one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from support.brokers import KafkaCluster

from gateway.config import Settings
from gateway.pipeline.checkpoint import job_checkpoint
from gateway.pipeline.run import query
from gateway.pipeline.spark import session

from ..kafka import running_kafka
from ..results import Cell, median
from . import engine
from .engine import print_progress
from .paced_client import run_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CORES = 6  # more than the machine's: a task in real time holds one as long as its batch


@dataclass(frozen=True)
class Workload:
    """rate: events a second. warm: seconds that are left out."""

    events_per_second: int = 1000
    partitions: int = 2
    warmup_s: float = 25.0
    duration_s: float = 25.0


SMALL = Workload(events_per_second=50, warmup_s=20, duration_s=10)
QUERY_JOB = {"type": "query", "sql": "SELECT user, amount, at FROM clicks WHERE amount >= 0"}
AGGREGATE_JOB = {
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

    def build_settings(
        self, servers: Sequence[str], input_topic: str, output_topic: str, checkpoints: str
    ) -> Settings:
        fields = {"user": "string", "amount": "bigint", "at": "bigint"}
        clicks = {"topic": input_topic, "watermark": "10s", "value": {"fields": fields}}
        query = self.job["type"] == "query"
        whence = {"tables": {"clicks": clicks}} if query else {"from": clicks}
        to = {"topic": output_topic, "guarantee": self.guarantee}
        job = {"name": "measured", "state": {"profile": "latency"}, **self.job, **whence, "to": to}
        kafka = {"servers": list(servers)}
        return Settings.model_validate(
            {"kafka": kafka, "pipelines": {"checkpoints": checkpoints, "jobs": [job]}}
        )


class RunResult(NamedTuple):
    """batch_ms: the median of all batches with rows; 0 where there is none."""

    produced_seconds: Sequence[float]
    received_seconds: Sequence[float]
    batch_ms: float

    def add_rows(self, cell: Cell, case: Case) -> None:
        cell.add_times(case.name, [self.produced_seconds], "told")
        cell.add_times(case.name, [self.received_seconds], "received")
        if self.batch_ms and case.job.get("trigger") != "realtime":
            cell.add_row(case.name, "a batch", "ms", self.batch_ms)


CASES = (
    Case("micro-batch, stateless", QUERY_JOB),
    Case("micro-batch, stateless, exactly once", QUERY_JOB, guarantee="exactly-once"),
    Case("micro-batch, window count", AGGREGATE_JOB),
    Case("micro-batch, window count, exactly once", AGGREGATE_JOB, guarantee="exactly-once"),
    Case("real-time, stateless", {**QUERY_JOB, "trigger": "realtime"}),
)


def measure(cell: Cell, workload: Workload) -> None:
    with engine.run_spark(f"local[{SPARK_CORES}]") as spark, running_kafka(has_index=True) as kafka:
        for case in CASES:
            print_progress(f"{case.name}, {workload.warmup_s + workload.duration_s:g} s")
            done = run_case(spark, case, kafka, workload)
            if done.produced_seconds:
                done.add_rows(cell, case)
            else:
                cell.add_note(f"{case.name}: no row after {workload.warmup_s:g} s")


def run_case(spark: SparkSession, case: Case, kafka: KafkaCluster, workload: Workload) -> RunResult:
    """The job as `gateway pipeline run` starts it, over topics of its own."""
    read, written = (kafka.create_unique_topic(workload.partitions) for _ in range(2))
    last = workload.warmup_s + workload.duration_s
    with tempfile.TemporaryDirectory() as root:
        settings = case.build_settings(kafka.bootstrap, read, written, root)
        assert settings.pipelines is not None
        (job,) = settings.pipelines.jobs
        conf = {**session.build_job_conf(job), **session.build_checkpoint_conf(root), **case.conf}
        context = query.QueryContext(
            session.create_job_session(spark, conf),
            job,
            settings,
            job_checkpoint.prepare_checkpoint(root, job, spark),
        )
        started = query.start_query(context)
        try:
            with (
                run_client("receive", kafka.bootstrap_servers, written, last + 3) as receiver,
                run_client(
                    "send",
                    kafka.bootstrap_servers,
                    read,
                    workload.partitions,
                    workload.events_per_second,
                    last,
                ),
            ):
                begun = time.time()
                found = receiver.communicate()[0]
            batches = [each for each in started.recentProgress if each["numInputRows"]]
        finally:
            engine.stop_query(
                started, 0 if case.job.get("trigger") == "realtime" else engine.STOP_TIMEOUT_S
            )
            context.close()
    after = 1e6 * (begun + workload.warmup_s)
    rows = [row for row in orjson.loads(found) if after <= row[0]]
    told, received = ([(row[which] - row[0]) / 1e6 for row in rows] for which in (1, 2))
    times = [each["durationMs"].get("triggerExecution", 0) for each in batches]
    return RunResult(told, received, median(times) if times else 0.0)
