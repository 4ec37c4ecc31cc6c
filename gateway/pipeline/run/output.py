"""Encode rows as records: a key, and a value that is the JSON of all columns.

Times are ISO 8601 with milliseconds and Z, and columns without a value are nulls. The columns of
the record that a row comes from, such as `_offset`, are not part of the value.

With exactly-once, the key of a row chooses its writer, and a writer that has committed a batch
skips it when it is repeated. If a row then has another key, it is lost with a writer that has
committed, or another one writes it twice. (Measured with a key of `uuid()`, one kill between the
commits of two writers: of 20,000 rows, 4,933 were lost and 5,005 came twice.) So the key must be
computed from the records alone, and not depend on their order. One writer has no such condition.
Nor may it be made by other settings than before: the ledger has their digests
(`compute_key_digests`), and `exactly_once.writer_plan` refuses others until the batch is finished.

`verify_key` evaluates Spark's analysed plan, before the query starts.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Job, Output
from gateway.config.sections.security import SchemaRegistry
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.job_checkpoint import describe_rows
from gateway.pipeline.inputs import schemas
from gateway.pipeline.inputs.types import check_case, is_record_column
from gateway.pipeline.job_settings import get_inputs, get_key_columns, get_output
from gateway.pipeline.jobs import sessions
from gateway.pipeline.spark import F
from gateway.pipeline.spark.internals import get_analyzed_plan, iterate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_JSON_OPTIONS = {"ignoreNullFields": "false"}


def encode_rows(
    rows: DataFrame,
    output: Output,
    key_columns: Sequence[str],
    catalogs: Mapping[str, SchemaRegistry] | None = None,
) -> DataFrame:
    """Return rows as Spark's Kafka sink takes them: the columns `key` and `value`.

    The key is null without key columns. Values with a schema are encoded by it, as
    `schemas.encode_values` describes.
    """
    if message := check_case(rows.columns):
        raise PipelineError(f"columns {message}")
    names = [name for name, type_text in rows.dtypes if not is_record_column(name, type_text)]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in names)), _JSON_OPTIONS)
    records = rows.select(build_key(rows, key_columns).alias("key"), value.alias("value"))
    return schemas.encode_values(records, output, catalogs or {})


def build_key(rows: DataFrame, key_columns: Sequence[str]) -> Column:
    """Return the key of a record: the text of a single column, or a JSON array of several."""
    if not key_columns:
        return F.lit(None).cast("string")
    if len(key_columns) == 1:
        # Spark finds the column in whatever case it is written.
        (field,) = rows.select(f"`{key_columns[0]}`").schema
        type_name = field.dataType.simpleString()
        # A cast keeps strings that are not UTF-8, and all digits of decimals. Other types, such as
        # timestamps, have the same text in the key as in the value.
        is_cast = type_name in ("string", "binary") or type_name.startswith("decimal")
        column = F.col(f"`{key_columns[0]}`")
        text = column.cast("string") if is_cast else _build_json(key_columns[0])
        return F.when(column.isNotNull(), text if is_cast else F.trim(text, F.lit('"')))
    return F.concat(F.lit("["), F.concat_ws(",", *map(_build_json, key_columns)), F.lit("]"))


def _build_json(name: str) -> Column:
    # to_json does not take plain values, so `{"k":` and `}` are cut off a struct.
    json_object = F.to_json(F.struct(F.col(f"`{name}`").alias("k")), _JSON_OPTIONS)
    return F.substring(json_object, F.lit(6), F.length(json_object) - F.lit(6))


_STABLE_AGGREGATES = frozenset((
    *("BitAndAgg", "BitOrAgg", "BitXorAgg", "BoolAnd", "BoolOr", "Count", "CountIf"),
    *("HyperLogLogPlusPlus", "Max", "Min"),
))  # fmt: skip
"""Aggregates that do not depend on the order of rows, as sums of decimals and whole numbers."""
_ORDERED_AGGREGATES = frozenset(("MaxBy", "MinBy", "MaxMinByK"))
_FLOAT_TYPES = ("double", "float")
# Spark takes these for deterministic. It stores the time of a batch, so that a repeated one has it
# again, for `current_timestamp`, `localtimestamp` and `current_date` only (4.2.0).
_UNSTABLE_EXPRESSIONS = frozenset(("AesEncrypt", "CurrentTime", "Now"))
_STORED_TIMES = re.compile(r"\b(current_(timestamp|date)|localtimestamp)\(")
# Of literals: the parser of Spark makes TIMESTAMP 'now' and DATE 'today' the time of its reading.
_UNITS_PER_DAY = {"date": 1, "timestamp": 86_400_000_000, "timestamp_ntz": 86_400_000_000}
# Spark makes a constant of such a text at each start. Of 'now', 'today' or '12:30' it is another.
_FIXED_TIME = re.compile(r"\s*[+-]?\d{4}|\s*epoch\b")
_COLLATION = re.compile(r" collate (?!UTF8_BINARY\b)")  # of a type: equal texts may differ
# Spark allows no streams in subqueries that give a value, so they read tables, which may change.
_SUBQUERIES = frozenset(("Exists", "ListQuery", "ScalarSubquery"))
# A row without columns, records of Kafka, and sessions that are computed in Python. Rows of VALUES
# and range() are not here: their constants may be of the time when Spark read them.
_STABLE_NODES = frozenset((
    *("OneRowRelation", "StreamingRelationV2"),
    *("FlatMapGroupsInArrow", "TransformWithStateInPySpark"),
))  # fmt: skip
_FILE_RELATIONS = frozenset(("DataSourceV2Relation", "HiveTableRelation", "LogicalRelation"))
_DEDUPLICATES = frozenset(("Deduplicate", "DeduplicateWithinWatermark"))
_ANSI_SETTING = "spark.sql.ansi.enabled"  # an operator may set it, and SQL may mean another key
_REMEDY = "use columns of the input, writers: 1, or guarantee: at-least-once"


def verify_key(job: Job, rows: DataFrame, tables: Mapping[str, DataFrame]) -> None:
    """Raise PipelineError if a column of the key is not stable by Spark's plan.

    The rows are the events if they are joined batch by batch with a table, whose columns need not
    be in the settings.
    """
    to, names = get_output(job), get_key_columns(job)
    is_needed = to is not None and to.guarantee == "exactly-once" and to.writers > 1
    if not (is_needed and names):
        return
    if isinstance(job, config.Sessions):  # the plan may only say that Python computes them
        rows = sessions.build_aggregates(job, tables)
    known = {column.lower() for column in rows.columns}
    for name in names:
        if isinstance(job, config.Enrich) and name.lower() not in known:
            problem = f"'{name}' is of the table, and may change before a batch is repeated"
            raise PipelineError(f"job {job.name}: to.key: {problem}; {_REMEDY}")
    keys = rows.select(*(f"`{name}`" for name in names))
    plan = get_analyzed_plan(keys, inline_ctes=True)
    definitions: dict[int, list[Any]] = {}
    _collect_definitions(plan, definitions, get_inputs(job))
    for name, column in zip(names, iterate(plan.output()), strict=True):
        if function := _find_unstable(column, definitions):
            raise PipelineError(
                f"job {job.name}: to.key: '{name}' is made with {function}, and may be another "
                f"when a batch is repeated, so that rows would be lost or come twice; {_REMEDY}"
            )


def compute_key_digests(job: Job, tables: Mapping[str, DataFrame]) -> dict[str, str]:
    types = {
        name: {field.name: field.dataType.simpleString() for field in table.schema}
        for name, table in tables.items()
    }
    settings = describe_rows(job, get_key_columns(job), types)
    conf = next(iter(tables.values())).sparkSession.conf
    settings[_ANSI_SETTING] = conf.get(_ANSI_SETTING)
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
        for name, value in settings.items()
    }


def _collect_definitions(
    plan: Any, definitions: dict[int, list[Any]], inputs: Container[str]
) -> None:
    """Collect the expressions, by id, of the columns that a plan makes of those of the inputs.

    An input is the node that counts its records, which has its name. A program may count, too.
    A column of a node that is not known here is not among them, so that it counts as unstable.
    """
    node = plan.getClass().getSimpleName()
    if node in _STABLE_NODES or (node == "CollectMetrics" and plan.name() in inputs):
        for column in iterate(plan.output()):
            definitions.setdefault(column.exprId().id(), [])  # a Union has the id of its first part
        return
    children = list(iterate(plan.children()))
    is_deduplicate = node in _DEDUPLICATES
    same_in_duplicates = (
        {key.exprId().id() for key in iterate(plan.keys())} if is_deduplicate else ()
    )
    for subquery in iterate(plan.subqueries()):  # such as the right side of a LATERAL join
        if not _STORED_TIMES.search(subquery.toString()):  # in it, they are of each run
            _collect_definitions(subquery, definitions, inputs)
    for expression in iterate(plan.expressions()):
        if expression.getClass().getSimpleName() == "Alias":
            definitions.setdefault(expression.exprId().id(), []).append(expression.child())
    columns = plan.generatorOutput() if node == "Generate" else plan.output()
    for index, column in enumerate(iterate(columns)):
        if node == "Union":
            parts = [child.output().apply(index) for child in children]
        elif node == "Expand":  # of UNPIVOT, ROLLUP, CUBE and sliding windows
            parts = [row.apply(index) for row in iterate(plan.projections())]
        elif node == "Generate":
            parts = [plan.generator()]
        elif node in _FILE_RELATIONS:
            parts = [plan]
        elif is_deduplicate:  # which of the duplicates stays depends on their order
            parts = [] if column.exprId().id() in same_in_duplicates else [plan]
        else:
            break
        definitions.setdefault(column.exprId().id(), []).extend(parts)
    for child in children:
        _collect_definitions(child, definitions, inputs)


def _find_unstable(expression: Any, definitions: dict[int, list[Any]]) -> str | None:
    """Return the function or the table by which an expression is not stable; None if it is."""
    kind = expression.getClass().getSimpleName()
    if kind in _FILE_RELATIONS:
        return "a table of files"
    if kind in _DEDUPLICATES:
        return "the first of duplicates"
    if kind in _SUBQUERIES:
        return "a subquery"
    if kind == "Literal" and (unit := _UNITS_PER_DAY.get(expression.dataType().typeName())):
        value = expression.value()
        if value is not None and abs(value / unit - time.time() / 86_400) < 3:
            return f"{expression.sql()}, which may stand for 'now' or 'today'"
    data_type = expression.dataType()
    if _COLLATION.search(data_type.simpleString()):  # of equal texts, a group has the first
        return "a text with a collation"
    if kind == "Cast" and data_type.typeName() in _UNITS_PER_DAY:
        text = expression.child()
        is_text = text.foldable() and text.dataType().typeName().startswith("string")
        is_literal = text.getClass().getSimpleName() == "Literal"
        if is_text and not (is_literal and _FIXED_TIME.match(str(text.value()))):
            return f"{expression.sql()}, which may stand for 'now' or 'today'"
    parts = list(iterate(expression.children()))
    if "replacement" in dir(expression):  # such as of to_date(), in which Spark makes a cast
        parts.append(expression.replacement())
    if kind == "AttributeReference":
        column = expression.exprId().id()
        if column not in definitions:
            return f"the column '{expression.name()}', whose origin is not known"
        # Each is followed once.
        parts, definitions[column] = definitions[column], []
    if kind == "OuterReference":  # of a subquery to the plan around it
        parts = [expression.e()]
    if found := next(filter(None, (_find_unstable(part, definitions) for part in parts)), None):
        return found
    is_stable = expression.deterministic() and kind not in _UNSTABLE_EXPRESSIONS
    if kind == "AggregateExpression":
        is_stable = _is_stable_aggregate(expression.aggregateFunction())
        expression = expression.aggregateFunction()
    return None if is_stable else f"{expression.prettyName()}()"


def _is_stable_aggregate(function: Any) -> bool:
    kind = function.getClass().getSimpleName()
    if kind in ("Sum", "Average"):  # a sum of floats depends on the order by its rounding
        return function.dataType().typeName() not in _FLOAT_TYPES
    if kind in _ORDERED_AGGREGATES:  # rows of the same rank have no order, except by their place
        order = {column.name() for column in iterate(function.orderingExpr().references().toSeq())}
        return {"_offset", "_partition"} <= order
    return kind in _STABLE_AGGREGATES
