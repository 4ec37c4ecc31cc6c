"""Sessions: the rate with 50,000 users, how it falls as state grows, how soon they close.

The input lies in files as records of Kafka would (a JSON value of about 75 bytes, partition,
offset), so that what is measured is the job and its state, not a broker. Gap 30 minutes, grace 10;
to measure the rate each batch has 10 minutes of events in no order. What came out is compared with
the oracle of the tests, what is kept with the users that came.
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
from support.sessions import Event, sessions
from support.streamed import Streamed

from gateway.config.sections.pipelines import Sessions
from gateway.pipeline.jobs import sessions as job
from gateway.pipeline.spark.session import of_checkpoints, of_job
from gateway.pipeline.state import profiles

from ..figure import Figure, times
from . import engine
from .telling import tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
MINUTE = 60_000_000  # microseconds
FIELDS = "user string, time timestamp, amount int"
WAYS: Mapping[str, dict[str, Any]] = {
    "closed, Spark's own": {},
    "updates": {"emit": "updates"},
    "longest 8h": {"maxLength": "8h"},
}


@dataclass(frozen=True)
class Size:
    """batch, batches: of Spark's own sessions; in_python: of the others. grown: users, each with
    an event, at which the growing state is looked at. closings: sessions."""

    users: int = 50_000
    batch: int = 100_000
    batches: int = 6
    in_python: tuple[int, int] = (50_000, 4)
    grown: Sequence[int] = (200_000, 500_000, 1_000_000)
    closings: int = 15


SMALL = Size(
    users=1_000, batch=2_000, batches=3, in_python=(2_000, 3), grown=(2_000, 6_000), closings=6
)
STATE = "spark.sql.streaming.stateStore."
WARM = 2  # batches that are the compiler's
COLD = 5  # sessions that close while it is still at work


class Run(NamedTuple):
    """seconds, rows: of the batches with rows. state: rows after each, and bytes in SST files.
    told: closed sessions, and the sum of their totals."""

    seconds: Sequence[float]
    rows: Sequence[int]
    state: Sequence[tuple[int, int]]
    told: tuple[int, int]

    @property
    def rate(self) -> float:
        """Events a second, without the first batches."""
        return sum(self.rows[WARM:]) / sum(self.seconds[WARM:])


def measure(size: Size = Size()) -> list[Figure]:
    with engine.spark() as spark:
        return [*_growth(spark, size), *_rates(spark, size), *_closing(spark, size)]


def settings(**more: Any) -> Sessions:
    written = {
        "name": "visits",
        "type": "sessions",
        "from": {"topic": "clicks", "time": "time", "watermark": "10m"},
        "by": ["user"],
        "measures": {"total": "sum(amount)"},
        "to": {"topic": "visits"},
        "state": {"partitions": 2},
    }
    return Sessions.model_validate(written | more)


def _conf(chosen: Sessions) -> Mapping[str, str]:
    """As the runner does it."""
    return {**of_checkpoints("/"), **profiles.of(chosen)}


def _growth(spark: SparkSession, size: Size) -> Iterator[Figure]:
    """Each event is a new user's, all within 20 minutes: all of them stay."""
    # A snapshot now and then, so that state lies in files whose bytes can be told.
    often = {f"{STATE}minDeltasForSnapshot": "2", f"{STATE}maintenanceInterval": "5s"}
    batches = size.grown[-1] // size.batch
    tell(f"state grows to {size.grown[-1]:,} users in {batches} batches")
    with tempfile.TemporaryDirectory() as directory:
        _write(Path(directory), _new(batches, size.batch))
        done = run(spark, settings(), Path(directory), often)
    for users in size.grown:
        at = users // size.batch - 1
        kept, stored = done.state[at]
        if kept != users:
            raise AssertionError(f"{kept} sessions of {users} users are kept")
        rate = done.rows[at] / done.seconds[at]
        yield Figure(
            f"growth, the batch of new users up to {users:,}", rate, "events/s", size.batch
        )
    yield Figure(f"{kept:,} open sessions, state in files", stored / kept, "bytes/key")


def _rates(spark: SparkSession, size: Size) -> Iterator[Figure]:
    for name, more in WAYS.items():
        batch, count = size.in_python if more else (size.batch, size.batches)
        batches = list(_batches(size.users, batch, count))
        tell(f"{name}: {count} batches of {batch:,} events")
        with tempfile.TemporaryDirectory() as directory:
            _write(Path(directory), [*batches, [Event("end", NOON + 24 * 60 * MINUTE)]])
            done = run(spark, settings(**more), Path(directory))
        longest = 480 * MINUTE if "maxLength" in more else None
        whole = sessions((each for some in batches for each in some), 30 * MINUTE, longest)
        if done.told != (len(whole), sum(one.total for one in whole)):
            raise AssertionError(f"{name}: {done.told} are not the oracle's")
        tell(f"{name}: {len(whole):,} sessions as expected, {sum(done.seconds):.0f} s")
        yield Figure(f"{name}, {size.users:,} users", done.rate, "events/s", sum(done.rows[WARM:]))


def _closing(spark: SparkSession, size: Size) -> Iterator[Figure]:
    """From the newer event's arrival, whose time is gap + grace after the session's last."""
    own = of_job(spark, _conf(settings()))
    for name, more in list(WAYS.items())[:2]:
        tell(f"{name}: {size.closings} sessions close, one after the other")
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
                waits = [_waited(fed, number) for number in range(size.closings)]
        yield from times(f"{name}, beyond gap + grace until it is told", waits[COLD:])


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
    spark: SparkSession, chosen: Sessions, directory: Path, more: Mapping[str, str] = {}
) -> Run:
    own = of_job(spark, {**_conf(chosen), **more})
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
        engine.ended(query)
        done = [each for each in query.recentProgress if each.numInputRows > 1]
    states = [each.stateOperators[0] for each in done]
    return Run(
        [each.durationMs["triggerExecution"] / 1000 for each in done],
        [each.numInputRows for each in done],
        [(each.numRowsTotal, each.customMetrics["rocksdbSstFileSize"]) for each in states],
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


def _new(count: int, batch: int) -> Iterator[list[Event]]:
    """Of one more user each, 20 minutes in all."""
    some = random.Random(0)
    for number in range(count):
        yield [
            Event(f"user-{number * batch + n}", NOON + some.randrange(20 * MINUTE) // 1000 * 1000)
            for n in range(batch)
        ]


def _batches(users: int, size: int, count: int) -> Iterator[list[Event]]:
    some = random.Random(users)
    for number in range(count):
        begin = NOON + number * 10 * MINUTE
        yield [
            Event(
                f"user-{some.randrange(users)}",
                begin + some.randrange(10 * MINUTE) // 1000 * 1000,
                some.randrange(1000),
            )
            for _ in range(size)
        ]


def _write(directory: Path, batches: Iterable[Sequence[Event]]) -> None:
    """A file a batch."""
    import pyarrow as pa
    from pyarrow import parquet

    for number, events in enumerate(batches):
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
