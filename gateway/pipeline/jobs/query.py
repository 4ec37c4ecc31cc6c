"""Jobs of type `query`: a SELECT with topics as tables.

Spark's guide lists what it does not support for streams ("Unsupported Operations"). Windows are
`window(time, '1 minute')` and `session_window(time, '30 minutes')` in GROUP BY; two streams join on
equal columns and a bound on their times.

A WHERE must not be pushed below the watermark, because only rows that pass it would then end
windows, and the last windows would never end. So each table is wrapped by `observe_rows`.

Spark counts the rows that are too late for a window or a join in the SQL. They are not written to a
topic, because the plan decides which rows they are; so `late: topic` is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from gateway.config.sections.pipelines import Query
from gateway.pipeline.inputs.source import observe_rows
from gateway.pipeline.inputs.types import check_case
from gateway.pipeline.spark.internals import get_analyzed_plan, iterate

from .sql import strip_opaque

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_views_lock = Lock()  # jobs may share a session, and views belong to the session


def build(settings: Query, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of the query.

    The tables have their names only while the query is analysed, so the jobs of a session may use
    one name for different topics.
    """
    spark = next(iter(tables.values())).sparkSession
    with _views_lock:
        for name, table in tables.items():
            is_observed = table.isStreaming and settings.trigger != "realtime"
            view = observe_rows(name, table) if is_observed else table
            view.createOrReplaceTempView(f"`{name}`")
        try:
            return spark.sql(settings.sql)
        finally:
            for name in tables:
                spark.catalog.dropTempView(name)


def get_output_mode(settings: Query) -> Literal["append", "update"]:
    # Real-time mode has update mode only. For queries without state both modes are the same.
    if settings.emit == "updates" or settings.trigger == "realtime":
        return "update"
    return "append"


def check_realtime(settings: Query) -> str | None:
    """Return None: Spark's plan says whether a query keeps state, when it starts."""
    return None


def keeps_state(rows: DataFrame) -> bool:
    """Return whether Spark keeps state for a query, by the analysed plan of `build`'s result.

    A node of the plan that is not known to need no state counts as one with state. Then the SQL is
    part of the checkpoint's definition and may not change.
    """
    return _plan_keeps_state(get_analyzed_plan(rows))


def _plan_keeps_state(plan: Any) -> bool:
    if not plan.isStreaming():
        return False
    name, children = plan.getClass().getSimpleName(), list(iterate(plan.children()))
    if name == "Join":  # a join with a table that is not a stream has no state
        has_state = sum(child.isStreaming() for child in children) > 1
    else:
        has_state = name not in _STATELESS_NODES
    return has_state or any(_plan_keeps_state(child) for child in children)


def check_job(settings: Query, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """Yield the problems that Spark would not find, or too late: it runs other statements."""
    word = re.search(r"\w+", strip_opaque(settings.sql))
    first = word[0].upper() if word else "nothing"
    if first not in ("SELECT", "WITH", "FROM"):
        yield f"sql begins with {first}; write a SELECT, WITH or FROM"
    if message := check_case(settings.tables):
        yield f"tables: {message}"
    for name, input in settings.tables.items():
        if "late" in input.model_fields_set and input.late == "topic":
            problem = "which rows of a query are late depends on its SQL, so they are only counted"
            yield f"tables.{name}.late: {problem}; remove it, or use a job of type aggregate"


_STATELESS_NODES = frozenset(
    re.findall(
        r"\w+",
        """CTERelationDef CTERelationRef CollectMetrics EventTimeWatermark Filter Generate
    LateralJoin MapInArrow Project Repartition RepartitionByExpression ResolvedHint Sample
    StreamingRelation StreamingRelationV2 SubqueryAlias Union View WithCTE""",
    )
)
"""The nodes of Spark's analysed plans that keep no state between batches of a stream."""
