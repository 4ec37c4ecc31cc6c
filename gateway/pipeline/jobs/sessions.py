"""What each key did until it paused.

`closed` sessions without a longest are Spark's session_window, which keeps one row an open session
and runs in the JVM. It rejects update mode and knows no longest: those are `sessions_live`.

`end` is the time of the last event, not the end of the pause after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from gateway.config.sections.pipelines import Sessions

from . import measures, sql

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

RESULT_COLUMNS = ("start", "end", "events", "state")
"""Columns of the result beside those of `by` and `measures`."""
_NESTED_TYPES = ("array", "map", "struct", "variant")


def build(settings: Sessions, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Columns: those of `by`, start, end (timestamps of the first and the last event), events,
    measures, and state where updates are emitted."""
    from pyspark.sql import functions as F

    from . import session_processor

    events = tables["from"]
    if needs_stateful_processor(settings):
        return session_processor.build(settings, events)
    window = F.session_window(F.col(settings.from_.time), _format_interval(settings.gap))
    counted = events.groupBy(*settings.by, window.alias("_session")).agg(
        F.count(F.lit(1)).alias("events"),
        *(_build_aggregate(m, settings) for m in _parse_measures(settings)),
    )
    # Its end is the last event's time + gap: no aggregate of its own is kept for that.
    last = F.col("_session.end") - F.expr(f"interval {_format_interval(settings.gap)}")
    return counted.select(
        *settings.by,
        F.col("_session.start").alias("start"),
        last.alias("end"),
        "events",
        *settings.measures,
    )


def needs_stateful_processor(settings: Sessions) -> bool:
    """Is it more than Spark's own operator can do?"""
    return settings.emit == "updates" or settings.max_length is not None


def get_output_mode(settings: Sessions) -> Literal["append", "update"]:
    return "update" if settings.emit == "updates" else "append"


def check_realtime(settings: Sessions) -> str | None:
    """Why not in real-time mode."""
    return "sessions keep state, which Spark 4.2's real-time mode does not allow; use a duration"


def check_job(settings: Sessions, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What Spark would refuse, and what it would take in another sense than was meant. columns:
    those of the input and their types; none where they are not known."""
    known = columns.get("from", {})
    yield from sql.check_columns("by", settings.by, known)
    yield from sql.check_columns("from.time", [settings.from_.time], known)
    for name in settings.by:
        if name in RESULT_COLUMNS:
            yield f"by: '{name}' is a column of sessions themselves; rename the field"
    for name in settings.measures:
        if name in (*settings.by, *RESULT_COLUMNS):
            yield f"measures.{name}: '{name}' is a column already; use another name"
    yield from measures.check_measures(settings.measures, known)
    if needs_stateful_processor(settings):
        yield from _check_mergeable(settings)
        yield from _check_nested_types(settings, known)
    if settings.max_length is not None and settings.max_length < settings.gap:
        yield "maxLength is below gap: each session ends before it could pause; make it longer"


def select_late(settings: Sessions, events: DataFrame, watermark: datetime | Column) -> DataFrame:
    """Those of a batch that came too late, as Spark's operator drops them.

    watermark: that of the batch before. Spark's own operator asks whether the event's own session
    would be over (time + gap), the other one whether its time has passed. Spark's count of them may
    be less: it counts events of one key and instant once, where they are read by one task.
    """
    from pyspark.sql import functions as F

    time = F.col(settings.from_.time)
    if not needs_stateful_processor(settings):
        time = time + F.expr(f"interval {_format_interval(settings.gap)}")
    return events.where(time <= F.lit(watermark))


def _check_mergeable(settings: Sessions) -> Iterable[str]:
    why = "emit: updates" if settings.emit == "updates" else "maxLength"
    for each in _parse_measures(settings):
        if each.kind is None:
            allowed = ", ".join(f"{kind}(x)" for kind in measures.MERGEABLE_KINDS)
            yield (
                f"measures.{each.name}: with {why} only {allowed} are kept, "
                f"not {each.expression!r}; keep its parts, or leave out " + why
            )


def _check_nested_types(settings: Sessions, columns: Mapping[str, str]) -> Iterable[str]:
    """Columns of types that cannot be kept; of expressions Spark knows the type, at the start."""
    nested = {name: kind for name, kind in columns.items() if kind.startswith(_NESTED_TYPES)}
    yield from (measures.describe_unsupported_key(name) for name in settings.by if name in nested)
    for each in _parse_measures(settings):
        if each.argument in nested and each.kind in ("sum", "min", "max"):
            yield measures.describe_unsupported_measure(each, nested[each.argument])


def _parse_measures(settings: Sessions) -> tuple[measures.Measure, ...]:
    return measures.parse_measures(settings.measures)


def _build_aggregate(measure: measures.Measure, settings: Sessions) -> Column:
    """first and last are those of time: Spark's take whichever row comes first out of a shuffle."""
    from pyspark.sql import functions as F

    if not measure.is_ordered:
        return F.expr(measure.expression).alias(measure.name)
    by = {"first": F.min_by, "last": F.max_by}[measure.kind or ""]
    place = F.struct(F.col(settings.from_.time), F.col("_partition"), F.col("_offset"))
    return by(F.expr(measure.argument), place).alias(measure.name)


def _format_interval(seconds: float) -> str:
    return f"{round(seconds * 1_000_000)} microseconds"
