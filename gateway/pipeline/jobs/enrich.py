"""Events with columns of a table: each event one row, with nulls where the table has no row.

A table in Redis is looked up by the tasks, as keys are met (`tables.lookup`): nothing is loaded
before the first batch. A small one is joined in each batch with what `tables.broadcast` holds at
that time. Such a job runs batch by batch (`held` is not None): a plan of Spark's, made once, would
read the files of its first day, and fail when they are replaced.

Results may change when a batch is repeated after a crash: the table has gone on. Where it goes
must not, or exactly once is lost: the output's key is made of columns of the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from gateway.config.sections.pipelines import Broadcast, Redis
from gateway.config.source.expression import suggest
from gateway.errors import PipelineError
from gateway.pipeline.inputs import types
from gateway.pipeline.inputs.types import RECORD_COLUMN_TYPES
from gateway.pipeline.tables import broadcast, lookup
from gateway.pipeline.tables.columns import parse_json_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.config.sections.pipelines import Enrich

TABLE_INPUT = "table"
"""What `build` knows the table that is held by."""
_ROW_COLUMN = "_row"


def build(settings: Enrich, tables: Mapping[str, DataFrame]) -> DataFrame:
    """`from` with the columns of the table, or of `table` where it is held."""
    events = tables["from"].select(*_list_event_columns(settings, tables["from"].columns))
    if isinstance(settings.table, Redis):
        return _look_up_rows(settings, settings.table, events)
    return _join_table(settings, events, tables[TABLE_INPUT])


def create_batch_table(
    settings: Enrich,
    spark: SparkSession,
    kafka_options: Mapping[str, str],
    client_config: Mapping[str, Any] | None = None,
) -> broadcast.RefreshedValue[DataFrame] | None:
    """Return the table that each batch is to be joined with; None where tasks look it up.

    Args:
        settings: The job's.
        spark: A session.
        kafka: Spark's options of the cluster of `from`.
        client: librdkafka's properties of it, as of `broadcast.held`.
    """
    if isinstance(settings.table, Redis):
        return None
    return broadcast.create_refreshed_table(
        settings.table, spark, kafka_options, client_config, job=settings.name
    )


def get_output_mode(settings: Enrich) -> Literal["append", "update"]:
    return "append"


def check_realtime(settings: Enrich) -> str | None:
    if isinstance(settings.table, Broadcast):
        return "a table that is refreshed is joined batch by batch; use a trigger such as 0s"
    return "lookups run in Python, which real-time mode does not; use a trigger such as 0s"


def get_default_key_columns(settings: Enrich) -> tuple[str, ...]:
    """Columns of the output's key where `to.key` names none."""
    return (settings.on,)


def check_job(settings: Enrich, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What cannot be right, with what to do; without Spark.

    columns: of `from`, their types by name; not checked where they are unknown.
    """
    known = columns.get("from") or {}
    if known and settings.on not in known and settings.on not in RECORD_COLUMN_TYPES:
        yield f"on: from has no column '{settings.on}'; {suggest(settings.on, known)}"
    for name, kind in settings.table.fields.items():
        if wrong := types.check_type(kind):
            yield f"table.fields.{name}: {wrong}"
        if name in _list_event_columns(settings, known):
            yield f"table.fields.{name}: from has a column of that name, too; rename one of them"
    if isinstance(settings.table, Redis):
        yield from _check_redis(settings.table)
    else:
        yield from _check_broadcast(settings.table)
    yield from _check_key(settings, known)


def _check_redis(table: Redis) -> Iterable[str]:
    if not table.fields:
        yield "table.fields: is empty; name the columns of the table"
    if not table.url.startswith(("redis://", "rediss://", "unix://")):
        yield "table.url: is no address of Redis; write such as redis://localhost:6379/0"
    if table.fallback is not None and not all(table.fallback.partition(":")):
        yield f"table.fallback: '{table.fallback}' is no function; write module:function"


def _check_broadcast(table: Broadcast) -> Iterable[str]:
    if table.topic is not None and not table.fields:
        yield "table.fields: is empty; name the columns of the topic's JSON"
    if table.topic is not None and table.key != "_key" and table.key not in table.fields:
        hint = suggest(table.key, ["_key", *table.fields])
        yield f"table.key: the topic has no column '{table.key}'; {hint}"
    if table.path is not None and table.key == "_key":
        yield "table.key: files have no records' keys; name the column that is looked up"


def _check_key(settings: Enrich, columns: Mapping[str, str]) -> Iterable[str]:
    """Where a row goes is decided by the key; a batch that is repeated must decide the same."""
    for name in settings.to.key:
        if name in settings.table.fields and settings.to.guarantee == "exactly-once":
            what = f"to.key: '{name}' is of the table, which may change before a batch is repeated"
            yield f"{what}; use columns of the event, or guarantee: at-least-once"
        elif columns and name not in {**columns, **RECORD_COLUMN_TYPES, **settings.table.fields}:
            yield f"to.key: there is no column '{name}'; {suggest(name, columns)}"


def _list_event_columns(settings: Enrich, columns: Iterable[str]) -> list[str]:
    """Columns of the events that are told: not those of the record, unless they are named."""
    named = {settings.on, *settings.to.key}
    return [name for name in columns if name not in RECORD_COLUMN_TYPES or name in named]


def _look_up_rows(settings: Enrich, table: Redis, events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    find = lookup.create_lookup_function(
        lookup.LookupConfig.from_settings(table), settings.name, events.sparkSession
    )
    found = events.withColumn(_ROW_COLUMN, find(F.col(settings.on).cast("string")))
    return parse_json_column(found, _ROW_COLUMN, table.fields)


def _join_table(settings: Enrich, events: DataFrame, table: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    both = sorted({*events.columns} & ({*table.columns} - {broadcast.KEY_COLUMN}))
    if both:
        what = f"job {settings.name}: events and table both have {', '.join(both)}"
        raise PipelineError(f"{what}; name the table's columns in table.fields")
    on = events[settings.on].cast("string") == table[broadcast.KEY_COLUMN]
    return events.join(F.broadcast(table), on, "left").drop(broadcast.KEY_COLUMN)
