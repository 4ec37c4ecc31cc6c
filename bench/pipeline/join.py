"""Orders and payments joined within an hour: the rate, the last order, one key with half the rows.

The input lies in files as records of Kafka would (a JSON value of about 95 bytes, partition,
offset), so that what is measured is the join and its state, not a broker; `exactly_once` measures
what topics cost. Every result is compared with the oracle of the tests.
"""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from support.joins import Row, Rule, joined

from gateway.config.sections.pipelines import Join
from gateway.pipeline.jobs import join
from gateway.pipeline.progress.tasks import Tasks
from gateway.pipeline.skew import hot_keys
from gateway.pipeline.spark.session import of_checkpoints, of_job
from gateway.pipeline.state import profiles

from ..figure import Figure, median
from . import engine
from .telling import tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOT = "shop-0"
FIELDS = {
    "left": "order string, user string, merchant string, amount double, at timestamp",
    "right": "payment string, order string, user string, merchant string, at timestamp",
}


@dataclass(frozen=True)
class Size:
    """batch: rows of each side. skewed: orders of which one merchant has half."""

    orders: int = 500_000
    batch: int = 100_000
    skewed: int = 120_000
    skewed_batch: int = 30_000


SMALL = Size(orders=6_000, batch=2_000, skewed=6_000, skewed_batch=2_000)


class Run(NamedTuple):
    """told: how many rows came out, and a sum of what they say. seconds: of each batch. rows: how
    many each read. commit: ms. tasks: of each batch but the first, what the slowest of the join
    took and the others on the average, s."""

    told: tuple[int, int]
    seconds: Sequence[float]
    rows: Sequence[int]
    commit: float
    tasks: Sequence[tuple[float, float]]

    @property
    def rate(self) -> float:
        """Records a second, the first batch (the compiler's) left out."""
        return sum(self.rows[1:]) / sum(self.seconds[1:])


@dataclass
class Shop:
    """Both sides as rows, and as files of one batch each."""

    orders: list[Row]
    payments: list[Row]
    batch: int
    directory: Path = field(default_factory=Path)

    def write(self, directory: Path) -> Shop:
        self.directory = directory
        for side, rows in (("left", self.orders), ("right", self.payments)):
            (directory / side).mkdir(parents=True)
            for number, part in enumerate(_parts(rows, self.batch)):
                _write(directory / side / f"{number:05}.parquet", side, number * self.batch, part)
        return self

    def expected(self, rule: Rule) -> tuple[int, int]:
        return _sum(joined(rule, self.orders, self.payments))


def measure(size: Size = Size()) -> list[Figure]:
    with engine.spark() as spark:
        return [*_rates(spark, size), *_skew(spark, size)]


def shop(orders: int, batch: int, hours: float = 12.0) -> Shop:
    """Of all orders 5% are never paid, and 5% after the hour."""
    some = random.Random(1)
    left: list[dict[str, Any]] = []
    right: list[dict[str, Any]] = []
    for number in range(orders):
        at = NOON + timedelta(seconds=hours * 3600 * number / orders)
        key = {"order": f"o-{number}", "user": f"user-{some.randrange(50_000)}"}
        left.append({**key, "merchant": "m", "amount": some.randrange(9999) / 100, "at": at})
        if number % 20:
            late = 3600 if number % 20 == 1 else 0
            paid = at + timedelta(seconds=late + 1 + some.randrange(3590))
            right.append({"payment": f"p-{number}", **key, "merchant": "m", "at": paid})
    right.sort(key=lambda row: row["at"])
    return Shop([*left], [*right], batch)


