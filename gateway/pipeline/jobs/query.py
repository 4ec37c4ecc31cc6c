"""`query`: a SELECT over topics as tables.

What streams can be asked: see Spark's guide ("Unsupported Operations"). Windows are
`window(time, '1 minute')` and `session_window(time, '30 minutes')` in GROUP BY; two streams join
on equal columns and a bound on their times.

A WHERE takes nothing from the watermark: each table is handed over behind `observe`, which Spark
pushes no filter through (through a filter, even one of `rand()`, it does). Otherwise windows would
end only by rows that pass, and the last ones never. So the progress also counts what each table has
given, as `read_<table>`.

Rows that a window or a join in the SQL takes no more are counted by Spark, but not told: which they
are depends on the plan, so `late: topic` is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from gateway.config.sections.pipelines import Query
from gateway.config.source.expression import suggest

from . import sql
from .sql import SqlToken, check_columns, tokenize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_views_lock = Lock()  # views belong to the session, which has other jobs


def build(settings: Query, tables: Mapping[str, DataFrame]) -> DataFrame:
    """The query's columns. The tables have their names only while it is analysed, so jobs of one
    session may call different topics the same."""
    spark = next(iter(tables.values())).sparkSession
    with _views_lock:
        for name, table in tables.items():
            held = table.isStreaming and settings.trigger != "realtime"
            view = _observe_rows(name, table) if held else table
            view.createOrReplaceTempView(f"`{name}`")
        try:
            return spark.sql(settings.sql)
        finally:
            for name in tables:
                spark.catalog.dropTempView(name)


def get_output_mode(settings: Query) -> Literal["append", "update"]:
    """Real-time mode knows update only, which of a query without state is the same."""
    if settings.emit == "updates" or settings.trigger == "realtime":
        return "update"
    return "append"


def check_realtime(settings: Query) -> str | None:
    """Of Spark 4.2.0 only what needs no state, shuffle or Python runs in real time: columns, WHERE,
    explode, UNION ALL."""
    found = tokenize(settings.sql)
    for word, after in zip(found, [*found[1:], SqlToken("sign", "")], strict=True):
        if word.kind == "name" and word.folded_text in _STATEFUL_KEYWORDS:
            return f"{word.text.upper()} keeps state; write a trigger such as 0s"
        if word.kind == "name" and after.text == "(" and word.folded_text in _AGGREGATE_FUNCTIONS:
            return f"{word.text}() keeps state; write a trigger such as 0s"
        if word.folded_text == "union" and after.folded_text != "all":
            return "UNION removes what is there twice, which keeps state; write UNION ALL"
    return None


def keeps_state(rows: DataFrame) -> bool:
    """Return whether Spark keeps state for a query, by its analysed plan.

    What is not known to need none is taken to need some: then its SQL may not change under a
    checkpoint.
    """
    return _plan_keeps_state(rows._jdf.queryExecution().analyzed())


def _plan_keeps_state(plan: Any) -> bool:
    if not plan.isStreaming():
        return False
    name, children = plan.getClass().getSimpleName(), plan.children()
    below = [children.apply(at) for at in range(children.size())]
    if name == "Join":  # with a table that is no stream it keeps nothing
        keeps = sum(each.isStreaming() for each in below) > 1
    else:
        keeps = name not in _STATELESS_NODES
    return keeps or any(_plan_keeps_state(each) for each in below)


def check_job(settings: Query, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What can be seen without Spark's parser: no SELECT, unknown tables and columns of tables, and
    tables that nothing reads. columns: of each table."""
    found = tokenize(settings.sql)
    first = next((word.folded_text for word in found if word.text != "("), "")
    if first not in ("select", "with", "from"):
        yield f"sql begins with {first.upper() or 'nothing'}; write a SELECT, WITH or FROM"
        return
    if any(word.text == ";" for word in found[:-1]):
        yield "sql has several statements; keep one SELECT, and add a job for each other"
        return
    yield from _check_tables(settings, list(sql.iter_tables(found)))
    for name, input in settings.tables.items():
        if "late" in input.model_fields_set and input.late == "topic":
            what = "which rows of a query come late depends on its SQL, so they are counted only"
            yield f"tables.{name}.late: {what}; remove it, or make it a job of type aggregate"
    yield from _check_columns(settings, found, columns)


_STATELESS_NODES = frozenset(
    re.findall(
        r"\w+",
        """CTERelationDef CTERelationRef CollectMetrics EventTimeWatermark Filter Generate
    LateralJoin MapInArrow Project Repartition RepartitionByExpression ResolvedHint Sample
    StreamingRelation StreamingRelationV2 SubqueryAlias Union View WithCTE""",
    )
)
"""Nodes of Spark's analysed plans, which of a stream keep nothing from batch to batch."""
_STATEFUL_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """group having join distinct order sort cluster distribute limit offset intersect except
        minus over pivot""",
    )
)
_AGGREGATE_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        """any_value approx_count_distinct approx_percentile approx_top_k array_agg avg bit_and
    bit_or bit_xor bool_and bool_or collect_list collect_set corr count count_if covar_pop
    covar_samp every first first_value histogram_numeric kurtosis last last_value listagg
    max max_by mean median min min_by mode percentile percentile_approx percentile_cont
    percentile_disc session_window skewness some std stddev string_agg sum try_avg try_sum
    var_pop var_samp variance window""",
    )
)


def _observe_rows(name: str, table: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return table.observe(f"read_{name}", F.count(F.lit(1)).alias("rows"))


def _check_tables(settings: Query, table_names: Sequence[str]) -> Iterator[str]:
    known = {name.lower() for name in settings.tables}
    for name in dict.fromkeys(table_names):
        if name.lower() not in known:
            yield f"sql: there is no table '{name}'; {suggest(name, settings.tables)}"
    unread = known - {name.lower() for name in table_names}
    for name in settings.tables:
        if name.lower() in unread and all(each.lower() in known for each in table_names):
            yield f"tables.{name}: the query does not read it; remove it, or name it in FROM"


def _check_columns(
    settings: Query, tokens: Sequence[SqlToken], columns: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """`table.column`, where the table goes by its own name; aliases are Spark's to resolve."""
    known = {name.lower(): columns.get(name, {}) for name in settings.tables}
    aliases = {
        after.folded_text
        for word, after in pairwise(tokens)
        if word.folded_text == "as" or (word.is_name and word.folded_text in known)
    }
    own = {name: of for name, of in known.items() if name not in aliases}
    for table, dot, column in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if dot.text == "." and table.is_name and column.is_name and table.folded_text in own:
            yield from check_columns("sql", [column.text], own[table.folded_text])
