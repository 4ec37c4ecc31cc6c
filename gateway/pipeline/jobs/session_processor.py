"""Compute sessions in Python, with updates of open sessions or a maximal length.

`sessions` calls `build` if Spark's `session_window` does not suffice. A call of transformWithState
takes about 1 ms for each group, mostly for calls from Python to the JVM (the key, the clocks, the
state, the timer). So a group is not one key but a bucket of keys. `pieces` computes the sessions of
all its keys at once, the state of a bucket is one Arrow table, and its timer is set for the session
that closes next.
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

from . import sql
from .pieces import (
    MAX_WATERMARK_US,
    ORDER_COLUMNS,
    SessionRules,
    build_piece_schema,
    find_unmergeable,
    update_sessions,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
    from pyspark.sql.types import DataType

BUCKET_COUNT = 256
"""The number of buckets. It must not change, because the state in checkpoints depends on it. If a
job has more state partitions, some of them are empty."""


def build(settings: Sessions, events: DataFrame) -> DataFrame:
    """Return the sessions, as `sessions.build` does. If `events` is no stream, all are closed."""
    columns = _SessionColumns(settings, events)
    pieces = columns.build_pieces(events)
    if not events.isStreaming:
        return pieces.groupBy("_bucket").applyInArrow(columns.session_function, columns.result_type)
    return pieces.groupBy("_bucket").transformWithState(
        statefulProcessor=SessionProcessor(columns.rules, tuple(columns.result_type.names)),
        outputStructType=columns.result_type,
        outputMode="update" if settings.emit == "updates" else "append",
        timeMode="eventTime",
    )


class SessionProcessor(StatefulProcessor):
    """The processor of a task, which Spark calls with one bucket after the other.

    Spark sets the bucket before each call, so `_state` is always that of the current bucket: the
    pieces of its open sessions as an Arrow table, and its timer in milliseconds since 1970. A
    bucket without open sessions has no state.
    """

    def __init__(self, rules: SessionRules, names: tuple[str, ...]) -> None:
        self._rules = rules
        self._row_type = Row(*names)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Prepare the state, once per task."""
        self._handle = handle
        self._state = handle.getValueState("sessions", "pieces binary, timer bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Yield the sessions that closed or changed by the pieces of a batch, at least one."""
        row_list = list(rows)
        # All values by their position: a Row finds a value by searching its list of names.
        columns = dict(zip(row_list[0].__fields__, zip(*row_list, strict=True), strict=True))
        yield from self._advance(_build_piece_table(columns, self._rules), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        yield from self._advance(None, timerValues)

    def close(self) -> None: ...

    def _advance(self, events: pa.Table | None, timer_values: TimerValues) -> Iterator[Row]:
        watermark = timer_values.getCurrentWatermarkInMs()
        stored, timer = self._state.get() or (None, None)
        open_pieces = None if stored is None else pa.ipc.open_stream(bytes(stored)).read_all()
        update = update_sessions(open_pieces, events, self._rules, watermark * 1000)
        if update.next_close_us is None:
            self._state.clear()
        else:
            self._state.update(
                (
                    _serialize_table(update.open_pieces),
                    self._schedule_timer(update.next_close_us, timer, watermark),
                )
            )
        result = _select_result(update.sessions, len(self._row_type))
        columns = [column.to_pylist() for column in result.columns]
        yield from (self._row_type(*values) for values in zip(*columns, strict=True))

    def _schedule_timer(self, close_us: int, timer_ms: int | None, watermark_ms: int) -> int:
        """Return the timer of the bucket, and register a new one if that is needed.

        A timer that is too early stays, and is replaced when it expires. Sessions that continue
        close later in every batch, so this saves two calls of the JVM in most batches.
        """
        close_ms = -(-close_us // 1000)  # rounded up
        if timer_ms is not None and watermark_ms < timer_ms <= close_ms:
            return timer_ms
        # A later timer stays registered beside it, because Spark keeps one for each time. It
        # expires with nothing to close, which does no harm.
        self._handle.registerTimer(close_ms)
        return close_ms


class _SessionColumns:
    def __init__(self, settings: Sessions, events: DataFrame) -> None:
        self._settings = settings
        self._measures = sql.parse_measures(settings.measures)
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
        arrow_types = [
            to_arrow_type(field.dataType, timezone="UTC")
            for field in (*keys, *self.aggregate_fields)
        ]
        measure_types = arrow_types[len(keys) + 1 :]  # without that of `events`
        max_length = settings.max_length
        self.rules = SessionRules(
            schema=build_piece_schema(arrow_types[: len(keys)], measure_types, self.has_order),
            key_count=len(keys),
            measure_kinds=tuple(measure.kind or "" for measure in self._measures),
            gap_us=round(settings.gap * 1_000_000),
            max_length_us=None if max_length is None else round(max_length * 1_000_000),
            emit_updates=settings.emit == "updates",
        )
        self._check_types()

    def _check_types(self) -> None:
        """Raise PipelineError for unmergeable types, which only Spark knows of expressions."""
        unmergeable = set(find_unmergeable(self.rules))
        for index, name in enumerate(self._settings.by):
            if f"k{index}" in unmergeable:
                raise PipelineError(
                    f"job {self._settings.name}: {sql.describe_unsupported_key(name)}"
                )
        for index, (measure, field) in enumerate(
            zip(self._measures, self.aggregate_fields[1:], strict=True)
        ):
            if f"m{index}" in unmergeable:
                type_name = field.dataType.simpleString()
                problem = sql.describe_unsupported_measure(measure, type_name)
                raise PipelineError(f"job {self._settings.name}: {problem}")

    def _analyze_aggregates(self, events: DataFrame) -> list[StructField]:
        event_count = F.count(F.lit(1)).alias("events")
        aggregates = [F.expr(measure.expression).alias(measure.name) for measure in self._measures]
        schema = events.groupBy().agg(event_count, *aggregates).schema
        return [StructField(field.name, field.dataType) for field in schema]

    def build_pieces(self, events: DataFrame) -> DataFrame:
        """Return one piece for each event, with its bucket.

        Columns that would repeat the start are left out (`_SINGLE_EVENT_COLUMNS`), because each
        value that is passed to Python takes about 1 us. `_time` is there for Spark, which needs the
        column of the watermark.
        """
        settings, time = self._settings, F.col(self._settings.from_.time)
        order_columns = {"fp": "_partition", "fo": "_offset"} if self.has_order else {}
        order = [F.col(column).cast("bigint").alias(name) for name, column in order_columns.items()]
        values = zip(self._measures, self.aggregate_fields[1:], strict=True)
        keys = (_make_valid_text(F.col(name), events.schema[name].dataType) for name in settings.by)
        return events.where(time.isNotNull()).select(
            F.pmod(F.hash(*settings.by), F.lit(BUCKET_COUNT)).alias("_bucket"),
            time.alias("_time"),
            *(key.alias(f"k{index}") for index, key in enumerate(keys)),
            F.unix_micros(time.cast("timestamp")).alias("start"),
            *order,
            *(
                _build_value(measure, field).alias(f"m{index}")
                for index, (measure, field) in enumerate(values)
            ),
        )

    @property
    def session_function(self) -> Any:
        """The function that computes all sessions of a bucket, if the input is no stream."""
        # Local variables, because Spark sends the function to its workers.
        rules, result = self.rules, to_arrow_schema(self.result_type, timezone="UTC")

        def close_sessions(table: pa.Table) -> pa.Table:
            columns = dict(zip(table.column_names, table.columns, strict=True))
            sessions = update_sessions(
                None, _build_piece_table(columns, rules), rules, MAX_WATERMARK_US
            ).sessions
            return _select_result(sessions, len(result)).rename_columns(result.names).cast(result)

        return close_sessions


_SINGLE_EVENT_COLUMNS = {"end": "start", "lp": "fp", "lo": "fo"}
"""The columns of a piece that equal another one if the piece is a single event."""


def _build_piece_table(columns: Mapping[str, Any], rules: SessionRules) -> pa.Table:
    all_columns = {**columns, "events": [1] * len(columns["start"])}
    arrays = [
        _to_array(all_columns[_SINGLE_EVENT_COLUMNS.get(field.name, field.name)], field.type)
        for field in rules.schema
    ]
    return pa.table(arrays, schema=rules.schema)


def _to_array(values: Any, arrow_type: pa.DataType) -> Any:
    return (
        values.cast(arrow_type)
        if isinstance(values, pa.ChunkedArray)
        else pa.array(values, arrow_type)
    )


def _build_value(measure: sql.Measure, field: StructField) -> Any:
    if measure.kind != "count":
        return _make_valid_text(F.expr(measure.argument).cast(field.dataType), field.dataType)
    is_counted = F.lit(True) if measure.argument == "*" else F.expr(measure.argument).isNotNull()
    return is_counted.cast("bigint")


def _make_valid_text(column: Column, data_type: DataType) -> Column:
    """Return a column that Python can read: a string of Spark may be any bytes."""
    return F.make_valid_utf8(column) if isinstance(data_type, StringType) else column


def _select_result(sessions: pa.Table, width: int) -> pa.Table:
    """Return the first `width` columns but those for merging, with `start` and `end` as times."""
    names = [name for name in sessions.column_names if name not in ORDER_COLUMNS][:width]
    result = sessions.select(names)
    for name in ("start", "end"):
        index = result.schema.get_field_index(name)
        result = result.set_column(index, name, result[name].cast(pa.timestamp("us", "UTC")))
    return result


def _serialize_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return bytes(sink.getvalue())
