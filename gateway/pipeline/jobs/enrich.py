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
from gateway.config.source.expression import nearest
from gateway.errors import PipelineError
from gateway.pipeline.inputs import types
from gateway.pipeline.inputs.types import META
from gateway.pipeline.tables import broadcast, lookup
from gateway.pipeline.tables.columns import parsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.config.sections.pipelines import Enrich

TABLE = "table"
"""What `build` knows the table that is held by."""
_ROW = "_row"


def build(settings: Enrich, tables: Mapping[str, DataFrame]) -> DataFrame:
    """`from` with the columns of the table, or of `table` where it is held."""
    events = tables["from"].select(*_told(settings, tables["from"].columns))
    if isinstance(settings.table, Redis):
        return _looked_up(settings, settings.table, events)
    return _joined(settings, events, tables[TABLE])


def held(
    settings: Enrich,
    spark: SparkSession,
    kafka: Mapping[str, str],
    client: Mapping[str, Any] | None = None,
) -> broadcast.Refreshed[DataFrame] | None:
    """Return the table that each batch is to be joined with; None where tasks look it up.

    Args:
        settings: The job's.
        spark: A session.
        kafka: Spark's options of the cluster of `from`.
        client: librdkafka's properties of it, as of `broadcast.held`.
    """
    if isinstance(settings.table, Redis):
        return None
    return broadcast.held(settings.table, spark, kafka, client, job=settings.name)


def mode(settings: Enrich) -> Literal["append", "update"]:
    return "append"


def realtime(settings: Enrich) -> str | None:
    if isinstance(settings.table, Broadcast):
        return "a table that is refreshed is joined batch by batch; use a trigger such as 0s"
    return "lookups run in Python, which real-time mode does not; use a trigger such as 0s"


def key(settings: Enrich) -> tuple[str, ...]:
    """Columns of the output's key where `to.key` names none."""
    return (settings.on,)


def problems(settings: Enrich, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What cannot be right, with what to do; without Spark.

    columns: of `from`, their types by name; not checked where they are unknown.
    """
    known = columns.get("from") or {}
    if known and settings.on not in known and settings.on not in META:
        yield f"on: from has no column '{settings.on}'; {nearest(settings.on, known)}"
    for name, kind in settings.table.fields.items():
        if wrong := types.problem(kind):
            yield f"table.fields.{name}: {wrong}"
        if name in _told(settings, known):
            yield f"table.fields.{name}: from has a column of that name, too; rename one of them"
    if isinstance(settings.table, Redis):
        yield from _of_redis(settings.table)
    else:
        yield from _of_broadcast(settings.table)
    yield from _of_key(settings, known)


def _of_redis(table: Redis) -> Iterable[str]:
    if not table.fields:
        yield "table.fields: is empty; name the columns of the table"
    if not table.url.startswith(("redis://", "rediss://", "unix://")):
        yield "table.url: is no address of Redis; write such as redis://localhost:6379/0"
    if table.fallback is not None and not all(table.fallback.partition(":")):
        yield f"table.fallback: '{table.fallback}' is no function; write module:function"


def _of_broadcast(table: Broadcast) -> Iterable[str]:
    if table.topic is not None and not table.fields:
        yield "table.fields: is empty; name the columns of the topic's JSON"
    if table.topic is not None and table.key != "_key" and table.key not in table.fields:
        hint = nearest(table.key, ["_key", *table.fields])
        yield f"table.key: the topic has no column '{table.key}'; {hint}"
    if table.path is not None and table.key == "_key":
        yield "table.key: files have no records' keys; name the column that is looked up"


def _of_key(settings: Enrich, known: Mapping[str, str]) -> Iterable[str]:
    """Where a row goes is decided by the key; a batch that is repeated must decide the same."""
    for name in settings.to.key:
        if name in settings.table.fields and settings.to.guarantee == "exactly-once":
            what = f"to.key: '{name}' is of the table, which may change before a batch is repeated"
            yield f"{what}; use columns of the event, or guarantee: at-least-once"
        elif known and name not in {**known, **META, **settings.table.fields}:
            yield f"to.key: there is no column '{name}'; {nearest(name, known)}"


def _told(settings: Enrich, columns: Iterable[str]) -> list[str]:
    """Columns of the events that are told: not those of the record, unless they are named."""
    named = {settings.on, *settings.to.key}
    return [name for name in columns if name not in META or name in named]


def _looked_up(settings: Enrich, table: Redis, events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    find = lookup.column(lookup.Lookup.of(table), settings.name, events.sparkSession)
    found = events.withColumn(_ROW, find(F.col(settings.on).cast("string")))
    return parsed(found, _ROW, table.fields)


def _joined(settings: Enrich, events: DataFrame, table: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    both = sorted({*events.columns} & ({*table.columns} - {broadcast.KEY}))
    if both:
        what = f"job {settings.name}: events and table both have {', '.join(both)}"
        raise PipelineError(f"{what}; name the table's columns in table.fields")
    on = events[settings.on].cast("string") == table[broadcast.KEY]
    return events.join(F.broadcast(table), on, "left").drop(broadcast.KEY)
