"""Jobs of type `sessions`: the events of each key until it pauses.

With `emit: closed` and without `maxLength`, this is Spark's `session_window`, which keeps one row
per open session and runs in the JVM. It has no update mode and no maximal length, so
`session_processor` implements these in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from gateway.config.sections.pipelines import Sessions
from gateway.pipeline.inputs.types import check_case
from gateway.pipeline.spark import F

from . import sql

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

RESULT_COLUMNS = ("start", "end", "events", "state")
"""The columns of the result besides those of `by` and `measures`."""
_NESTED_TYPES = ("array", "map", "struct", "variant")


def build(settings: Sessions, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the sessions.

    Returns:
        The columns of `by`, `start` and `end` (the times of the first and the last event, without
        the pause after it), `events` (their number), the measures, and `state` if updates are
        emitted.
    """
    from . import session_processor

    if needs_stateful_processor(settings):
        return session_processor.build(settings, tables["from"])
    return build_aggregates(settings, tables)


def build_aggregates(settings: Sessions, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the closed sessions by Spark's aggregates, whose plan says how columns are made."""
    events = tables["from"]
    window = F.session_window(F.col(settings.from_.time), sql.format_interval(settings.gap))
    counted = events.groupBy(*settings.by, window.alias("_session")).agg(
        F.count(F.lit(1)).alias("events"),
        *(_build_aggregate(m, settings) for m in sql.parse_measures(settings.measures)),
    )
    # The window ends at the last event's time + gap, so no aggregate is needed for the time.
    last = F.col("_session.end") - F.expr(f"interval {sql.format_interval(settings.gap)}")
    return counted.select(
        *settings.by,
        F.col("_session.start").alias("start"),
        last.alias("end"),
        "events",
        *settings.measures,
        *([F.lit("closed").alias("state")] if settings.emit == "updates" else []),
    )


def needs_stateful_processor(settings: Sessions) -> bool:
    return settings.emit == "updates" or settings.max_length is not None


def get_output_mode(settings: Sessions) -> Literal["append", "update"]:
    return "update" if settings.emit == "updates" else "append"


def check_realtime(settings: Sessions) -> str | None:
    return "sessions keep state, which real-time mode does not support; use a trigger such as 0s"


def check_job(settings: Sessions, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    known = columns.get("from", {})
    yield from sql.check_columns("by", settings.by, known)
    for name in settings.by:
        if name in RESULT_COLUMNS:
            yield f"by: '{name}' is already a column of the result; rename the field"
    for name in settings.measures:
        if name in (*settings.by, *RESULT_COLUMNS):
            yield f"measures.{name}: '{name}' is already a column of the result; use another name"
    columns_of_rows = [*settings.by, *RESULT_COLUMNS, *settings.measures]
    if message := check_case(columns_of_rows):
        yield f"measures: {message}"
    yield from sql.check_columns("to.key", settings.to.key, columns_of_rows)
    if needs_stateful_processor(settings):
        yield from _check_mergeable(settings)
        yield from _check_nested_types(settings, known)
    if settings.max_length is not None and settings.max_length < settings.gap:
        yield "maxLength is shorter than gap, so no session would end by a pause; make it longer"


def select_late(settings: Sessions, events: DataFrame, watermark: datetime | Column) -> DataFrame:
    """Return the rows of a batch that Spark drops as late.

    For `session_window`, an event is late if a session of this event alone would be closed (its
    time + gap); for `session_processor`, if the watermark has passed its time. Spark's own count
    may be lower, because it counts events of one key and time that one task reads only once.
    """
    time = F.col(settings.from_.time)
    if not needs_stateful_processor(settings):
        time = time + F.expr(f"interval {sql.format_interval(settings.gap)}")
    return events.where(time <= F.lit(watermark))


def _check_mergeable(settings: Sessions) -> Iterable[str]:
    option = "emit: updates" if settings.emit == "updates" else "maxLength"
    for measure in sql.parse_measures(settings.measures):
        if measure.kind is None:
            allowed = ", ".join(f"{kind}(x)" for kind in sql.MERGEABLE_KINDS)
            yield (
                f"measures.{measure.name}: {option} supports only {allowed}, not "
                f"{measure.expression!r}; split it into such measures, or remove {option}"
            )


def _check_nested_types(settings: Sessions, columns: Mapping[str, str]) -> Iterable[str]:
    """Yield columns with unmergeable types; those of expressions are checked at the start."""
    nested = {
        name.lower(): kind for name, kind in columns.items() if kind.startswith(_NESTED_TYPES)
    }
    for name in settings.by:
        if name.lower() in nested:
            yield sql.describe_unsupported_key(name)
    for measure in sql.parse_measures(settings.measures):
        kind = nested.get(measure.argument.lower())
        if kind and measure.kind in ("sum", "min", "max"):
            yield sql.describe_unsupported_measure(measure, kind)


def _build_aggregate(measure: sql.Measure, settings: Sessions) -> Column:
    """Return the aggregate; `first` and `last` go by time, as a shuffle has no order."""
    if not measure.is_ordered:
        return F.expr(measure.expression).alias(measure.name)
    select_by = {"first": F.min_by, "last": F.max_by}[measure.kind or ""]
    order = F.struct(F.col(settings.from_.time), F.col("_partition"), F.col("_offset"))
    return select_by(F.expr(measure.argument), order).alias(measure.name)