def skewed(orders: int, batch: int) -> Shop:
    """Half of the orders are one merchant's; each is joined with its terms of that minute."""
    some = random.Random(2)
    seconds = orders * 6 // 25  # 250 a minute
    left: list[Row] = [
        {
            "order": f"o-{number}",
            "user": "u",
            "merchant": HOT if number % 2 else f"shop-{1 + some.randrange(60)}",
            "amount": 1.0,
            "at": NOON + timedelta(seconds=seconds * number / orders),
        }
        for number in range(orders)
    ]
    right: list[Row] = [
        {
            "payment": f"t-{merchant}-{minute}",
            "order": "",
            "user": "",
            "merchant": f"shop-{merchant}",
            "at": NOON + timedelta(minutes=minute),
        }
        for minute in range(-1, seconds // 60)
        for merchant in range(61)
    ]
    return Shop(left, right, batch)


def job(**more: Any) -> Join:
    sides = {side: {"topic": side, "time": "at", "watermark": "10m"} for side in ("left", "right")}
    rest = {"name": "paid", "type": "join", "after": "1h", "to": {"topic": "paid"}}
    told = {"order": "left.order", "payment": "right.payment"}
    return Join.model_validate(
        {**rest, **sides, "on": {"order": "order", "user": "user"}, "select": told, **more}
    )


def run(
    spark: SparkSession,
    settings: Join,
    data: Shop,
    hot: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
) -> Run:
    """Up to the last row. more: settings of Spark beside those of the job's profile."""
    from pyspark.sql import functions as F

    own = of_job(spark, {**of_checkpoints("/"), **profiles.of(settings), **(more or {})})
    tables = {side: _table(own, data, side) for side in ("left", "right")}
    pairs = join.build(settings, tables, hot)
    pair = F.concat_ws("|", "order", F.coalesce("payment", F.lit("-")))
    counted = pairs.observe("told", F.count("*").alias("rows"), F.sum(F.crc32(pair)).alias("sum"))
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = counted.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.outputMode("append").trigger(availableNow=True).start()
        engine.ended(query)
        tasks = Tasks(own)
        return _run(query.recentProgress, lambda batch: tasks.of(str(query.runId), batch))


def _rates(spark: SparkSession, size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        tell(f"writing {size.orders:,} orders and their payments")
        data = shop(size.orders, size.batch).write(Path(directory))
        for kind in ("inner", "left"):
            on = {"order": "order", "user": "user"}
            done = _right(spark, job(kind=kind), data, Rule(on, kind=kind), f"join {kind}")
            what = f"join {kind}, {len(data.orders):,} orders and {len(data.payments):,} payments"
            yield Figure(f"{what}, warm", done.rate, "records/s", sum(done.rows[1:]))
            yield Figure(f"{what}, commit of a batch", done.commit, "ms", len(done.rows))


def _skew(spark: SparkSession, size: Size) -> Iterator[Figure]:
    """The key with half of the rows is found, not named."""
    on = {"merchant": "merchant"}
    with tempfile.TemporaryDirectory() as directory:
        data = skewed(size.skewed, size.skewed_batch).write(Path(directory))
        for salt in (None, {"share": 20}):
            more = {"before": "60s", "after": "0s", "state": {"partitions": 4}, "salt": salt}
            settings = job(on=on, **{key: value for key, value in more.items() if value})
            left = _table(spark, data, "left", spark.read)
            hot = hot_keys(left, ["merchant"], 20) if salt else []
            if hot != ([HOT] if salt else []):
                raise AssertionError(f"{hot} are not the hot keys")
            what = f"one key half of {size.skewed:,}, {'salted' if salt else 'as it is'}"
            done = _right(spark, settings, data, Rule(on, before=60, after=0), what, hot)
            slowest, others = (median([pair[at] for pair in done.tasks]) for at in (0, 1))
            yield Figure(f"{what}, slowest task", slowest, "s", len(done.tasks))
            yield Figure(f"{what}, its other tasks", others, "s", len(done.tasks))
            yield Figure(f"{what}, slowest to others", slowest / max(others, 1e-3), "x")
            yield Figure(f"{what}, batch", median(done.seconds[1:]), "s", len(done.seconds) - 1)


def _right(
    spark: SparkSession, settings: Join, data: Shop, rule: Rule, what: str, hot: Sequence[str] = ()
) -> Run:
    """Raises AssertionError: what came out is not what should have."""
    tell(what)
    done = run(spark, settings, data, hot)
    expected = data.expected(rule)
    if done.told != expected:
        raise AssertionError(f"{what}: rows and their sum are {done.told}, not {expected}")
    tell(f"{what}: {expected[0]:,} rows as expected, {sum(done.seconds):.0f} s")
    return done


def _run(progress: Sequence[Any], tasks: Callable[[int], Mapping[str, Any] | None]) -> Run:
    parts = [part for part in progress if part["numInputRows"] > 2]
    told = [
        (row["rows"], row["sum"] or 0)
        for part in progress
        if (row := part["observedMetrics"].get("told"))
    ]
    states = [part["stateOperators"][0] for part in progress if part["stateOperators"]]
    return Run(
        told=(sum(rows for rows, _ in told), sum(crc for _, crc in told)),
        seconds=[part["durationMs"]["triggerExecution"] / 1000 for part in parts],
        rows=[part["numInputRows"] for part in parts],
        commit=median([state["commitTimeMs"] for state in states]),
        tasks=[pair for part in parts[1:] if (pair := _slowest(tasks(part["batchId"])))],
    )


def _slowest(told: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Of the stage that joins: its slowest task, and what the others took on the average."""
    joins = [stage for stage in (told or {}).get("stages", ()) if stage["shuffles"]]
    if not joins:
        return None
    stage = max(joins, key=lambda each: float(each["total"]))
    others = (stage["total"] - stage["slowest"]) / max(1, stage["tasks"] - 1)
    return stage["slowest"], others


def _table(spark: SparkSession, data: Shop, side: str, reader: Any = None) -> DataFrame:
    from pyspark.sql import functions as F

    of_record = "value binary, _partition int, _offset bigint"
    if reader is None:
        reader = spark.readStream.option("maxFilesPerTrigger", 1)
    files = reader.schema(of_record).parquet(str(data.directory / side))
    value = F.from_json(F.col("value").cast("string"), FIELDS[side])
    table = files.select(value.alias("v"), "_partition", "_offset")
    columns: DataFrame = table.select("v.*", "_partition", "_offset")
    return columns.withWatermark("at", "10 minutes")


def _parts(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """And a heartbeat of the next week, without a key, that makes the last rows due."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
    yield [{"at": NOON + timedelta(days=7)}]


def _write(path: Path, side: str, first: int, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    numbers = range(first, first + len(rows))
    table = pa.table(
        {
            "value": pa.array([orjson.dumps(row) for row in rows], pa.binary()),
            "_partition": pa.array([number % 2 for number in numbers], pa.int32()),
            "_offset": pa.array([number // 2 for number in numbers], pa.int64()),
        }
    )
    parquet.write_table(table, path, row_group_size=max(1, len(rows) // 4))


def _sum(pairs: Iterable[tuple[Row, Row | None]]) -> tuple[int, int]:
    count = total = 0
    for left, right in pairs:
        count += 1
        total += zlib.crc32(f"{left['order']}|{right['payment'] if right else '-'}".encode())
    return count, total
