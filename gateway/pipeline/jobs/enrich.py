"""Jobs of type `enrich`: add columns of a table to events, with nulls if the table has no row.

If the table is in Redis, the tasks look up the keys of each batch (`tables.lookup`), and nothing is
loaded before the first batch. A small table is joined as a whole with each batch, as
`tables.broadcast` has it at that time. `run.query` joins it in a function for each batch: a join in
the plan of a streaming query would read the table's files as of its start, and fail when they are
replaced.

A batch that is repeated after a crash may have other results, because the table has changed. So the
key of an output row must consist of columns of the event (see `run.output`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from gateway.config.sections.pipelines import Broadcast, Redis
from gateway.config.types.substitution import suggest
from gateway.errors import PipelineError
from gateway.pipeline.inputs import types
from gateway.pipeline.inputs.types import RECORD_COLUMN_TYPES
from gateway.pipeline.reports import Reports
from gateway.pipeline.spark import F
from gateway.pipeline.tables import broadcast, lookup
from gateway.pipeline.tables.lookup import parse_json_column
from gateway.pipeline.tables.redis import is_url

from .sql import check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.config.sections.pipelines import Enrich

TABLE_INPUT = "table"
"""The name under which `build` gets the table of `create_batch_table`."""
_ROW_COLUMN = "_row"  # the JSON of a row of the table, before it is parsed


def build(settings: Enrich, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the events with the columns of the table, which is `TABLE_INPUT` unless in Redis."""
    events = tables["from"].select(*_list_event_columns(settings, tables["from"].columns))
    if isinstance(settings.table, Redis):
        look_up = lookup.create_lookup_function(
            lookup.LookupConfig.from_settings(settings.table), settings.name, events.sparkSession
        )
        with_rows = events.withColumn(_ROW_COLUMN, look_up(F.col(settings.on).cast("string")))
        return parse_json_column(with_rows, _ROW_COLUMN, settings.table.fields)
    table = tables[TABLE_INPUT]
    # `check_job` cannot see this if the columns come from Parquet files or a schema.
    shared = sorted({*events.columns} & ({*table.columns} - {broadcast.KEY_COLUMN}))
    if shared:
        problem = f"job {settings.name}: events and table both have {', '.join(shared)}"
        raise PipelineError(f"{problem}; name the table's columns in table.fields")
    on = events[settings.on].cast("string") == table[broadcast.KEY_COLUMN]
    return events.join(F.broadcast(table), on, "left").drop(broadcast.KEY_COLUMN)


def create_batch_table(
    settings: Enrich, spark: SparkSession, kafka_options: Mapping[str, str], reports: Reports
) -> broadcast.RefreshedValue[DataFrame] | None:
    """Return the table to join each batch with; None if tasks look up its rows."""
    table = settings.table
    if isinstance(table, Redis):
        return None

    def read_table() -> DataFrame:
        # As data in the driver, so that no batch reads the source again.
        rows = broadcast.load_table(table, spark, kafka_options)
        return spark.createDataFrame(rows.toArrow(), schema=rows.schema)

    return broadcast.RefreshedValue(read_table, table.refresh, job=settings.name, reports=reports)


def get_output_mode(settings: Enrich) -> Literal["append", "update"]:
    return "append"


def check_realtime(settings: Enrich) -> str | None:
    if isinstance(settings.table, Broadcast):
        return "a table that is refreshed is joined batch by batch; use a trigger such as 0s"
    return "lookups run in Python, which real-time mode does not support; use a trigger such as 0s"


def check_job(settings: Enrich, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    known = columns.get("from") or {}
    yield from check_columns("on", [settings.on], known)
    for name, kind in settings.table.fields.items():
        if message := types.check_type(kind):
            yield f"table.fields.{name}: {message}"
        if name in _list_event_columns(settings, known):
            yield f"table.fields.{name}: from has a column of that name, too; rename one of them"
    if message := types.check_case([*_list_event_columns(settings, known), *settings.table.fields]):
        yield f"table.fields: {message}"
    if isinstance(settings.table, Redis):
        yield from _check_redis(settings.table)
    else:
        yield from _check_broadcast(settings.table)
    if known:
        yield from check_columns("to.key", settings.to.key, {**known, **settings.table.fields})


def _check_redis(table: Redis) -> Iterable[str]:
    if not table.fields:
        yield "table.fields: is empty; name the columns of the table"
    if not is_url(table.url):
        yield "table.url: is not a URL of Redis; write one such as redis://localhost:6379/0"
    if table.fallback is not None and not all(table.fallback.partition(":")):
        yield f"table.fallback: '{table.fallback}' is not a function; write module:function"


def _check_broadcast(table: Broadcast) -> Iterable[str]:
    if table.topic is not None and not table.fields:
        yield "table.fields: is empty; name the columns of the topic's JSON"
    if table.topic is not None and table.key != "_key" and table.key not in table.fields:
        hint = suggest(table.key, ["_key", *table.fields])
        yield f"table.key: the topic has no column '{table.key}'; {hint}"
    if table.path is not None and table.key == "_key":
        yield "table.key: files have no record keys; name the column with the key"


def _list_event_columns(settings: Enrich, columns: Iterable[str]) -> list[str]:
    """Return the columns to keep; those of the record, such as `_offset`, only if named."""
    named = {name.lower() for name in (settings.on, *settings.to.key)}
    return [name for name in columns if name not in RECORD_COLUMN_TYPES or name in named]
