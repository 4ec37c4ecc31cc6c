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
from .pieces import EVER, ORDER, Rules, step, unmergeable
from .pieces import schema as pieces_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
    from pyspark.sql.types import DataType

BUCKETS = 256
"""Frozen in checkpoints. Of more state partitions than that the rest would idle."""


def build(settings: Sessions, events: DataFrame) -> DataFrame:
    """As `sessions.build`. In batch all sessions close."""
    plan = _Plan(settings, events)
    pieces = plan.pieces(events)
    if not events.isStreaming:
        return pieces.groupBy("_bucket").applyInArrow(plan.closed, plan.result)
    return pieces.groupBy("_bucket").transformWithState(
        statefulProcessor=Live(plan.rules, tuple(plan.result.names)),
        outputStructType=plan.result,
        outputMode="update" if settings.emit == "updates" else "append",
        timeMode="eventTime",
    )


class Live(StatefulProcessor):
    """Of one bucket. names: of the result's columns."""

    def __init__(self, rules: Rules, names: tuple[str, ...]) -> None:
        self._rules = rules
        self._row = Row(*names)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("sessions", "pieces binary, timer bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        come = list(rows)
        # by position for all rows at once: a Row looks for each name in the list of its fields
        columns = dict(zip(come[0].__fields__, zip(*come, strict=True), strict=True))
        yield from self._step(_pieces(columns, self._rules), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        yield from self._step(None, timerValues)

    def close(self) -> None:
        pass

    def _step(self, events: pa.Table | None, clock: TimerValues) -> Iterator[Row]:
        watermark = clock.getCurrentWatermarkInMs()
        held, timer = self._state.get() or (None, None)
        kept = None if held is None else _read(held)
        done = step(kept, events, self._rules, watermark * 1000)
        if done.due is None:
            self._state.clear()
        else:
            self._state.update((_written(done.kept), self._timed(done.due, timer, watermark)))
        yield from (self._row(*values) for values in _values(done.told, len(self._row)))

    def _timed(self, due: int, timer: int | None, watermark: int) -> int:
        """The timer that stands: one that fires too early is moved then, which saves two calls in
        most batches, as sessions that go on move their ends."""
        wanted = -(-due // 1000)
        if timer is not None and watermark < timer <= wanted:
            return timer
        self._handle.registerTimer(wanted)
        return wanted


class _Plan:
    """Which columns there are, and of which types."""

    def __init__(self, settings: Sessions, events: DataFrame) -> None:
        self._settings = settings
        self._measures = measures.measures(settings.measures)
        self.types = self._types(events)
        self.ordered = any(measure.ordered for measure in self._measures)
        keys = [events.schema[name] for name in settings.by]
        self.result = StructType(
            [
                *(StructField(field.name, field.dataType) for field in keys),
                StructField("start", TimestampType()),
                StructField("end", TimestampType()),
                *self.types,
                *([StructField("state", StringType())] if settings.emit == "updates" else []),
            ]
        )
        arrow = [to_arrow_type(field.dataType, timezone="UTC") for field in (*keys, *self.types)]
        longest = settings.max_length
        self.rules = Rules(
            schema=pieces_of(arrow[: len(keys)], arrow[len(keys) + 1 :], self.ordered),
            keys=len(keys),
            measures=tuple(measure.kind or "" for measure in self._measures),
            gap=round(settings.gap * 1_000_000),
            longest=None if longest is None else round(longest * 1_000_000),
            updates=settings.emit == "updates",
        )
        self._refuse()

    def _refuse(self) -> None:
        """Raise PipelineError for types that cannot be kept; those of expressions Spark knows."""
        wrong = set(unmergeable(self.rules))
        for at, name in enumerate(self._settings.by):
            if f"k{at}" in wrong:
                raise PipelineError(f"job {self._settings.name}: {measures.no_key(name)}")
        for at, (measure, field) in enumerate(zip(self._measures, self.types[1:], strict=True)):
            if f"m{at}" in wrong:
                what = measures.not_kept(measure, field.dataType.simpleString())
                raise PipelineError(f"job {self._settings.name}: {what}")

    def _types(self, events: DataFrame) -> list[StructField]:
        """Of events and of measures, as Spark's aggregates have them."""
        counted = [F.count(F.lit(1)).alias("events")]
        asked = [F.expr(measure.text).alias(measure.name) for measure in self._measures]
        found = events.groupBy().agg(*counted, *asked).schema
        return [StructField(field.name, field.dataType) for field in found]

    def pieces(self, events: DataFrame) -> DataFrame:
        """One of each event, without what repeats its start: each value handed to Python costs
        about 1 us. Its time goes along for the watermark: Spark asks it of a column."""
        settings, time = self._settings, F.col(self._settings.from_.time)
        place = {"fp": "_partition", "fo": "_offset"} if self.ordered else {}
        order = [F.col(column).cast("bigint").alias(name) for name, column in place.items()]
        values = zip(self._measures, self.types[1:], strict=True)
        keys = (_text(F.col(name), events.schema[name].dataType) for name in settings.by)
        return events.where(time.isNotNull()).select(
            F.pmod(F.hash(*settings.by), F.lit(BUCKETS)).alias("_bucket"),
            time.alias("_time"),
            *(key.alias(f"k{at}") for at, key in enumerate(keys)),
            F.unix_micros(time.cast("timestamp")).alias("start"),
            *order,
            *(_value(m, field).alias(f"m{at}") for at, (m, field) in enumerate(values)),
        )

    @property
    def closed(self) -> Any:
        """Of a bucket's pieces, in batch, all sessions."""
        rules, result = self.rules, to_arrow_schema(self.result, timezone="UTC")

        def closed(table: pa.Table) -> pa.Table:
            columns = dict(zip(table.column_names, table.columns, strict=True))
            told = step(None, _pieces(columns, rules), rules, EVER).told
            return _shown(told, len(result)).rename_columns(result.names).cast(result)

        return closed


_SAME = {"end": "start", "lp": "fp", "lo": "fo"}
"""The last event of a piece of one is its first."""


def _pieces(columns: Mapping[str, Any], rules: Rules) -> pa.Table:
    """Of events: values by the names of `_Plan.pieces`."""
    given = {**columns, "events": [1] * len(columns["start"])}
    arrays = [_array(given[_SAME.get(each.name, each.name)], each.type) for each in rules.schema]
    return pa.table(arrays, schema=rules.schema)


def _array(values: Any, kind: pa.DataType) -> Any:
    return values.cast(kind) if isinstance(values, pa.ChunkedArray) else pa.array(values, kind)


def _value(measure: measures.Measure, field: StructField) -> Any:
    """What one event adds."""
    if measure.kind != "count":
        return _text(F.expr(measure.argument).cast(field.dataType), field.dataType)
    counts = F.lit(True) if measure.argument == "*" else F.expr(measure.argument).isNotNull()
    return counts.cast("bigint")


def _text(column: Column, kind: DataType) -> Column:
    """Return what a worker of Python can read: a text of Spark's may be any bytes."""
    return F.make_valid_utf8(column) if isinstance(kind, StringType) else column


def _shown(told: pa.Table, width: int) -> pa.Table:
    """Without what only merging needs."""
    names = [name for name in told.column_names if name not in ORDER][:width]
    shown = told.select(names)
    for name in ("start", "end"):
        at = shown.schema.get_field_index(name)
        shown = shown.set_column(at, name, shown[name].cast(pa.timestamp("us", "UTC")))
    return shown


def _values(told: pa.Table, width: int) -> Iterator[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in _shown(told, width).columns]
    return zip(*columns, strict=True)


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def _read(held: bytes) -> pa.Table:
    return pa.ipc.open_stream(bytes(held)).read_all()
