"""Measure the enrichment of events from a table of a million users, in Redis and as a broadcast.

Redis is measured with no key cached, and at several hit rates. Events are in files as records of
Kafka would be (a JSON value of about 70 bytes), 200,000 per batch, so that the job and its table
are measured, not a broker. The output is JSON, of which only the counts are kept. Redis runs on
this machine, on a socket, and takes part of the same cores. The table is rewritten all the time,
and its values contain the time they were written, so that a row shows how old its value was.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from support.redis import RedisServer, running_redis

from gateway.config.sections.pipelines import Enrich
from gateway.pipeline.jobs import enrich as job
from gateway.pipeline.reports import Reports
from gateway.pipeline.tables import lookup
from gateway.pipeline.tables.lookup import LookupStats
from gateway.pipeline.tables.redis import RedisConfig, RedisTable

from ..results import Cell
from . import engine
from .engine import print_progress
from .inputs import read_batches, write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEY_PREFIX = "users:"
TABLE_FIELDS = {"name": "string", "tier": "int", "country": "string"}
EVENT_SCHEMA = "user string, page string, amount int"
STALENESS_S = 2.0  # s
WARMUP_EVENTS = 60  # events that the workers start with


@dataclass(frozen=True)
class Workload:
    """batch: events. batches: where all miss, and of the others. zipf: exponents of Zipf's law, by
    which the n-th user has a share of n ** -s. tables: rows that are broadcast. stale: seconds."""

    users: int = 1_000_000
    batch_events: int = 200_000
    miss_batches: int = 6
    other_batches: int = 4
    zipf_exponents: Sequence[float] = (0.6, 0.8, 1.0, 1.2)
    broadcast_rows: Sequence[int] = (1_000, 10_000, 100_000)
    staleness_run_s: float = 15.0


SMALL = Workload(
    users=5_000,
    batch_events=2_000,
    miss_batches=3,
    other_batches=2,
    zipf_exponents=(1.0,),
    broadcast_rows=(100,),
    staleness_run_s=6,
)


class RunResult(NamedTuple):
    """seconds, rows: of each batch. first: seconds from the first batch's start to its first
    enriched row. counted: of the lookups."""

    batch_seconds: Sequence[float]
    batch_rows: Sequence[int]
    first_row_s: float
    lookup_stats: LookupStats

    def add_rate(self, cell: Cell, case: str, skipped_batches: int = 1) -> None:
        """skipped_batches: that are left out, the compiler's."""
        rows = sum(self.batch_rows[skipped_batches:])
        rate = rows / sum(self.batch_seconds[skipped_batches:])
        cell.add_row(case, "records", "records/s", rate, n=rows)


def measure(cell: Cell, workload: Workload) -> None:
    with engine.run_spark() as spark, running_redis() as server:
        print_progress(f"filling Redis with {workload.users:,} users")
        _fill_redis(cell, server, workload.users)
        _measure_misses(cell, spark, server, workload)
        _measure_hits(cell, spark, server, workload)
        _measure_staleness(cell, spark, server, workload)
        _measure_broadcast(cell, spark, workload)


def build_settings(table: Mapping[str, Any], name: str) -> Enrich:
    written = {"name": name, "type": "enrich", "on": "user", "to": {"topic": "enriched"}}
    return Enrich.model_validate({**written, "from": {"topic": "clicks"}, "table": table})


def _fill_redis(cell: Cell, server: RedisServer, user_count: int) -> None:
    """As the job `load` does it, without Spark."""
    began = time.monotonic()
    redis = RedisTable(RedisConfig(server.url, KEY_PREFIX, keys_per_command=2000))
    redis.store_rows((f"u{number}", _encode_row(number)) for number in range(user_count))
    redis.close()
    cell.add_row("Redis is filled", "records", "records/s", user_count / (time.monotonic() - began))


