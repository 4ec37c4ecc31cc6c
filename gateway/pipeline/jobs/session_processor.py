"""Sessions that are told while they are open, or end after a longest: Python with state.

transformWithState costs about 1 ms for each group it is called with, most of it calls from Python
to the JVM (implicit key, clocks, get, update, timer). So a group here is not a key but a bucket of
them: `pieces` works on all of its keys at once, the state is one Arrow table a bucket, and a timer
stands for whichever of its sessions closes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from gateway.config.sections.pipelines import Sessions
from gateway.errors import PipelineError

from . import measures
from .pieces import MAX_WATERMARK_US, ORDER_COLUMNS, SessionRules, find_unmergeable, update_sessions
from .pieces import build_piece_schema as pieces_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
    from pyspark.sql.types import DataType

BUCKET_COUNT = 256
"""Frozen in checkpoints. Of more state partitions than that the rest would idle."""


def build(settings: Sessions, events: DataFrame) -> DataFrame:
    """As `sessions.build`. In batch all sessions close."""
    plan = _SessionColumns(settings, events)
    pieces = plan.build_pieces(events)
    if not events.isStreaming:
        return pieces.groupBy("_bucket").applyInArrow(plan.session_function, plan.result_type)
    return pieces.groupBy("_bucket").transformWithState(
        statefulProcessor=SessionProcessor(plan.rules, tuple(plan.result_type.names)),
        outputStructType=plan.result_type,
        outputMode="update" if settings.emit == "updates" else "append",
        timeMode="eventTime",
    )


class SessionProcessor(StatefulProcessor):
    """Of one bucket. names: of the result's columns."""

    def __init__(self, rules: SessionRules, names: tuple[str, ...]) -> None:
        self._rules = rules
        self._row_type = Row(*names)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("sessions", "pieces binary, timer bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        come = list(rows)
        # by position for all rows at once: a Row looks for each name in the list of its fields
        columns = dict(zip(come[0].__fields__, zip(*come, strict=True), strict=True))
        yield from self._advance(_build_piece_table(columns, self._rules), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        yield from self._advance(None, timerValues)

    def close(self) -> None:
        pass

    def _advance(self, events: pa.Table | None, timer_values: TimerValues) -> Iterator[Row]:
        watermark = timer_values.getCurrentWatermarkInMs()
        held, timer = self._state.get() or (None, None)
        kept = None if held is None else _deserialize_table(held)
        done = update_sessions(kept, events, self._rules, watermark * 1000)
        if done.next_close_us is None:
            self._state.clear()
        else:
            self._state.update(
                (
                    _serialize_table(done.open_pieces),
                    self._schedule_timer(done.next_close_us, timer, watermark),
                )
            )
        yield from (
            self._row_type(*values) for values in _iter_rows(done.sessions, len(self._row_type))
        )

    def _schedule_timer(self, close_us: int, timer_ms: int | None, watermark_ms: int) -> int:
        """The timer that stands: one that fires too early is moved then, which saves two calls in
        most batches, as sessions that go on move their ends."""
        wanted = -(-close_us // 1000)
        if timer_ms is not None and watermark_ms < timer_ms <= wanted:
            return timer_ms
        self._handle.registerTimer(wanted)
        return wanted


class _SessionColumns:
    """Which columns there are, and of which types."""

    def __init__(self, settings: Sessions, events: DataFrame) -> None:
        self._settings = settings
        self._measures = measures.parse_measures(settings.measures)
        self.aggregate_fields = self._analyze_aggregates(events)
        self.has_order = any(measure.is_ordered for measure in self._measures)
        keys = [events.schema[name] for name in settings.by]
        self.result_type = StructType(
            [
                *(StructField(field.name, field.dataType) for field in keys),
                StructField("start", TimestampType()),
                StructField("end", TimestampType()),
                *self.aggregate_fields,
                *([StructField("state", StringType())] if settings.emit == "updates" else []),
            ]
        )
        arrow = [
            to_arrow_type(field.dataType, timezone="UTC")
            for field in (*keys, *self.aggregate_fields)
        ]
        longest = settings.max_length
        self.rules = SessionRules(
            schema=pieces_of(arrow[: len(keys)], arrow[len(keys) + 1 :], self.has_order),
            key_count=len(keys),
            measure_kinds=tuple(measure.kind or "" for measure in self._measures),
            gap_us=round(settings.gap * 1_000_000),
            max_length_us=None if longest is None else round(longest * 1_000_000),
            emit_updates=settings.emit == "updates",
        )
        self._check_types()

    def _check_types(self) -> None:
        """Raise PipelineError for types that cannot be kept; those of expressions Spark knows."""
        wrong = set(find_unmergeable(self.rules))
        for at, name in enumerate(self._settings.by):
            if f"k{at}" in wrong:
                raise PipelineError(
                    f"job {self._settings.name}: {measures.describe_unsupported_key(name)}"
                )
        for at, (measure, field) in enumerate(
            zip(self._measures, self.aggregate_fields[1:], strict=True)
        ):
            if f"m{at}" in wrong:
                what = measures.describe_unsupported_measure(measure, field.dataType.simpleString())
                raise PipelineError(f"job {self._settings.name}: {what}")

    def _analyze_aggregates(self, events: DataFrame) -> list[StructField]:
        """Of events and of measures, as Spark's aggregates have them."""
        counted = [F.count(F.lit(1)).alias("events")]
        asked = [F.expr(measure.expression).alias(measure.name) for measure in self._measures]
        found = events.groupBy().agg(*counted, *asked).schema
        return [StructField(field.name, field.dataType) for field in found]

    def build_pieces(self, events: DataFrame) -> DataFrame:
        """One of each event, without what repeats its start: each value handed to Python costs
        about 1 us. Its time goes along for the watermark: Spark asks it of a column."""
        settings, time = self._settings, F.col(self._settings.from_.time)
        place = {"fp": "_partition", "fo": "_offset"} if self.has_order else {}
        order = [F.col(column).cast("bigint").alias(name) for name, column in place.items()]
        values = zip(self._measures, self.aggregate_fields[1:], strict=True)
        keys = (_make_valid_text(F.col(name), events.schema[name].dataType) for name in settings.by)
        return events.where(time.isNotNull()).select(
            F.pmod(F.hash(*settings.by), F.lit(BUCKET_COUNT)).alias("_bucket"),
            time.alias("_time"),
            *(key.alias(f"k{at}") for at, key in enumerate(keys)),
            F.unix_micros(time.cast("timestamp")).alias("start"),
            *order,
            *(_build_value(m, field).alias(f"m{at}") for at, (m, field) in enumerate(values)),
        )

    @property
    def session_function(self) -> Any:
        """Of a bucket's pieces, in batch, all sessions."""
        rules, result = self.rules, to_arrow_schema(self.result_type, timezone="UTC")

        def close_sessions(table: pa.Table) -> pa.Table:
            columns = dict(zip(table.column_names, table.columns, strict=True))
            told = update_sessions(
                None, _build_piece_table(columns, rules), rules, MAX_WATERMARK_US
            ).sessions
            return _select_result(told, len(result)).rename_columns(result.names).cast(result)

        return close_sessions


_SINGLE_EVENT_COLUMNS = {"end": "start", "lp": "fp", "lo": "fo"}
"""The last event of a piece of one is its first."""


def _build_piece_table(columns: Mapping[str, Any], rules: SessionRules) -> pa.Table:
    """Of events: values by the names of `_Plan.pieces`."""
    given = {**columns, "events": [1] * len(columns["start"])}
    arrays = [
        _to_array(given[_SINGLE_EVENT_COLUMNS.get(each.name, each.name)], each.type)
        for each in rules.schema
    ]
    return pa.table(arrays, schema=rules.schema)


def _to_array(values: Any, arrow_type: pa.DataType) -> Any:
    return (
        values.cast(arrow_type)
        if isinstance(values, pa.ChunkedArray)
        else pa.array(values, arrow_type)
    )


def _build_value(measure: measures.Measure, field: StructField) -> Any:
    """What one event adds."""
    if measure.kind != "count":
        return _make_valid_text(F.expr(measure.argument).cast(field.dataType), field.dataType)
    counts = F.lit(True) if measure.argument == "*" else F.expr(measure.argument).isNotNull()
    return counts.cast("bigint")


def _make_valid_text(column: Column, data_type: DataType) -> Column:
    """Return what a worker of Python can read: a text of Spark's may be any bytes."""
    return F.make_valid_utf8(column) if isinstance(data_type, StringType) else column


def _select_result(sessions: pa.Table, width: int) -> pa.Table:
    """Without what only merging needs."""
    names = [name for name in sessions.column_names if name not in ORDER_COLUMNS][:width]
    shown = sessions.select(names)
    for name in ("start", "end"):
        at = shown.schema.get_field_index(name)
        shown = shown.set_column(at, name, shown[name].cast(pa.timestamp("us", "UTC")))
    return shown


def _iter_rows(sessions: pa.Table, width: int) -> Iterator[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in _select_result(sessions, width).columns]
    return zip(*columns, strict=True)


def _serialize_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def _deserialize_table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(bytes(data)).read_all()
