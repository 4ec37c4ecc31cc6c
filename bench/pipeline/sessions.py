"""Sessions of 50,000 users and more: the rate, how it falls as state grows, how soon they close.

The input lies in files as records of Kafka would (a JSON value of about 75 bytes, partition,
offset), so that what is measured is the job and its state, not a broker. Every batch has 10
minutes of events in no order; gap 30 minutes, grace 10. What came out is compared with the oracle
of the tests.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from support.sessions import Event, sessions
from support.streamed import Streamed

from gateway.config.pipeline import Spark
from gateway.config.pipelines import Sessions
from gateway.pipeline.jobs import sessions as job
from gateway.pipeline.session import of_job, session

from ..figure import Figure, times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
MINUTE = 60_000_000  # microseconds
BATCH, BATCHES = 100_000, 8
FIELDS = "user string, time timestamp, amount int"
WAYS: Mapping[str, dict[str, Any]] = {
    "closed, Spark's own": {},
    "updates": {"emit": "updates"},
    "longest 8h": {"maxLength": "8h"},
}
GROWTH = (50_000, 200_000, 500_000, 1_000_000)
CLOSINGS = 25
PARTITIONS = {"spark.sql.shuffle.partitions": "2"}
STATE = "spark.sql.streaming.stateStore."


class Run(NamedTuple):
    """seconds, rows: of the batches with rows. state: rows at their end, and bytes in SST files.
    told: closed sessions, and the sum of their totals."""

    seconds: Sequence[float]
    rows: Sequence[int]
    state: tuple[int, int]
    told: tuple[int, int]

    @property
    def rate(self) -> float:
        """Events a second, without the first two batches: the compiler's, and their end."""
        return sum(self.rows[2:]) / sum(self.seconds[2:])


def measure() -> list[Figure]:
    spark = session(Spark(master="local[2]", memory="2GiB"), "bench")
    try:
        return [*_rates(spark), *_growth(spark), *_closing(spark)]
    finally:
        spark.stop()


def settings(**more: Any) -> Sessions:
    written = {
        "name": "visits",
        "type": "sessions",
        "from": {"topic": "clicks", "time": "time", "watermark": "10m"},
        "by": ["user"],
        "measures": {"total": "sum(amount)"},
        "to": {"topic": "visits"},
    }
    return Sessions.model_validate(written | more)


def _rates(spark: SparkSession) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        events = list(_batches(50_000, BATCHES))
        _write(Path(directory), events)
        every = [event for batch in events for event in batch]
        for name, more in WAYS.items():
            longest = 480 * MINUTE if "maxLength" in more else None
            whole = sessions(every, 30 * MINUTE, longest)
            run(spark, settings(**more), Path(directory))  # warm
            done = run(spark, settings(**more), Path(directory))
            if done.told != (len(whole), sum(one.total for one in whole)):
                raise AssertionError(f"{name}: {done.told} are not the oracle's")
            yield Figure(f"{name}, 50,000 users", done.rate, "events/s", sum(done.rows[2:]))


