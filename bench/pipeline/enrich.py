"""Events with rows of a table of a million users: in Redis, all missed and by hit rate; broadcast.

Events lie in files as records of Kafka would (a JSON value of about 70 bytes), 200,000 a batch, so
that what is measured is the job and its table, not a broker. What comes out is JSON and thrown away
but for the counts. Redis runs here, on a socket, and takes part of the same cores. How old a value
was when its row was made is told by the value itself, which is written anew all the time.
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
from support.redis import RedisServer, running

from gateway.config.sections.pipelines import Enrich
from gateway.pipeline.jobs import enrich as job
from gateway.pipeline.spark.session import of_checkpoints, of_job
from gateway.pipeline.state import profiles
from gateway.pipeline.tables import lookup
from gateway.pipeline.tables.cache import Stats
from gateway.pipeline.tables.redis import Redis, Server

from ..figure import Figure
from . import engine
from .telling import tell

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PREFIX = "users:"
FIELDS = {"name": "string", "tier": "int", "country": "string"}
EVENT = "user string, page string, amount int"
STALENESS = 2.0  # s
COLD = 60  # events that the workers start with


@dataclass(frozen=True)
class Size:
    """batch: events. batches: where all miss, and of the others. zipf: exponents of Zipf's law, by
    which the n-th user has a share of n ** -s. tables: rows that are broadcast. stale: seconds."""

    users: int = 1_000_000
    batch: int = 200_000
    batches: int = 6
    others: int = 4
    zipf: Sequence[float] = (0.6, 0.8, 1.0, 1.2)
    tables: Sequence[int] = (1_000, 10_000, 100_000)
    stale: float = 15.0


SMALL = Size(users=5_000, batch=2_000, batches=3, others=2, zipf=(1.0,), tables=(100,), stale=6)


class Run(NamedTuple):
    """seconds, rows: of each batch. first: seconds from the first batch's start to its first
    enriched row. counted: of the lookups."""

    seconds: Sequence[float]
    rows: Sequence[int]
    first: float
    counted: Stats

    def warm(self, what: str, cold: int = 1) -> Figure:
        """cold: batches that are left out, the compiler's."""
        rows = sum(self.rows[cold:])
        return Figure(what, rows / sum(self.seconds[cold:]), "records/s", rows)


def measure(size: Size = Size()) -> list[Figure]:
    with engine.spark() as spark, running() as server:
        tell(f"filling Redis with {size.users:,} users")
        return [
            _fill(server, size.users),
            *_missed(spark, server, size),
            *_hits(spark, server, size),
            _stale(spark, server, size),
            *_broadcast(spark, size),
        ]


def settings(table: Mapping[str, Any], name: str) -> Enrich:
    written = {"name": name, "type": "enrich", "on": "user", "to": {"topic": "enriched"}}
    return Enrich.model_validate({**written, "from": {"topic": "clicks"}, "table": table})


def _fill(server: RedisServer, users: int) -> Figure:
    """As the job `load` does it, without Spark."""
    began = time.monotonic()
    redis = Redis(Server(server.url, PREFIX, chunk=2000))
    redis.store((f"u{number}", _row(number)) for number in range(users))
    redis.close()
    return Figure("Redis is filled", users / (time.monotonic() - began), "rows/s", users)


def _missed(spark: SparkSession, server: RedisServer, size: Size) -> Iterator[Figure]:
    """Users drawn evenly, and no value may be used twice."""
    what = f"Redis, {size.users:,} users, all missed"
    chance = random.Random(1)
    users = [chance.randrange(size.users) for _ in range(size.batch * size.batches)]
    run = _run(spark, _in_redis(server, "missed", staleness="0s"), users, size.batch, what)
    again = [*users[: size.batch]]
    next_ = _run(spark, _in_redis(server, "next", staleness="0s"), again, size.batch, "once more")
    if run.counted.hits or run.counted.missing:
        raise AssertionError(f"of values that may not be used twice: {run.counted}")
    yield run.warm(what, cold=2)
    first = "first enriched row after the first batch's start"
    yield Figure(f"{first}, a new JVM", run.first, "s")
    yield Figure(f"{first}, the next job's in this JVM", next_.first, "s")


def _hits(spark: SparkSession, server: RedisServer, size: Size) -> Iterator[Figure]:
    """By skew: the share of events without a request of their own, and the rate."""
    for skew in size.zipf:
        weights = list(accumulate(number**-skew for number in range(1, size.users + 1)))
        events = size.batch * size.others
        users = random.Random(2).choices(range(size.users), cum_weights=weights, k=events)
        what = f"Redis, 100,000 kept by each of 2 tasks, Zipf {skew}"
        table = _in_redis(server, f"zipf-{10 * skew:.0f}", staleness="60s", negative="1s")
        run = _run(spark, table, users, size.batch, what)
        if run.counted.missing:
            raise AssertionError(f"{what}: users were missing: {run.counted}")
        yield Figure(f"{what}: hits", 100 * run.counted.hit_rate, "%", len(users))
        yield run.warm(f"{what}: rate")


