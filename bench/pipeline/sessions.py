"""Measure sessions: the rate with 50,000 users, its decline with more state, and when they close.

The input is in files as records of Kafka would be (a JSON value of about 75 bytes, partition,
offset), so that the job and its state are measured, not a broker. The gap is 30 minutes, the grace
10; to measure the rate, each batch has 10 minutes of events in no order. The output is compared
with the oracle of the tests, and the state with the users in the input.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from support.file_stream import FileStream
from support.session_windows import Event, compute_sessions

from gateway.config.sections.pipelines import Sessions
from gateway.pipeline.jobs import sessions as job

from ..results import Cell
from . import engine
from .engine import print_progress
from .inputs import read_batches, write_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_US = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
MINUTE_US = 60_000_000  # microseconds
EVENT_SCHEMA = "user string, time timestamp, amount int"
VARIANTS: Mapping[str, dict[str, Any]] = {
    "closed, Spark's own": {},
    "updates": {"emit": "updates"},
    "longest 8h": {"maxLength": "8h"},
}


@dataclass(frozen=True)
class Workload:
    """batch, batches: of Spark's own sessions; in_python: of the others. grown: users, each with
    an event, at which the growing state is looked at. closings: sessions."""

    users: int = 50_000
    batch_events: int = 100_000
    batch_count: int = 6
    python_batches: tuple[int, int] = (50_000, 4)
    growth_users: Sequence[int] = (200_000, 500_000, 1_000_000)
    closing_sessions: int = 15


SMALL = Workload(
    users=1_000,
    batch_events=2_000,
    batch_count=3,
    python_batches=(2_000, 3),
    growth_users=(2_000, 6_000),
    closing_sessions=6,
)
STATE_STORE_PREFIX = "spark.sql.streaming.stateStore."
WARMUP_BATCHES = 2  # batches that are the compiler's
WARMUP_SESSIONS = 5  # sessions that close while it is still at work


class RunResult(NamedTuple):
    """seconds, rows: of the batches with rows. state: rows after each, and bytes in SST files.
    told: closed sessions, and the sum of their totals."""

    batch_seconds: Sequence[float]
    batch_rows: Sequence[int]
    state_sizes: Sequence[tuple[int, int]]
    totals: tuple[int, int]

    @property
    def rate(self) -> float:
        """Events a second, without the first batches."""
        return sum(self.batch_rows[WARMUP_BATCHES:]) / sum(self.batch_seconds[WARMUP_BATCHES:])


def measure(cell: Cell, workload: Workload) -> None:
    with engine.run_spark() as spark:
        _measure_growth(cell, spark, workload)
        _measure_rates(cell, spark, workload)
        _measure_closing(cell, spark, workload)


def build_settings(**options: Any) -> Sessions:
    written = {
        "name": "visits",
        "type": "sessions",
        "from": {"topic": "clicks", "time": "time", "watermark": "10m"},
        "by": ["user"],
        "measures": {"total": "sum(amount)"},
        "to": {"topic": "visits"},
        "state": {"partitions": 2},
    }
    return Sessions.model_validate(written | options)


def _measure_growth(cell: Cell, spark: SparkSession, workload: Workload) -> None:
    """Each event is a new user's, all within 20 minutes: all of them stay."""
    # A snapshot now and then, so that state lies in files whose bytes can be told.
    often = {
        f"{STATE_STORE_PREFIX}minDeltasForSnapshot": "2",
        f"{STATE_STORE_PREFIX}maintenanceInterval": "5s",
    }
    batches = workload.growth_users[-1] // workload.batch_events
    print_progress(f"state grows to {workload.growth_users[-1]:,} users in {batches} batches")
    with tempfile.TemporaryDirectory() as directory:
        _write_events(Path(directory), _generate_new_users(batches, workload.batch_events))
        done = run_job(spark, build_settings(), Path(directory), often)
    for users in workload.growth_users:
        at = users // workload.batch_events - 1
        kept, stored = done.state_sizes[at]
        if kept != users:
            raise AssertionError(f"{kept} sessions of {users} users are kept")
        rate = done.batch_rows[at] / done.batch_seconds[at]
        of = f"growth, the batch of new users up to {users:,}"
        cell.add_row(of, "events", "events/s", rate, n=workload.batch_events)
    cell.add_row(f"{kept:,} open sessions, in files", "state", "bytes/key", stored / kept)


