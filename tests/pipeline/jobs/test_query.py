from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config.sections.pipelines import Query
from gateway.pipeline.jobs import query

ORDERS = [(at, f"user {at % 3}", at * 10) for at in range(1, 61)]
PAYMENTS = [(at + 5, f"user {at % 3}", at * 10) for at in range(1, 61, 2)]

JOIN = """
    SELECT o.user, o.amount FROM orders o JOIN payments p
    ON o.user = p.user AND o.amount = p.amount
    AND p.time BETWEEN o.time AND o.time + INTERVAL 10 SECONDS"""


def settings(sql: str, *tables: str, **given: Any) -> Query:
    names = tables or ("orders",)
    return Query.model_validate(
        {
            "name": "asked",
            "type": "query",
            "tables": {name: {"topic": name, "time": "time"} for name in names},
            "sql": sql,
            "to": {"topic": "answers"},
        }
        | given
    )


def table(spark: Any, rows: Any) -> Any:
    from pyspark.sql import functions as F

    made = spark.createDataFrame(rows, "s long, user string, amount long")
    return made.select(F.timestamp_seconds("s").alias("time"), "user", "amount")


def stream(spark: Any, rows: Any, directory: Path) -> Any:
    made = table(spark, rows)
    made.coalesce(1).write.parquet(str(directory))
    found = spark.readStream.schema(made.schema).parquet(str(directory))
    return found.withWatermark("time", "1 second")


def told(job: Query, tables: Any, directory: Path) -> list[tuple[Any, ...]]:
    """All rows of a stream that ends."""
    rows: list[tuple[Any, ...]] = []

    def keep(batch: Any, _: int) -> None:
        rows.extend(map(tuple, batch.collect()))

    writer = (
        query.build(job, tables)
        .writeStream.outputMode(query.get_output_mode(job))
        .foreachBatch(keep)
    )
    writer = writer.option("checkpointLocation", str(directory)).trigger(availableNow=True)
    writer.start().awaitTermination()
    return sorted(rows)


def test_a_query_is_asked_over_tables_by_their_names(spark: Any) -> None:
    job = settings("SELECT user, sum(amount) AS total FROM orders WHERE amount > 100 GROUP BY user")
    rows = query.build(job, {"orders": table(spark, ORDERS)}).collect()
    expected: dict[str, int] = {}
    for _, user, amount in ORDERS:
        if amount > 100:
            expected[user] = expected.get(user, 0) + amount
    assert {row["user"]: row["total"] for row in rows} == expected


def test_two_jobs_of_a_session_may_call_different_topics_the_same(spark: Any) -> None:
    job = settings("SELECT count(*) AS n FROM orders")
    few = query.build(job, {"orders": table(spark, ORDERS[:2])})
    many = query.build(job, {"orders": table(spark, ORDERS)})
    assert [each.collect()[0]["n"] for each in (few, many)] == [2, 60]
    assert not spark.catalog.tableExists("orders")


def test_streams_join_within_a_bound(spark: Any, tmp_path: Path) -> None:
    tables = {
        "orders": stream(spark, ORDERS, tmp_path / "orders"),
        "payments": stream(spark, PAYMENTS, tmp_path / "payments"),
    }
    found = told(settings(JOIN, "orders", "payments"), tables, tmp_path / "checkpoint")
    assert found == sorted((user, amount) for _, user, amount in PAYMENTS)


def test_a_table_may_have_any_name_beside_another(spark: Any) -> None:
    """`read_orders` was also the name of a count of the rows of `orders`: the job ended."""
    from pyspark.sql import functions as F

    empty = spark.readStream.format("rate").load()
    tables = {
        name: empty.observe(name, F.count(F.lit(1)).alias("rows"))
        for name in ("orders", "read_orders")
    }
    union = "SELECT value FROM orders UNION ALL SELECT value FROM read_orders"
    assert query.build(settings(union, *tables), tables).columns == ["value"]


def test_windows_end_also_by_rows_that_where_takes_out(spark: Any, tmp_path: Path) -> None:
    """Spark pushes a filter below the watermark: the second window then never ended, as no row
    that passes comes after it."""
    job = settings(
        "SELECT count(*) AS n FROM orders WHERE amount < 120 GROUP BY window(time, '10 seconds')"
    )
    tables = {"orders": stream(spark, ORDERS, tmp_path / "orders")}
    assert told(job, tables, tmp_path / "checkpoint") == [(2,), (9,)]


def test_rows_are_told_once_unless_updates_are_asked_for() -> None:
    assert query.get_output_mode(settings("SELECT 1 FROM orders")) == "append"
    assert query.get_output_mode(settings("SELECT 1 FROM orders", emit="updates")) == "update"
    assert query.get_output_mode(settings("SELECT 1 FROM orders", trigger="realtime")) == "update"


def test_a_statement_that_spark_would_run_is_refused() -> None:
    (found,) = query.check_job(settings("-- all\nDELETE FROM orders"), {})
    assert found == "sql begins with DELETE; write a SELECT, WITH or FROM"


def test_tables_that_differ_in_case_only_are_refused() -> None:
    """Both names were of the topic that came last."""
    tables = {"orders": {"topic": "orders"}, "Orders": {"topic": "others"}}
    problems = query.check_job(settings("SELECT 1 FROM orders, Orders", tables=tables), {})
    assert next(iter(problems)).startswith("tables: 'orders' and 'Orders' differ in case only")


def test_late_rows_of_a_query_are_not_promised() -> None:
    """`late: topic` of a query with windows was taken, and nothing was ever sent."""
    tables = {"orders": {"topic": "orders", "late": "topic"}}
    (found,) = query.check_job(settings("SELECT 1 FROM orders", tables=tables), {})
    assert found.startswith("tables.orders.late: which rows of a query are late")
    skipped = {"orders": {"topic": "orders", "late": "skip"}}
    assert not list(query.check_job(settings("SELECT 1 FROM orders", tables=skipped), {}))


@pytest.mark.parametrize(
    "sql",
    ["WITH big AS (SELECT 1) SELECT * FROM orders", "(SELECT 1 FROM orders)", "FROM orders;"],
)
def test_what_only_spark_can_judge_is_left_to_it(sql: str) -> None:
    assert not list(query.check_job(settings(sql), {}))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT user FROM orders WHERE amount > 1", False),
        ("SELECT user FROM orders UNION ALL SELECT user FROM payments", False),
        ("WITH a AS (SELECT amount FROM orders) SELECT explode(array(amount)) FROM a", False),
        ("SELECT user FROM orders JOIN (VALUES (1)) v(k) ON amount = k", False),
        ("SELECT user, (SELECT max(k) FROM VALUES (1) v(k)) FROM orders", False),
        ("SELECT try_sum(amount) AS total FROM orders", True),
        ("SELECT corr(amount, amount) AS c FROM orders", True),
        ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) FROM orders", True),
        ("SELECT hll_sketch_agg(amount) FROM orders", True),
        ("SELECT DISTINCT user FROM orders", True),
        ("SELECT user FROM orders UNION SELECT user FROM payments", True),
        (JOIN, True),
    ],
)
def test_what_keeps_state_is_asked_of_sparks_plan(spark: Any, sql: str, expected: bool) -> None:
    """It was told by a list of functions that lacked some: another query took over their state."""
    empty = spark.readStream.format("rate").load()
    columns = ("timestamp AS time", "'a' AS user", "value AS amount")
    tables = {name: empty.selectExpr(*columns) for name in ("orders", "payments")}
    rows = query.build(settings(sql, *tables), tables)
    assert query.keeps_state(rows) is expected