def _growth(spark: SparkSession) -> Iterator[Figure]:
    """Each user comes about once: nearly all of a batch's rows are new state."""
    # A snapshot now and then, so that state lies in files whose bytes can be told.
    often = {f"{STATE}minDeltasForSnapshot": "2", f"{STATE}maintenanceInterval": "5s"}
    for users in GROWTH:
        with tempfile.TemporaryDirectory() as directory:
            count = max(BATCHES, 2 * users // BATCH)
            _write(Path(directory), _batches(users, count, span=20 / count))
            done = run(spark, settings(), Path(directory), often)
        last = sum(done.rows[-3:]) / sum(done.seconds[-3:])
        yield Figure(f"{users:,} users, the last three batches", last, "events/s", 3 * BATCH)
        yield Figure(f"{users:,} users, open sessions", done.state[0], "rows")
        yield Figure(f"{users:,} users, files of state", done.state[1] / done.state[0], "B/session")


def _closing(spark: SparkSession) -> Iterator[Figure]:
    """From the newer event's arrival, whose time is gap + grace after the session's last."""
    own = of_job(spark, PARTITIONS)
    for name, more in list(WAYS.items())[:2]:
        chosen = settings(**more)
        with tempfile.TemporaryDirectory() as directory:
            fed = Streamed(
                own,
                Path(directory),
                f"{FIELDS}, _partition int, _offset bigint",
                lambda events, chosen=chosen: job.build(chosen, {"from": events}),  # type: ignore[misc]
                watermark="10 minutes",
                mode=job.mode(chosen),
            )
            with fed:
                waits = [_waited(fed, number) for number in range(CLOSINGS)]
        yield from times(f"{name}, newer event to closed session", waits[5:])


def _waited(fed: Streamed, number: int) -> float:
    at = NOON / 1e6 + number * 2400
    moment = datetime.fromtimestamp(at, UTC).isoformat()
    began = time.perf_counter()
    place = {"_partition": 0, "_offset": number, "amount": 1}
    told = fed.feed([{"user": f"user-{number}", "time": moment, **place}])
    waited = time.perf_counter() - began
    if number and not any(row["user"] == f"user-{number - 1}" for row in told):
        raise AssertionError("the session before has not closed")
    return waited


def run(
    spark: SparkSession, chosen: Sessions, directory: Path, conf: Mapping[str, str] = {}
) -> Run:
    own = of_job(spark, {**PARTITIONS, **conf})
    told = [0, 0]

    def summed(rows: DataFrame, _: int) -> None:
        closed = rows.where("state = 'closed'") if "state" in rows.columns else rows
        count, total = closed.selectExpr("count(1)", "coalesce(sum(total), 0)").collect()[0]
        told[0] += count
        told[1] += total

    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            job.build(chosen, {"from": _events(own, directory)})
            .writeStream.outputMode(job.mode(chosen))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .foreachBatch(summed)
            .start()
        )
        query.awaitTermination()
        done = [each for each in query.recentProgress if each.numInputRows > 1]
    state = done[-1].stateOperators[0]
    return Run(
        [each.durationMs["triggerExecution"] / 1000 for each in done],
        [each.numInputRows for each in done],
        (state.numRowsTotal, state.customMetrics["rocksdbSstFileSize"]),
        (told[0], told[1]),
    )


def _events(spark: SparkSession, directory: Path) -> DataFrame:
    from pyspark.sql import functions as F

    raw = (
        spark.readStream.schema("value binary, _partition int, _offset bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(directory))
    )
    value = F.from_json(F.col("value").cast("string"), FIELDS).alias("v")
    typed = raw.select(value, "_partition", "_offset").select("v.*", "_partition", "_offset")
    return typed.withWatermark("time", "10 minutes")


def _batches(users: int, count: int, span: float = 10.0) -> Iterator[list[Event]]:
    """span: minutes of events in a batch."""
    some = random.Random(users)
    for number in range(count):
        begin = NOON + round(number * span * MINUTE)
        yield [
            Event(
                f"user-{some.randrange(users)}",
                begin + some.randrange(round(span * MINUTE)) // 1000 * 1000,
                some.randrange(1000),
            )
            for _ in range(BATCH)
        ]


def _write(directory: Path, batches: Iterator[list[Event]] | Sequence[list[Event]]) -> None:
    """A file a batch, and one with an event of the next day: all before it closes."""
    import pyarrow as pa
    from pyarrow import parquet

    end = [Event("end", NOON + 24 * 60 * MINUTE)]
    for number, events in enumerate([*batches, end]):
        table = pa.table(
            {
                "value": pa.array([_json(event) for event in events], pa.binary()),
                "_partition": pa.array([at % 2 for at in range(len(events))], pa.int32()),
                "_offset": pa.array(range(len(events)), pa.int64()),
            }
        )
        path = directory / f"{number:05}.parquet"
        parquet.write_table(table, path, row_group_size=max(1, len(events) // 4))


def _json(event: Event) -> bytes:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=event.time)
    return orjson.dumps(
        {
            "user": event.key,
            "time": moment.isoformat(timespec="milliseconds"),
            "amount": event.value,
        }
    )
