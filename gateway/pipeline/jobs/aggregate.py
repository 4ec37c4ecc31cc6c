"""`aggregate`: numbers of each window, or the most frequent values in it, or how many there are.

Tumbling and sliding windows are Spark's own, aligned to 1970-01-01 UTC: [start, end). What a
window keeps is bounded: one row for each `by` and, for `top` and an exact `distinct`, for each
value, until the watermark passes its end.

    top       two aggregations, one behind the other: the count of each (window, by, value), then
              the k most frequent of each (window, by) by min_by(.., k), which holds no more than k
    distinct  dropDuplicates of (window, by, value), then a count; or HyperLogLog++ of one buffer

Nulls are no values: `top` and `distinct` leave them out, by expressions and not by a filter, which
Spark would push below the watermark: rows filtered there no longer end windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from gateway.config.sections.pipelines import Aggregate, Distinct, Top

from .sql import check_columns, iter_columns

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

WINDOW_COLUMNS = ("start", "end")


def build(settings: Aggregate, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Columns: start, end, those of `by`, and the measures, or `top`, or `distinct`."""
    from pyspark.sql import functions as F

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
    """Of Spark 4.2.0: STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST
    (HashAggregateExec, ShuffleExchangeExec, StateStoreSaveExec)."""
    return "an aggregate keeps state; write a trigger such as 0s"


def select_late(settings: Aggregate, events: DataFrame, watermark: datetime) -> DataFrame:
    """The rows that no open window takes any more: of every window that holds them, the watermark
    has passed the end. A row that is late for some of its sliding windows only is not among them.
    """
    from pyspark.sql import functions as F

    size, slide = _format_window(settings)
    newest = F.window(settings.from_.time, slide)["start"] + F.expr(f"INTERVAL {size}")
    return events.where(newest <= F.lit(watermark))


def check_job(settings: Aggregate, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What Spark would refuse, or worse, do. columns: of "from", by their names."""
    known = columns.get("from", {})
    yield from _check_column_names(settings)
    yield from _check_window(settings)
    yield from _check_updates(settings)
    yield from check_columns("by", settings.by, known)
    yield from check_columns("from.time", (settings.from_.time,), known)
    for part in ("top", "distinct"):
        if chosen := getattr(settings, part):
            yield from check_columns(f"{part}.of", (chosen.of,), known)
    for column, sql in settings.measures.items():
        yield from check_columns(f"measures.{column}", iter_columns(sql), known)


def _build_top(top: Top, by: tuple[str, ...], windowed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    keyed = windowed.select("__window", *by, F.col(top.of).alias("__value"))
    counted = keyed.groupBy("__window", *by, "__value").agg(F.count("__value").alias("__count"))
    # min_by leaves out rows whose order is null; ties: the lesser value first
    order = "if(__value IS NULL, NULL, struct(-__count, __value))"
    best = f"min_by(struct(__value AS value, __count AS count), {order}, {top.k})"
    return counted.groupBy("__window", *by).agg(F.expr(f"coalesce({best}, array())").alias("top"))


def _build_distinct(distinct: Distinct, by: tuple[str, ...], windowed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    if distinct.method == "approximate":
        count = F.approx_count_distinct(distinct.of, distinct.error)
        return windowed.groupBy("__window", *by).agg(count.alias("distinct"))
    keyed = windowed.select("__window", *by, F.col(distinct.of).alias("__value"))
    # the window among the keys bounds the state, as of any group by window
    different = keyed.dropDuplicates(["__window", *by, "__value"])
    return different.groupBy("__window", *by).agg(F.count("__value").alias("distinct"))


def _format_window(settings: Aggregate) -> tuple[str, str]:
    size = settings.window.size
    slide = settings.window.slide or size
    return _format_interval(size), _format_interval(slide)


def _format_interval(seconds: float) -> str:
    return f"{round(1e6 * seconds)} microseconds"


def _check_column_names(settings: Aggregate) -> Iterator[str]:
    given = [*settings.measures, *(part for part in ("top", "distinct") if getattr(settings, part))]
    for column in settings.by:
        if column in (*WINDOW_COLUMNS, *given):
            yield f"by: '{column}' is a column of the result already; rename it in fields"
    for column in settings.measures:
        if column in WINDOW_COLUMNS:
            yield f"measures.{column}: it is a column of the result already; rename it"


def _check_window(settings: Aggregate) -> Iterator[str]:
    size, slide = settings.window.size, settings.window.slide
    if slide is not None and slide > size:
        yield f"window.slide ({slide:g}s) is longer than size ({size:g}s); what is between is lost"


def _check_updates(settings: Aggregate) -> Iterator[str]:
    """Output modes of stateful operators in a row: Spark 4.2.0 refuses an aggregation behind an
    aggregation in update mode; behind dropDuplicates it is allowed."""
    if settings.top and settings.emit == "updates":
        yield "top is told once a window has ended; write emit: final, or count by that column"