def _measure_misses(
    cell: Cell, spark: SparkSession, server: RedisServer, workload: Workload
) -> None:
    """Users drawn evenly, and no value may be used twice."""
    case = f"Redis, {workload.users:,} users, all missed"
    chance, size = random.Random(1), workload.batch_events
    users = [chance.randrange(workload.users) for _ in range(size * workload.miss_batches)]
    missed, later = (
        _build_redis_settings(server, name, staleness="0s") for name in ("missed", "next")
    )
    run = _run_job(spark, missed, users, size, case)
    next_run = _run_job(spark, later, users[:size], size, "once more")
    if run.lookup_stats.hits or run.lookup_stats.missing_keys:
        raise AssertionError(f"of values that may not be used twice: {run.lookup_stats}")
    run.add_rate(cell, case, skipped_batches=2)
    cell.add_row("a new JVM", "first enriched row", "s", run.first_row_s)
    cell.add_row("the next job's in this JVM", "first enriched row", "s", next_run.first_row_s)


def _measure_hits(cell: Cell, spark: SparkSession, server: RedisServer, workload: Workload) -> None:
    """By skew: the share of events without a request of their own, and the rate."""
    for skew in workload.zipf_exponents:
        weights = list(accumulate(number**-skew for number in range(1, workload.users + 1)))
        events = workload.batch_events * workload.other_batches
        users = random.Random(2).choices(range(workload.users), cum_weights=weights, k=events)
        what = f"Redis, 100,000 kept by each of 2 tasks, Zipf {skew}"
        table = _build_redis_settings(
            server, f"zipf-{10 * skew:.0f}", staleness="60s", negative="1s"
        )
        run = _run_job(spark, table, users, workload.batch_events, what)
        if run.lookup_stats.missing_keys:
            raise AssertionError(f"{what}: users were missing: {run.lookup_stats}")
        cell.add_row(what, "hits", "%", 100 * run.lookup_stats.hit_rate, n=len(users))
        run.add_rate(cell, what)


def _measure_staleness(
    cell: Cell, spark: SparkSession, server: RedisServer, workload: Workload
) -> None:
    """Small batches of one user, whose value says when it was written: its age in the row. What
    is beyond the bound is the way from the lookup into the row, and the pause between writes."""
    print_progress(f"how old values get, {workload.staleness_run_s:g} s")
    of = _build_redis_settings(server, "stale", staleness=f"{STALENESS_S:g}s")
    own, ages = engine.create_own_session(spark, of), list[float]()

    def collect_ages(rows: DataFrame, _: int) -> None:
        ages.extend(_read_ages(rows))

    with tempfile.TemporaryDirectory() as checkpoint, _keep_writing(server):
        ticks = own.readStream.format("rate").option("rowsPerSecond", 20).load()
        events = ticks.selectExpr("'now' AS user", "'/' AS page", "int(value) AS amount")
        writer = job.build(of, {"from": events}).writeStream.foreachBatch(collect_ages)
        query = writer.option("checkpointLocation", checkpoint).start()
        while query.isActive and len(ages) < WARMUP_EVENTS:
            time.sleep(0.2)
        time.sleep(workload.staleness_run_s)
        engine.stop_query(query)
    warm = ages[WARMUP_EVENTS:]
    if not warm or max(warm) < STALENESS_S / 2:
        raise AssertionError(f"values were used only when they were {warm} s old")
    case = f"bound {STALENESS_S:g} s at the lookup"
    cell.add_row(case, "oldest value in a row", "s", max(warm), n=len(warm))