def _stale(spark: SparkSession, server: RedisServer, size: Size) -> Figure:
    """Small batches of one user, whose value says when it was written: its age in the row. What
    is beyond the bound is the way from the lookup into the row, and the pause between writes."""
    tell(f"how old values get, {size.stale:g} s")
    of = _in_redis(server, "stale", staleness=f"{STALENESS:g}s")
    own, ages = of_job(spark, _conf(of)), list[float]()

    def batch(rows: DataFrame, _: int) -> None:
        ages.extend(_ages(rows))

    with tempfile.TemporaryDirectory() as checkpoint, _written(server):
        ticks = own.readStream.format("rate").option("rowsPerSecond", 20).load()
        events = ticks.selectExpr("'now' AS user", "'/' AS page", "int(value) AS amount")
        writer = job.build(of, {"from": events}).writeStream.foreachBatch(batch)
        query = writer.option("checkpointLocation", checkpoint).start()
        while query.isActive and len(ages) < COLD:
            time.sleep(0.2)
        time.sleep(size.stale)
        engine.stop(query)
    warm = ages[COLD:]
    if not warm or max(warm) < STALENESS / 2:
        raise AssertionError(f"values were used only when they were {warm} s old")
    return Figure(f"oldest value in a row, bound {STALENESS:g} s at the lookup", max(warm), "s",
        len(warm))  # fmt: skip


def _ages(rows: DataFrame) -> Iterator[float]:
    """Of a batch's values: as its rows are made, by this machine's one clock."""
    import pyarrow as pa

    def aged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            now = time.time()
            made = [now - float(name) for name in each.column("name").to_pylist()]
            yield pa.RecordBatch.from_pydict({"age": pa.array(made, pa.float64())})

    yield from (row["age"] for row in rows.mapInArrow(aged, "age double").collect())


@contextmanager
def _written(server: RedisServer) -> Iterator[None]:
    """The value of `now`, every 20 ms until the block ends."""
    ended, redis = threading.Event(), Redis(Server(server.url, PREFIX, chunk=1))

    def write() -> None:
        redis.store([("now", orjson.dumps({"name": str(time.time()), "tier": 1}))])

    def again() -> None:
        while not ended.wait(0.02):
            write()

    write()
    thread = threading.Thread(target=again, name="writes to Redis", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        redis.close()


def _broadcast(spark: SparkSession, size: Size) -> Iterator[Figure]:
    for rows in size.tables:
        what = f"broadcast of {rows:,} rows"
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "users.parquet")
            _table(path, rows)
            chance = random.Random(3)
            users = [chance.randrange(rows) for _ in range(size.batch * size.others)]
            given = {"kind": "broadcast", "path": path, "key": "id", "refresh": "60s"}
            run = _run(spark, settings(given, "broadcast"), users, size.batch, what)
        yield run.warm(what)


def _in_redis(server: RedisServer, name: str, **more: Any) -> Enrich:
    """name: of the job, under which its lookups are counted."""
    table = {"kind": "redis", "url": server.url, "prefix": PREFIX, "fields": FIELDS}
    return settings({**table, **more}, name)


def _conf(of: Enrich) -> Mapping[str, str]:
    """As the runner does it."""
    return {**of_checkpoints("/"), **profiles.of(of)}


def _run(spark: SparkSession, of: Enrich, users: Sequence[int], size: int, what: str) -> Run:
    """size: of a batch."""
    tell(what)
    spark = of_job(spark, _conf(of))
    with tempfile.TemporaryDirectory() as directory:
        source, seen = Path(directory) / "events", Path(directory) / "seen"
        source.mkdir()
        _write(source, users, size)
        held = job.held(of, spark, {})

        def batch(rows: DataFrame, epoch: int) -> None:
            if held is not None:
                rows = job.build(of, {"from": rows, job.TABLE: held.current()})
            _drain(rows, None if epoch else seen)

        events = _events(spark, source)
        given = events if held is not None else job.build(of, {"from": events})
        writer = given.writeStream.foreachBatch(batch).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
        engine.ended(query)
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        seconds = [each.durationMs["triggerExecution"] / 1000 for each in done]
        rows = [each.numInputRows for each in done]
        began = datetime.fromisoformat(done[0].timestamp).timestamp()
        tell(f"{what}: {sum(rows):,} events in {sum(seconds):.0f} s")
        counted = lookup.stats().get(of.name, Stats())
        return Run(seconds, rows, float(seen.read_text()) - began, counted)


def _drain(rows: DataFrame, seen: Path | None) -> None:
    """Evaluate them as a sink would. seen: where the first one's time is written."""
    from pyspark.sql import functions as F

    json = rows.select(F.to_json(F.struct("*")).alias("value"))
    if seen is not None:
        path = str(seen)

        def noted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                with suppress(FileExistsError), open(path, "x") as file:
                    file.write(str(time.time()))
                yield batch

        json = json.mapInArrow(noted, "value string")
    json.write.format("noop").mode("overwrite").save()


def _events(spark: SparkSession, source: Path) -> DataFrame:
    from pyspark.sql import functions as F

    raw = (
        spark.readStream.schema("value binary").option("maxFilesPerTrigger", 1).parquet(str(source))
    )
    return raw.select(F.from_json(F.col("value").cast("string"), EVENT).alias("v")).select("v.*")


def _table(path: str, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    made = [{"id": f"u{number}", **orjson.loads(_row(number))} for number in range(rows)]
    parquet.write_table(pa.Table.from_pylist(made), path)


def _write(source: Path, users: Sequence[int], size: int) -> None:
    """A file a batch, in pieces for two tasks."""
    import pyarrow as pa
    from pyarrow import parquet

    for number, at in enumerate(range(0, len(users), size)):
        events = [
            orjson.dumps({"user": f"u{user}", "page": f"/pages/{user % 100}", "amount": user % 997})
            for user in users[at : at + size]
        ]
        table = pa.table({"value": pa.array(events, pa.binary())})
        parquet.write_table(table, source / f"{number:05}.parquet", row_group_size=size // 4)


def _row(number: int) -> bytes:
    return orjson.dumps({"name": f"name-{number}", "tier": number % 5, "country": "DE"})
