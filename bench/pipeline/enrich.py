"""Events with rows of a table of a million users: in Redis, all missed and by hit rate; broadcast.

Events lie in files as records of Kafka would (a JSON value of about 70 bytes), 200,000 a batch, so
that what is measured is the job and its table, not a broker. What comes out is JSON and thrown away
but for the counts. Redis runs here, on a socket, and takes part of the same cores.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from support.redis import RedisServer, running

from gateway.config.pipeline import Spark
from gateway.config.pipelines import Enrich
from gateway.pipeline.jobs import enrich as job
from gateway.pipeline.session import session
from gateway.pipeline.tables import lookup
from gateway.pipeline.tables.cache import Stats
from gateway.pipeline.tables.redis import Redis, Server

from ..figure import Figure

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

USERS = 1_000_000
BATCH, BATCHES = 200_000, 6
PREFIX = "users:"
FIELDS = {"name": "string", "tier": "int", "country": "string"}
EVENT = "user string, page string, amount int"
SKEWS = (0.6, 0.8, 1.0, 1.2)
"""Exponents of Zipf's law: the n-th user has a share of n ** -s."""
TABLES = (1_000, 10_000, 100_000)
"""Rows of tables that are broadcast."""


class Run(NamedTuple):
    """rates: events a second of each batch. first: seconds from the first batch's start to its
    first enriched row. counted: of the lookups."""

    rates: Sequence[float]
    first: float
    counted: Stats

    @property
    def warm(self) -> float:
        """Events a second, without the first two batches: the compiler's."""
        rest = self.rates[2:]
        return len(rest) / sum(1 / rate for rate in rest)


def measure() -> list[Figure]:
    spark = session(Spark(master="local[2]", memory="2GiB"), "bench")
    try:
        with running() as server:
            filled = _fill(server)
            return [filled, *_missed(spark, server), *_hits(spark, server), *_broadcast(spark)]
    finally:
        spark.stop()


def settings(table: Mapping[str, Any]) -> Enrich:
    written = {"name": "enriched", "type": "enrich", "on": "user", "to": {"topic": "enriched"}}
    return Enrich.model_validate({**written, "from": {"topic": "clicks"}, "table": table})


def _fill(server: RedisServer) -> Figure:
    """As the job `load` does it, without Spark."""
    began = time.monotonic()
    redis = Redis(Server(server.url, PREFIX, chunk=2000))
    redis.store((f"u{number}", _row(number)) for number in range(USERS))
    redis.close()
    return Figure("Redis is filled", USERS / (time.monotonic() - began), "rows/s", USERS)


def _missed(spark: SparkSession, server: RedisServer) -> list[Figure]:
    """Users drawn evenly, and no value may be used twice."""
    chance = random.Random(1)
    users = [chance.randrange(USERS) for _ in range(BATCH * BATCHES)]
    run = _run(spark, _in_redis(server, staleness="0s"), users)
    again = _run(spark, _in_redis(server, staleness="0s"), users[:BATCH])
    assert run.counted.hits == 0
    assert run.counted.missing == 0
    what = f"Redis, {USERS:,} users, all missed"
    return [
        Figure(what, run.warm, "records/s", BATCH * (BATCHES - 2)),
        Figure("first enriched row after the first batch's start, a new JVM", run.first, "s"),
        Figure("the same, of the next job in this JVM", again.first, "s"),
    ]


def _hits(spark: SparkSession, server: RedisServer) -> Iterator[Figure]:
    """By skew: the share of events without a request of their own, and the rate."""
    for skew in SKEWS:
        weights = list(accumulate(number**-skew for number in range(1, USERS + 1)))
        users = random.Random(2).choices(range(USERS), cum_weights=weights, k=BATCH * BATCHES)
        run = _run(spark, _in_redis(server, staleness="60s", negative="1s"), users)
        what = f"Redis, 100,000 kept by each of 2 tasks, Zipf {skew}"
        yield Figure(f"{what}: hits", 100 * run.counted.hit_rate, "%", len(users))
        yield Figure(f"{what}: rate", run.warm, "records/s", BATCH * (BATCHES - 2))


def _broadcast(spark: SparkSession) -> Iterator[Figure]:
    for rows in TABLES:
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "users")
            table = [(f"u{number}", *orjson.loads(_row(number)).values()) for number in range(rows)]
            schema = "id string, name string, tier int, country string"
            spark.createDataFrame(table, schema).write.parquet(path)
            chance = random.Random(3)
            users = [chance.randrange(rows) for _ in range(BATCH * BATCHES)]
            given = {"kind": "broadcast", "path": path, "key": "id", "refresh": "60s"}
            run = _run(spark, settings(given), users)
        what = f"broadcast of {rows:,} rows"
        yield Figure(what, run.warm, "records/s", BATCH * (BATCHES - 2))


def _in_redis(server: RedisServer, **more: Any) -> Enrich:
    table = {"kind": "redis", "url": server.url, "prefix": PREFIX, "fields": FIELDS}
    return settings({**table, **more})


def _run(spark: SparkSession, of: Enrich, users: Sequence[int]) -> Run:
    with tempfile.TemporaryDirectory() as directory:
        source, seen = Path(directory) / "events", Path(directory) / "seen"
        source.mkdir()
        _write(source, users)
        held = job.held(of, spark, {})

        def batch(rows: DataFrame, epoch: int) -> None:
            if held is not None:
                rows = job.build(of, {"from": rows, job.TABLE: held.current()})
            _drain(rows, None if epoch else seen)

        events = _events(spark, source)
        given = events if held is not None else job.build(of, {"from": events})
        writer = given.writeStream.foreachBatch(batch).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
        query.awaitTermination()
        if (error := query.exception()) is not None:
            raise error
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        rates = [each.numInputRows * 1000 / each.durationMs["triggerExecution"] for each in done]
        began = datetime.fromisoformat(done[0].timestamp).timestamp()
        counted = lookup.stats().get(of.name, Stats())
        return Run(rates, float(seen.read_text()) - began, counted)


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


def _write(source: Path, users: Sequence[int]) -> None:
    """A file a batch, in pieces for two tasks."""
    import pyarrow as pa
    from pyarrow import parquet

    for number, at in enumerate(range(0, len(users), BATCH)):
        events = [
            orjson.dumps({"user": f"u{user}", "page": f"/pages/{user % 100}", "amount": user % 997})
            for user in users[at : at + BATCH]
        ]
        table = pa.table({"value": pa.array(events, pa.binary())})
        parquet.write_table(table, source / f"{number:05}.parquet", row_group_size=BATCH // 4)


def _row(number: int) -> bytes:
    return orjson.dumps({"name": f"name-{number}", "tier": number % 5, "country": "DE"})
