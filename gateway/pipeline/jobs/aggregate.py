"""Jobs of type `aggregate`: measures of each window, its most frequent values, or their number.

Tumbling and sliding windows are Spark's, aligned to 1970-01-01 UTC: [start, end). The state of a
window is one row for each `by` and, with `top` and an exact `distinct`, one for each value. It is
dropped when the watermark passes the end of the window.

    top       two aggregations in a row: the count of each (window, by, value), then the k most
              frequent values of each (window, by) with min_by(.., k), which keeps at most k
    distinct  dropDuplicates of (window, by, value), then a count; or one HyperLogLog++ buffer

`top` and `distinct` ignore nulls. They use expressions for that, because Spark would push a filter
below the watermark, and rows that are filtered there no longer end windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from gateway.config.sections.pipelines import Aggregate, Distinct, Top
from gateway.pipeline.inputs.types import check_case
from gateway.pipeline.spark import F

from .sql import check_columns, format_interval

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

WINDOW_COLUMNS = ("start", "end")


def build(settings: Aggregate, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return `start`, `end`, the columns of `by`, and the measures, `top` or `distinct`."""
    time, size, slide = settings.from_.time, *_format_window(settings)
    windowed = tables["from"].withColumn("__window", F.window(time, size, slide))
    if settings.top:
        rows = _build_top(settings.top, settings.by, windowed)
    elif settings.distinct:
        rows = _build_distinct(settings.distinct, settings.by, windowed)
    else:
        measures = [F.expr(sql).alias(column) for column, sql in settings.measures.items()]
        rows = windowed.groupBy("__window", *settings.by).agg(*measures)
    bounds = (F.col(f"__window.{each}").alias(each) for each in WINDOW_COLUMNS)
    return rows.select(*bounds, *(column for column in rows.columns if column != "__window"))


def get_output_mode(settings: Aggregate) -> Literal["append", "update"]:
    return "append" if settings.emit == "final" else "update"


def check_realtime(settings: Aggregate) -> str | None:
    # Spark 4.2.0 raises STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST for
    # HashAggregateExec, ShuffleExchangeExec and StateStoreSaveExec.
    return "an aggregate keeps state; write a trigger such as 0s"


def select_late(settings: Aggregate, events: DataFrame, watermark: datetime) -> DataFrame:
    """Return the rows that are late for all of their windows, not only for some sliding ones."""
    size, slide = _format_window(settings)
    # The last window of a row begins at the multiple of `slide` before the row.
    last_end = F.window(settings.from_.time, slide)["start"] + F.expr(f"INTERVAL {size}")
    return events.where(last_end <= F.lit(watermark))


def check_job(settings: Aggregate, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    known = columns.get("from", {})
    yield from _check_column_names(settings)
    size, slide = settings.window.size, settings.window.slide
    if slide is not None and slide > size:
        problem = f"window.slide ({slide:g}s) is longer than size ({size:g}s)"
        yield f"{problem}; events between two windows would be lost"
    # Spark 4.2.0 refuses two aggregations in a row in update mode (`top`). An aggregation after
    # dropDuplicates (`distinct`) is allowed.
    if settings.top and settings.emit == "updates":
        yield "top is written when a window has ended; write emit: final, or count by that column"
    yield from check_columns("by", settings.by, known)
    for option in ("top", "distinct"):
        if value := getattr(settings, option):
            yield from check_columns(f"{option}.of", (value.of,), known)


def _build_top(top: Top, by: tuple[str, ...], windowed: DataFrame) -> DataFrame:
    keyed = windowed.select("__window", *by, F.col(top.of).alias("__value"))
    counted = keyed.groupBy("__window", *by, "__value").agg(F.count("__value").alias("__count"))
    # min_by ignores rows whose order is null. Of equally frequent values the lesser comes first.
    order = "if(__value IS NULL, NULL, struct(-__count, __value))"
    top_values = f"min_by(struct(__value AS value, __count AS count), {order}, {top.k})"
    return counted.groupBy("__window", *by).agg(
        F.expr(f"coalesce({top_values}, array())").alias("top")
    )


def _build_distinct(distinct: Distinct, by: tuple[str, ...], windowed: DataFrame) -> DataFrame:
    if distinct.method == "approximate":
        count = F.approx_count_distinct(distinct.of, distinct.error)
        return windowed.groupBy("__window", *by).agg(count.alias("distinct"))
    keyed = windowed.select("__window", *by, F.col(distinct.of).alias("__value"))
    # With the window among its keys, Spark drops the state of dropDuplicates by the watermark.
    deduplicated = keyed.dropDuplicates(["__window", *by, "__value"])
    return deduplicated.groupBy("__window", *by).agg(F.count("__value").alias("distinct"))


def _format_window(settings: Aggregate) -> tuple[str, str]:
    size = settings.window.size
    slide = settings.window.slide or size
    return format_interval(size), format_interval(slide)


def _check_column_names(settings: Aggregate) -> Iterator[str]:
    options = (option for option in ("top", "distinct") if getattr(settings, option))
    result_columns = (*WINDOW_COLUMNS, *settings.measures, *options)
    for column in settings.by:
        if column in result_columns:
            yield f"by: '{column}' is already a column of the result; rename it in fields"
    for column in settings.measures:
        if column in WINDOW_COLUMNS:
            yield f"measures.{column}: is already a column of the result; rename it"
    if message := check_case([*settings.by, *result_columns]):
        yield f"measures: {message}"
    yield from check_columns("to.key", settings.to.key, (*settings.by, *result_columns))
