"""Measure a join of orders and payments within an hour: its rate, the last order, and a hot key.

The hot key has half of the rows. The input is in files as records of Kafka would be (a JSON value
of about 95 bytes, partition, offset), so that the join and its state are measured, not a broker;
`exactly_once` measures what topics cost. Every result is compared with the oracle of the tests.
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
from support.joins import JoinRule, Row, join_rows

from gateway.config.sections.pipelines import Join
from gateway.pipeline.jobs import join
from gateway.pipeline.progress.tasks import TaskMetricsReader
from gateway.pipeline.skew import find_hot_keys

from ..results import Cell, median
from . import engine
from .engine import print_progress
from .inputs import read_batches, write_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOT_MERCHANT = "shop-0"
SIDE_SCHEMAS = {
    "left": "order string, user string, merchant string, amount double, at timestamp",
    "right": "payment string, order string, user string, merchant string, at timestamp",
}


@dataclass(frozen=True)
class Workload:
    """batch: rows of each side. skewed: orders of which one merchant has half."""

    orders: int = 500_000
    batch_rows: int = 100_000
    skewed_orders: int = 120_000
    skewed_batch_rows: int = 30_000


SMALL = Workload(orders=6_000, batch_rows=2_000, skewed_orders=6_000, skewed_batch_rows=2_000)


class RunResult(NamedTuple):
    """told: how many rows came out, and a sum of what they say. seconds: of each batch. rows: how
    many each read. commit: ms. tasks: of each batch but the first, what the slowest of the join
    took and the others on the average, s."""

    totals: tuple[int, int]
    batch_seconds: Sequence[float]
    batch_rows: Sequence[int]
    commit_ms: float
    task_seconds: Sequence[tuple[float, float]]

    @property
    def rate(self) -> float:
        """Records a second, the first batch (the compiler's) left out."""
        return sum(self.batch_rows[1:]) / sum(self.batch_seconds[1:])


@dataclass
class JoinData:
    """Both sides as rows, and as files of one batch each."""

    orders: list[Row]
    payments: list[Row]
    batch_rows: int
    directory: Path = field(default_factory=Path)

    def write_files(self, directory: Path) -> JoinData:
        self.directory = directory
        for side, rows in (("left", self.orders), ("right", self.payments)):
            batches = _split_batches(rows, self.batch_rows)
            write_batches(directory / side, ([*map(orjson.dumps, part)] for part in batches))
        return self

    def compute_totals(self, rule: JoinRule) -> tuple[int, int]:
        return _sum_pairs(join_rows(rule, self.orders, self.payments))


def measure(cell: Cell, workload: Workload) -> None:
    with engine.run_spark() as spark:
        _measure_rates(cell, spark, workload)
        _measure_skew(cell, spark, workload)


def generate_data(order_count: int, batch_rows: int, hours: float = 12.0) -> JoinData:
    """Of all orders 5% are never paid, and 5% after the hour."""
    some = random.Random(1)
    left: list[dict[str, Any]] = []
    right: list[dict[str, Any]] = []
    for number in range(order_count):
        at = START_TIME + timedelta(seconds=hours * 3600 * number / order_count)
        key = {"order": f"o-{number}", "user": f"user-{some.randrange(50_000)}"}
        left.append({**key, "merchant": "m", "amount": some.randrange(9999) / 100, "at": at})
        if number % 20:
            late = 3600 if number % 20 == 1 else 0
            paid = at + timedelta(seconds=late + 1 + some.randrange(3590))
            right.append({"payment": f"p-{number}", **key, "merchant": "m", "at": paid})
    right.sort(key=lambda row: row["at"])
    return JoinData([*left], [*right], batch_rows)


def generate_skewed_data(order_count: int, batch_rows: int) -> JoinData:
    """Half of the orders are one merchant's; each is joined with its terms of that minute."""
    some = random.Random(2)
    seconds = order_count * 6 // 25  # 250 a minute
    left: list[Row] = [
        {
            "order": f"o-{number}",
            "user": "u",
            "merchant": HOT_MERCHANT if number % 2 else f"shop-{1 + some.randrange(60)}",
            "amount": 1.0,
            "at": START_TIME + timedelta(seconds=seconds * number / order_count),
        }
        for number in range(order_count)
    ]
    right: list[Row] = [
        {
            "payment": f"t-{merchant}-{minute}",
            "order": "",
            "user": "",
            "merchant": f"shop-{merchant}",
            "at": START_TIME + timedelta(minutes=minute),
        }
        for minute in range(-1, seconds // 60)
        for merchant in range(61)
    ]
    return JoinData(left, right, batch_rows)


def build_settings(**options: Any) -> Join:
    sides = {side: {"topic": side, "time": "at", "watermark": "10m"} for side in ("left", "right")}
    rest = {"name": "paid", "type": "join", "after": "1h", "to": {"topic": "paid"}}
    told = {"order": "left.order", "payment": "right.payment"}
    return Join.model_validate(
        {**rest, **sides, "on": {"order": "order", "user": "user"}, "select": told, **options}
    )


def run_join(
    spark: SparkSession, settings: Join, data: JoinData, hot_keys: Sequence[str]
) -> RunResult:
    """Up to the last row."""
    from pyspark.sql import functions as F

    own = engine.create_own_session(spark, settings)
    tables = {side: _read_table(own, data, side) for side in ("left", "right")}
    pairs = join.build(settings, tables, hot_keys)
    pair = F.concat_ws("|", "order", F.coalesce("payment", F.lit("-")))
    counted = pairs.observe("told", F.count("*").alias("rows"), F.sum(F.crc32(pair)).alias("sum"))
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = counted.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.outputMode("append").trigger(availableNow=True).start()
        engine.wait_for_query(query)
        tasks = TaskMetricsReader(own)
        return _build_result(
            query.recentProgress, lambda batch: tasks.read_batch(str(query.runId), batch)
        )


def _measure_rates(cell: Cell, spark: SparkSession, workload: Workload) -> None:
    with tempfile.TemporaryDirectory() as directory:
        print_progress(f"writing {workload.orders:,} orders and their payments")
        data = generate_data(workload.orders, workload.batch_rows).write_files(Path(directory))
        for kind in ("inner", "left"):
            on = {"order": "order", "user": "user"}
            done = _run_checked(
                spark, build_settings(kind=kind), data, JoinRule(on, kind=kind), f"join {kind}"
            )
            what = f"join {kind}, {len(data.orders):,} orders and {len(data.payments):,} payments"
            cell.add_row(what, "records", "records/s", done.rate, n=sum(done.batch_rows[1:]))
            cell.add_row(what, "commit of a batch", "ms", done.commit_ms, n=len(done.batch_rows))


def _measure_skew(cell: Cell, spark: SparkSession, workload: Workload) -> None:
    """The key with half of the rows is found, not named."""
    on = {"merchant": "merchant"}
    with tempfile.TemporaryDirectory() as directory:
        data = generate_skewed_data(workload.skewed_orders, workload.skewed_batch_rows).write_files(
            Path(directory)
        )
        for salt in (None, {"share": 20}):
            more = {"before": "60s", "after": "0s", "state": {"partitions": 4}, "salt": salt}
            settings = build_settings(on=on, **{key: value for key, value in more.items() if value})
            left = _read_table(spark, data, "left", spark.read)
            hot = find_hot_keys(left, ["merchant"], 20) if salt else []
            if hot != ([HOT_MERCHANT] if salt else []):
                raise AssertionError(f"{hot} are not the hot keys")
            what = f"one key half of {workload.skewed_orders:,}, {'salted' if salt else 'as it is'}"
            done = _run_checked(
                spark, settings, data, JoinRule(on, before_s=60, after_s=0), what, hot
            )
            slowest, others = (median([pair[at] for pair in done.task_seconds]) for at in (0, 1))
            n = len(done.task_seconds)
            cell.add_row(what, "slowest task", "s", slowest, n=n)
            cell.add_row(what, "its other tasks", "s", others, n=n)
            cell.add_row(what, "slowest to others", "times", slowest / max(others, 1e-3), n=n)
            cell.add_row(what, "batch", "s", *done.batch_seconds[1:])


def _run_checked(
    spark: SparkSession,
    settings: Join,
    data: JoinData,
    rule: JoinRule,
    what: str,
    hot_keys: Sequence[str] = (),
) -> RunResult:
    """Raises AssertionError: what came out is not what should have."""
    print_progress(what)
    done = run_join(spark, settings, data, hot_keys)
    expected = data.compute_totals(rule)
    if done.totals != expected:
        raise AssertionError(f"{what}: rows and their sum are {done.totals}, not {expected}")
    print_progress(f"{what}: {expected[0]:,} rows as expected, {sum(done.batch_seconds):.0f} s")
    return done


def _build_result(
    progress: Sequence[Any], read_tasks: Callable[[int], Mapping[str, Any] | None]
) -> RunResult:
    parts = [part for part in progress if part["numInputRows"] > 2]
    told = [
        (row["rows"], row["sum"] or 0)
        for part in progress
        if (row := part["observedMetrics"].get("told"))
    ]
    states = [part["stateOperators"][0] for part in progress if part["stateOperators"]]
    return RunResult(
        totals=(sum(rows for rows, _ in told), sum(crc for _, crc in told)),
        batch_seconds=[part["durationMs"]["triggerExecution"] / 1000 for part in parts],
        batch_rows=[part["numInputRows"] for part in parts],
        commit_ms=median([state["commitTimeMs"] for state in states]),
        task_seconds=[
            pair for part in parts[1:] if (pair := _get_task_seconds(read_tasks(part["batchId"])))
        ],
    )


def _get_task_seconds(tasks: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Of the stage that joins: its slowest task, and what the others took on the average."""
    joins = [stage for stage in (tasks or {}).get("stages", ()) if stage["shuffles"]]
    if not joins:
        return None
    stage = max(joins, key=lambda each: float(each["total"]))
    others = (stage["total"] - stage["slowest"]) / max(1, stage["tasks"] - 1)
    return stage["slowest"], others


def _read_table(spark: SparkSession, data: JoinData, side: str, reader: Any = None) -> DataFrame:
    table = read_batches(spark, data.directory / side, SIDE_SCHEMAS[side], reader)
    return table.withWatermark("at", "10 minutes")


def _split_batches(rows: Sequence[Row], batch_rows: int) -> Iterator[Sequence[Row]]:
    """And a heartbeat of the next week, without a key, that makes the last rows due."""
    for start in range(0, len(rows), batch_rows):
        yield rows[start : start + batch_rows]
    yield [{"at": START_TIME + timedelta(days=7)}]


def _sum_pairs(pairs: Iterable[tuple[Row, Row | None]]) -> tuple[int, int]:
    count = total = 0
    for left, right in pairs:
        count += 1
        total += zlib.crc32(f"{left['order']}|{right['payment'] if right else '-'}".encode())
    return count, total