def _read_ages(rows: DataFrame) -> Iterator[float]:
    """Of a batch's values: as its rows are made, by this machine's one clock."""
    import pyarrow as pa

    def compute_ages(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            now = time.time()
            made = [now - float(name) for name in each.column("name").to_pylist()]
            yield pa.RecordBatch.from_pydict({"age": pa.array(made, pa.float64())})

    yield from (row["age"] for row in rows.mapInArrow(compute_ages, "age double").collect())


@contextmanager
def _keep_writing(server: RedisServer) -> Iterator[None]:
    """The value of `now`, every 20 ms until the block ends."""
    ended, redis = (
        threading.Event(),
        RedisTable(RedisConfig(server.url, KEY_PREFIX, keys_per_command=1)),
    )

    def write_value() -> None:
        redis.store_rows([("now", orjson.dumps({"name": str(time.time()), "tier": 1}))])

    def write_until_stopped() -> None:
        while not ended.wait(0.02):
            write_value()

    write_value()
    thread = threading.Thread(target=write_until_stopped, name="writes to Redis", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        redis.close()


def _measure_broadcast(cell: Cell, spark: SparkSession, workload: Workload) -> None:
    for rows in workload.broadcast_rows:
        what = f"broadcast of {rows:,} rows"
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "users.parquet")
            _write_table(path, rows)
            chance = random.Random(3)
            count = workload.batch_events * workload.other_batches
            users = [chance.randrange(rows) for _ in range(count)]
            given = {"kind": "broadcast", "path": path, "key": "id", "refresh": "60s"}
            run = _run_job(
                spark, build_settings(given, "broadcast"), users, workload.batch_events, what
            )
        run.add_rate(cell, what)


def _build_redis_settings(server: RedisServer, name: str, **options: Any) -> Enrich:
    """name: of the job, under which its lookups are counted."""
    table = {"kind": "redis", "url": server.url, "prefix": KEY_PREFIX, "fields": TABLE_FIELDS}
    return build_settings({**table, **options}, name)


def _run_job(
    spark: SparkSession, settings: Enrich, users: Sequence[int], batch_events: int, what: str
) -> RunResult:
    """size: of a batch."""
    print_progress(what)
    spark = engine.create_own_session(spark, settings)
    with tempfile.TemporaryDirectory() as directory:
        source, seen = Path(directory) / "events", Path(directory) / "seen"
        write_batches(source, _encode_events(users, batch_events))
        held = job.create_batch_table(settings, spark, {}, Reports())

        def process_batch(rows: DataFrame, epoch: int) -> None:
            if held is not None:
                rows = job.build(settings, {"from": rows, job.TABLE_INPUT: held.get_current()})
            _evaluate_rows(rows, None if epoch else seen)

        events = read_batches(spark, source, EVENT_SCHEMA).drop("_partition", "_offset")
        given = events if held is not None else job.build(settings, {"from": events})
        writer = given.writeStream.foreachBatch(process_batch).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
        engine.wait_for_query(query)
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        seconds = [each.durationMs["triggerExecution"] / 1000 for each in done]
        rows = [each.numInputRows for each in done]
        began = datetime.fromisoformat(done[0].timestamp).timestamp()
        print_progress(f"{what}: {sum(rows):,} events in {sum(seconds):.0f} s")
        counted = lookup.stats().get(settings.name, LookupStats())
        return RunResult(seconds, rows, float(seen.read_text()) - began, counted)


def _evaluate_rows(rows: DataFrame, first_row_path: Path | None) -> None:
    """Evaluate them as a sink would. seen: where the first one's time is written."""
    from pyspark.sql import functions as F

    json = rows.select(F.to_json(F.struct("*")).alias("value"))
    if first_row_path is not None:
        path = str(first_row_path)

        def note_first_row(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                with suppress(FileExistsError), open(path, "x") as file:
                    file.write(str(time.time()))
                yield batch

        json = json.mapInArrow(note_first_row, "value string")
    json.write.format("noop").mode("overwrite").save()


def _write_table(path: str, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    made = [{"id": f"u{number}", **orjson.loads(_encode_row(number))} for number in range(rows)]
    parquet.write_table(pa.Table.from_pylist(made), path)


def _encode_events(users: Sequence[int], batch_events: int) -> Iterator[Sequence[bytes]]:
    for at in range(0, len(users), batch_events):
        yield [
            orjson.dumps({"user": f"u{user}", "page": f"/pages/{user % 100}", "amount": user % 997})
            for user in users[at : at + batch_events]
        ]


def _encode_row(number: int) -> bytes:
    return orjson.dumps({"name": f"name-{number}", "tier": number % 5, "country": "DE"})