def _measure_rates(cell: Cell, spark: SparkSession, workload: Workload) -> None:
    for name, more in VARIANTS.items():
        batch, count = (
            workload.python_batches if more else (workload.batch_events, workload.batch_count)
        )
        batches = list(_generate_batches(workload.users, batch, count))
        print_progress(f"{name}: {count} batches of {batch:,} events")
        with tempfile.TemporaryDirectory() as directory:
            last = [Event("end", START_US + 24 * 60 * MINUTE_US)]
            _write_events(Path(directory), [*batches, last])
            done = run_job(spark, build_settings(**more), Path(directory))
        longest = 480 * MINUTE_US if "maxLength" in more else None
        whole = compute_sessions(
            (each for some in batches for each in some), 30 * MINUTE_US, longest
        )
        if done.totals != (len(whole), sum(one.total for one in whole)):
            raise AssertionError(f"{name}: {done.totals} are not the oracle's")
        print_progress(
            f"{name}: {len(whole):,} sessions as expected, {sum(done.batch_seconds):.0f} s"
        )
        n = sum(done.batch_rows[WARMUP_BATCHES:])
        cell.add_row(f"{name}, {workload.users:,} users", "events", "events/s", done.rate, n=n)


def _measure_closing(cell: Cell, spark: SparkSession, workload: Workload) -> None:
    """From the newer event's arrival, whose time is gap + grace after the session's last."""
    own = engine.create_own_session(spark, build_settings())
    for name, more in list(VARIANTS.items())[:2]:
        print_progress(f"{name}: {workload.closing_sessions} sessions close, one after the other")
        chosen = build_settings(**more)
        with tempfile.TemporaryDirectory() as directory:
            fed = FileStream(
                own,
                Path(directory),
                f"{EVENT_SCHEMA}, _partition int, _offset bigint",
                lambda events, chosen=chosen: job.build(chosen, {"from": events}),  # type: ignore[misc]
                watermark="10 minutes",
                mode=job.get_output_mode(chosen),
            )
            with fed:
                waits = [_time_closing(fed, number) for number in range(workload.closing_sessions)]
        cell.add_times(name, [waits[WARMUP_SESSIONS:]], "told after gap + grace,")


def _time_closing(stream: FileStream, number: int) -> float:
    at = START_US / 1e6 + number * 2400
    moment = datetime.fromtimestamp(at, UTC).isoformat()
    began = time.perf_counter()
    place = {"_partition": 0, "_offset": number, "amount": 1}
    told = stream.process_rows([{"user": f"user-{number}", "time": moment, **place}])
    waited = time.perf_counter() - began
    if number and not any(row["user"] == f"user-{number - 1}" for row in told):
        raise AssertionError("the session before has not closed")
    return waited


def run_job(
    spark: SparkSession, job_settings: Sessions, directory: Path, conf: Mapping[str, str] = {}
) -> RunResult:
    own = engine.create_own_session(spark, job_settings, conf)
    told = [0, 0]

    def add_totals(rows: DataFrame, _: int) -> None:
        closed = rows.where("state = 'closed'") if "state" in rows.columns else rows
        count, total = closed.selectExpr("count(1)", "coalesce(sum(total), 0)").collect()[0]
        told[0] += count
        told[1] += total

    events = read_batches(own, directory, EVENT_SCHEMA).withWatermark("time", "10 minutes")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            job.build(job_settings, {"from": events})
            .writeStream.outputMode(job.get_output_mode(job_settings))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .foreachBatch(add_totals)
            .start()
        )
        engine.wait_for_query(query)
        done = [each for each in query.recentProgress if each.numInputRows > 1]
    states = [each.stateOperators[0] for each in done]
    return RunResult(
        [each.durationMs["triggerExecution"] / 1000 for each in done],
        [each.numInputRows for each in done],
        [(each.numRowsTotal, each.customMetrics["rocksdbSstFileSize"]) for each in states],
        (told[0], told[1]),
    )


def _generate_new_users(batch_count: int, batch_events: int) -> Iterator[list[Event]]:
    """Of one more user each, 20 minutes in all."""
    some = random.Random(0)
    for number in range(batch_count):
        yield [
            Event(
                f"user-{number * batch_events + n}",
                START_US + some.randrange(20 * MINUTE_US) // 1000 * 1000,
            )
            for n in range(batch_events)
        ]


def _generate_batches(
    user_count: int, batch_events: int, batch_count: int
) -> Iterator[list[Event]]:
    some = random.Random(user_count)
    for number in range(batch_count):
        begin = START_US + number * 10 * MINUTE_US
        yield [
            Event(
                f"user-{some.randrange(user_count)}",
                begin + some.randrange(10 * MINUTE_US) // 1000 * 1000,
                some.randrange(1000),
            )
            for _ in range(batch_events)
        ]


def _write_events(directory: Path, batches: Iterable[Sequence[Event]]) -> None:
    write_batches(directory, ([_encode_event(each) for each in events] for events in batches))


def _encode_event(event: Event) -> bytes:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=event.time)
    return orjson.dumps(
        {
            "user": event.key,
            "time": moment.isoformat(timespec="milliseconds"),
            "amount": event.value,
        }
    )
