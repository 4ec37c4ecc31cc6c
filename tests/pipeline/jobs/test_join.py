"""The join against an oracle in plain Python: in batch, salted, and as a stream to its end."""

from __future__ import annotations

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.joins import JoinRule, Row, join_rows

from gateway.config.sections.pipelines import Join
from gateway.pipeline.jobs import join
from gateway.pipeline.run.output import get_key_columns
from gateway.web.pipeline_demo.generate import ShopTraffic, generate_events

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ORDERS = {"order": "string", "merchant": "string", "amount": "double", "at": "timestamp"}
PAYMENTS = {"payment": "string", "order": "string", "merchant": "string", "at": "timestamp"}
OF_RECORDS = "_key binary, _topic string, _partition int, _offset bigint, _timestamp timestamp"


def settings(**more: Any) -> Join:
    sides = {
        side: {"topic": topic, "time": "at", "watermark": "10m", "value": {"fields": fields}}
        for side, topic, fields in (("left", "orders", ORDERS), ("right", "payments", PAYMENTS))
    }
    rest = {"name": "paid", "type": "join", "on": {"order": "order"}, "to": {"topic": "paid"}}
    return Join.model_validate({**rest, **sides, "after": "10s", **more})


def numbered(topic: str, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """As records of a topic with three partitions."""
    return [
        {**row, "_topic": topic, "_partition": number % 3, "_offset": number // 3}
        for number, row in enumerate(rows)
    ]


def table(spark: Any, columns: Mapping[str, str], rows: Iterable[Row]) -> Any:
    schema = ", ".join([*(f"{name} {kind}" for name, kind in columns.items()), OF_RECORDS])
    return spark.createDataFrame(numbered("t", rows), schema)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def order(name: str | None, seconds: float, merchant: str = "m") -> dict[str, Any]:
    return {"order": name, "merchant": merchant, "amount": 1.0, "at": at(seconds)}


def payment(name: str | None, seconds: float, merchant: str = "m") -> dict[str, Any]:
    return {"payment": "p", "order": name, "merchant": merchant, "at": at(seconds)}


def shop(seconds: int = 60) -> tuple[list[Row], list[Row]]:
    """Orders and payments of a seeded shop, some of both twice: a join is not a lookup."""
    traffic = ShopTraffic(clicks=0, orders=10, merchants=5, mean_payment_delay_s=6.0, seed=7)
    orders: list[Row] = []
    payments: list[Row] = []
    merchants: dict[str, str] = {}
    for event in sorted(generate_events(traffic, 0.0, seconds), key=lambda event: event.topic):
        value = event.value | {"at": NOON + timedelta(milliseconds=event.value["at"])}
        merchants.setdefault(value["order"], value.get("merchant", ""))
        value["merchant"] = merchants[value["order"]]
        (orders if event.topic == "orders" else payments).append(value)
    return orders + orders[:20], payments + payments[:20]


def bag(rows: Iterable[Any]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in rows)


TOLD = {
    "order": "left.order",
    "merchant": "left.merchant",
    "ordered": "left.at",
    "payment": "right.payment",
    "paid": "right.at",
}


def expected(rule: JoinRule, orders: Iterable[Row], payments: Iterable[Row]) -> Counter[Any]:
    return bag(
        (left["order"], left["merchant"], plain(left["at"]), *_of(right))
        for left, right in join_rows(rule, orders, payments)
    )


def _of(right: Row | None) -> tuple[Any, Any]:
    return (None, None) if right is None else (right["payment"], plain(right["at"]))


def plain(moment: datetime) -> datetime:
    """As Spark gives it back: without a zone."""
    return moment.replace(tzinfo=None)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """Spark gives timestamps in the zone of the Python process."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def both(spark: Any, orders: Iterable[Row], payments: Iterable[Row]) -> dict[str, Any]:
    return {"left": table(spark, ORDERS, orders), "right": table(spark, PAYMENTS, payments)}


@pytest.mark.parametrize(
    ("kind", "on"),
    [("left", ("order",)), ("inner", ("merchant",)), ("left", ("merchant", "order"))],
)
def test_in_batch_it_equals_the_oracle(spark: Any, kind: str, on: tuple[str, ...]) -> None:
    orders, payments = shop()
    keys = {name: name for name in on}
    job = settings(kind=kind, on=keys, before="2s", select=TOLD)
    found = join.build(job, both(spark, orders, payments)).collect()
    assert bag(found) == expected(
        JoinRule(keys, before_s=2, after_s=10, kind=kind), orders, payments
    )


@pytest.mark.parametrize(
    ("kind", "salt", "hot"),
    [
        ("left", {}, ("shop-0", "shop-3")),
        ("inner", {"keys": ["shop-1"]}, ()),
        ("left", {"keys": "all"}, ()),
    ],
)
def test_salting_changes_no_result(spark, kind, salt, hot):
    orders, payments = shop()
    on = {"merchant": "merchant"}
    job = settings(kind=kind, on=on, select=TOLD, salt={"buckets": 4, **salt})
    found = join.build(job, both(spark, orders, payments), hot).collect()
    assert bag(found) == expected(JoinRule(on, after_s=10, kind=kind), orders, payments)


def test_several_columns_make_one_hot_key(spark: Any) -> None:
    orders, payments = [order("a", 0)] * 40, [payment("a", 1)]
    job = settings(on={"merchant": "merchant", "order": "order"}, salt={}, select=TOLD)
    tables = both(spark.newSession(), orders, payments)
    assert parts(job, tables, ('["m","a"]',)) > 1
    assert parts(job, tables, ('["m","b"]',)) == 1


def parts(job: Join, tables: Mapping[str, Any], hot: tuple[str, ...]) -> int:
    """Over how many tasks the result is spread."""
    from pyspark.sql import functions as F

    tables["left"].sparkSession.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    tables["left"].sparkSession.conf.set("spark.sql.shuffle.partitions", "8")
    pairs = join.build(job, tables, hot)
    return int(pairs.select(F.spark_partition_id()).distinct().count())


def test_only_hot_keys_are_spread(spark: Any) -> None:
    orders, payments = [order("a", 0)] * 40, [payment("a", 1)]
    tables = both(spark.newSession(), orders, payments)
    job = settings(salt={"keys": "auto"})
    assert parts(job, tables, ("a",)) > 1
    assert parts(job, tables, ("b",)) == 1
    assert parts(settings(salt={"keys": "all"}), tables, ()) > 1
    assert parts(settings(salt={"keys": ["a"]}), tables, ("b",)) > 1


def test_bounds_are_inclusive_and_select_is_sql_of_both_sides(spark: Any) -> None:
    orders = [order("a", 0), order("b", 0)]
    payments = [payment("a", seconds) for seconds in (-2.001, -2, 10, 10.001)]
    select = {"name": "upper(left.order)", "paid": "right.at", "late": "right.at > left.at"}
    job = settings(kind="left", before="2s", select=select)
    found = join.build(job, both(spark, orders, payments)).collect()
    assert bag(found) == bag(
        [("A", plain(at(-2)), False), ("A", plain(at(10)), True), ("B", None, None)]
    )


def test_without_select_there_are_all_of_left_and_what_left_lacks(spark: Any) -> None:
    found = join.build(settings(), both(spark, [order("a", 0)], [payment("a", 1)]))
    assert found.columns == ["order", "merchant", "amount", "at", "payment"]


# As streams


class Stream:
    """The job over files: one file more of each side, one batch more."""

    def __init__(self, spark: Any, job: Join, directory: Path) -> None:
        self._spark, self._directory = spark.newSession(), directory
        self._spark.conf.set("spark.sql.streaming.join.stateFormatVersion", "3")
        self._numbers, self._name = itertools.count(), f"joined_{uuid.uuid4().hex}"
        tables = {side: self._table(side) for side in ("left", "right")}
        writer = join.build(job, tables).writeStream.format("memory").queryName(self._name)
        self._query = writer.outputMode(join.get_output_mode(job)).start()

    def _table(self, side: str) -> Any:
        (self._directory / side).mkdir()
        columns = ORDERS if side == "left" else PAYMENTS
        schema = ", ".join([*(f"{name} {kind}" for name, kind in columns.items()), OF_RECORDS])
        files = self._spark.readStream.schema(schema).json(str(self._directory / side))
        return files.withWatermark("at", "10 minutes")

    def batch(self, orders: Iterable[Row] = (), payments: Iterable[Row] = ()) -> list[Any]:
        """All that was told so far, when these and what they set off are done."""
        for side, rows in (("left", orders), ("right", payments)):
            lines = [json.dumps(row, default=datetime.isoformat) for row in numbered(side, rows)]
            name = f"{next(self._numbers):05}.json"
            (self._directory / name).write_text("\n".join(lines))
            (self._directory / name).rename(self._directory / side / name)
        self._query.processAllAvailable()
        return list(self._spark.table(self._name).collect())

    @property
    def dropped(self) -> int:
        progress = self._query.recentProgress  # a query that idles tells of no operator
        operators = [each for part in progress for each in part["stateOperators"]]
        return sum(each["numRowsDroppedByWatermark"] for each in operators)


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_heartbeats_without_a_key_complete_it_to_the_last_order(spark, tmp_path, kind):
    """Spark pushes filters below the watermark, those of a job as well as `key IS NOT NULL` that
    it makes itself for an inner join: heartbeats they take away move no watermark, and the last
    orders wait for ever (4,977 of 500,000)."""
    orders, payments = shop()
    job = settings(kind=kind, on={"order": "order"}, select=TOLD)
    stream = Stream(spark, job, tmp_path)
    half = len(orders) // 2
    stream.batch(orders[:half], payments[:half])
    stream.batch(orders[half:], payments[half:])
    found = stream.batch([order(None, 3600)], [payment(None, 3600)])
    assert bag(found) == expected(
        JoinRule({"order": "order"}, after_s=10, kind=kind), orders, payments
    )
    watermarked = stream.batch([order("x", 0)], [payment("x", 0)])
    assert (len(watermarked), stream.dropped) == (len(found), 2)


def test_what_is_late_is_what_spark_drops(spark: Any, tmp_path: Path) -> None:
    orders = [order(f"{n}", n / 1000) for n in (-1, 0, 1)] + [order(None, -9)]
    payments = [payment(f"{n}", n / 1000) for n in (-2, -1, 0, 1)]
    job = settings()
    stream = Stream(spark, job, tmp_path)
    historic = [order(f"{n}", n / 1000 - NOON.timestamp()) for n in (-1, 0, 1)]
    stream.batch([order("a", 600), *historic], [payment("a", 601)])
    assert stream.dropped == 2, "the first watermark is 1970"
    stream.batch(orders, payments)
    tables = both(spark, orders, payments)
    late = {side: join.select_late(job, tables[side], NOON, side) for side in ("left", "right")}
    assert [row.order for row in late["left"].collect()] == ["-1", "0"]
    early = join.select_late(job, both(spark, historic, payments)["left"], EPOCH, "left")
    assert [row.order for row in early.collect()] == ["-1", "0"]
    assert stream.dropped == 2 + late["left"].count() + late["right"].count()


# Without Spark

COLUMNS = {"left": ORDERS, "right": PAYMENTS}


def test_a_job_that_fits_its_inputs_has_no_problems() -> None:
    assert list(join.check_job(settings(select=TOLD, on={"_key": "_key"}), COLUMNS)) == []


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {"on": {"ordr": "order"}},
            "on: left: there is no column 'ordr'; did you mean 'order'?",
        ),
        (
            {"on": {"order": "ordr"}},
            "on: right: there is no column 'ordr'; did you mean 'order'?",
        ),
        (
            {"on": {"amount": "order"}},
            "on: 'amount' is double, 'order' string; give both the same type",
        ),
        (
            {"to": {"topic": "out", "key": ["ordr"]}},
            "to.key: there is no column 'ordr'; did you mean 'order'?",
        ),
    ],
)
def test_what_cannot_be_right_is_told(more: dict[str, Any], problem: str) -> None:
    assert list(join.check_job(settings(**more), COLUMNS)) == [problem]


def test_inputs_that_are_unknown_are_not_checked() -> None:
    assert list(join.check_job(settings(on={"x": "y"}), {"left": {}})) == []


def test_the_output_is_keyed_by_what_is_joined_where_it_is_told() -> None:
    assert get_key_columns(settings(on={"order": "order"})) == ("order",)
    assert get_key_columns(settings(select={"order": "left.order"})) == ("order",)
    assert get_key_columns(settings(select={"x": "left.order"})) == ()


def test_real_time_mode_is_refused_with_the_reason() -> None:
    assert "keeps state" in (join.check_realtime(settings()) or "")


@pytest.mark.parametrize(("keys", "names"), [("auto", ("a", "b")), ("all", ()), (["c"], ("c",))])
def test_the_keys_that_are_spread_are_the_listed_ones_or_those_found(keys, names):
    assert join.select_hot_keys(settings(salt={"keys": keys}).salt, ["b", "a"]) == names
    assert join.select_hot_keys(None, ["a"]) == ()
