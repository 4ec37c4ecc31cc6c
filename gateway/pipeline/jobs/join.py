"""Two streams, by key and time: orders with their payments, or without one when the bound passed.

What stays in state: a left row until the watermark is `after` beyond it, a right one until it is
`before` beyond. The watermark of both is the lower of the two: an idle side holds everything back.
A record without a key (a null in a column of `on`) joins nothing and is given to nobody, but its
time counts: send such heartbeats to both topics where nothing else comes, or the last rows wait.

Salting. Rows of one hot key all go to one task. With `salt` those of left are spread over
`buckets` tasks and those of right copied to each, for the keys that are hot only: left should be
the larger side. Which keys are hot is part of what the state means: a row of left looks for its
pairs in its own bucket, and pairs kept before their key was hot are in no bucket but the first. So
the set is found once, before the first batch, and holds as long as the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from gateway.config.source.expression import suggest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from gateway.config.sections.pipelines import Join, Salt

JoinSide: TypeAlias = Literal["left", "right"]

_BUCKET_COLUMN = "_bucket"
_RECORD_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp")
_TIMESTAMP_TYPES = ("timestamp", "timestamp_ms", "timestamp_ltz")
_SIDE_COLUMN_PATTERN = re.compile(r"\b(left|right)\.([A-Za-z_][A-Za-z0-9_]*)")


def build(
    settings: Join, tables: Mapping[str, DataFrame], hot_keys: Sequence[str] = ()
) -> DataFrame:
    """Pairs of `left` and `right`, with kind left also those of left that stayed alone.

    hot: texts of keys (`key_text`) that are spread where `salt.keys` is auto: the same ones as
    long as the checkpoint lives.
    """
    left, right = (
        _get_keyed_table(settings, "left", tables),
        _get_keyed_table(settings, "right", tables),
    )
    equal = [f"left.{of_left} = right.{of_right}" for of_left, of_right in settings.on.items()]
    salt = settings.salt
    if salt is not None and (salt.keys == "all" or select_hot_keys(salt, hot_keys)):
        left = left.withColumn(_BUCKET_COLUMN, _assign_bucket(settings, salt, hot_keys))
        right = right.withColumn(_BUCKET_COLUMN, _copy_to_buckets(settings, salt, hot_keys))
        equal.append(f"left.{_BUCKET_COLUMN} = right.{_BUCKET_COLUMN}")
    pairs = left.alias("left").join(
        right.alias("right"),
        _combine_conditions([*equal, *_build_time_bounds(settings)]),
        settings.kind,
    )
    return pairs.select(*_select_columns(settings, tables))


def get_output_mode(settings: Join) -> Literal["append", "update"]:
    return "append"


def check_realtime(settings: Join) -> str | None:
    return "a join keeps state, which real-time mode of this Spark lacks; use a trigger such as 0s"


def get_default_key_columns(settings: Join) -> tuple[str, ...]:
    """Columns of the output's key where `to.key` names none: left's of `on`, if they are told."""
    told = tuple(settings.on)
    return told if not settings.select or set(told) <= settings.select.keys() else ()


def select_late(
    settings: Join, events: DataFrame, watermark: object, side: JoinSide = "left"
) -> DataFrame:
    """The rows of one side that Spark drops as late.

    watermark: a timestamp, of the batch before. An event of just that time is late.
    """
    from pyspark.sql import functions as F

    time = settings.left.time if side == "left" else settings.right.time
    return _drop_keyless(settings, side, events).filter(F.col(time) <= F.lit(watermark))


def select_hot_keys(salt: Salt | None, detected: Sequence[str]) -> tuple[str, ...]:
    """The keys that are spread: those that the settings list, else those found; sorted."""
    if salt is None or salt.keys == "all":
        return ()
    return tuple(sorted(detected if salt.keys == "auto" else salt.keys))


def build_key_text(columns: Sequence[str]) -> Column:
    """A key as `salt.keys` and reports write it: one column as its text, several as a JSON array
    of texts."""
    from pyspark.sql import functions as F

    texts = [F.col(column).cast("string") for column in columns]
    return texts[0] if len(texts) == 1 else F.to_json(F.array(*texts))


def check_job(settings: Join, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What cannot be right, with what to do; without Spark.

    columns: of each side, their types by name; a side that is unknown is not checked.
    """
    sides = {"left": tuple(settings.on), "right": tuple(settings.on.values())}
    for side, keys in sides.items():
        if known := columns.get(side):
            yield from _check_key_columns(side, keys, known)
    yield from _check_times(settings, columns)
    yield from _check_key_types(settings, columns)
    for column, sql in settings.select.items():
        yield from (f"select.{column}: {what}" for what in _check_select(sql, columns))


def _get_keyed_table(settings: Join, side: JoinSide, tables: Mapping[str, DataFrame]) -> DataFrame:
    return _drop_keyless(settings, side, tables[side])


def _drop_keyless(settings: Join, side: JoinSide, table: DataFrame) -> DataFrame:
    """Without heartbeats, whose time has counted.

    A filter that Spark may push below the watermark takes them away too early: the tail of the
    stream is never told (4,977 of 500,000 orders in a trial). Spark makes such filters itself, of
    what an inner join compares. It pushes none through one that is not deterministic, which the
    second part, never true and not evaluated where the first is, makes of this one.
    """
    from pyspark.sql import functions as F

    keys, time = (
        (settings.on.keys(), settings.left.time)
        if side == "left"
        else (settings.on.values(), settings.right.time)
    )
    whole = _combine_conditions([f"{column} IS NOT NULL" for column in (*keys, time)])
    return table.filter(whole | (F.spark_partition_id() < 0))


def _build_time_bounds(settings: Join) -> list[str]:
    left, right = f"left.{settings.left.time}", f"right.{settings.right.time}"
    return [
        f"{right} >= {left} - INTERVAL '{settings.before:.6f}' SECOND",
        f"{right} <= {left} + INTERVAL '{settings.after:.6f}' SECOND",
    ]


def _combine_conditions(conditions: Iterable[str]) -> Column:
    from pyspark.sql import functions as F

    return F.expr(" AND ".join(conditions))


def _assign_bucket(settings: Join, salt: Salt, hot_keys: Sequence[str]) -> Column:
    """The bucket of a row of left, the same whenever it is read again."""
    from pyspark.sql import functions as F

    bucket = F.pmod(F.xxhash64("_partition", "_offset"), F.lit(salt.buckets)).cast("int")
    return F.when(_is_hot(salt, list(settings.on), hot_keys), bucket).otherwise(F.lit(0))


def _copy_to_buckets(settings: Join, salt: Salt, hot_keys: Sequence[str]) -> Column:
    """All buckets that a row of right may be looked for in."""
    from pyspark.sql import functions as F

    every = F.array(*(F.lit(bucket) for bucket in range(salt.buckets)))
    first = F.array(F.lit(0))
    is_hot = _is_hot(salt, list(settings.on.values()), hot_keys)
    return F.explode(F.when(is_hot, every).otherwise(first))


def _is_hot(salt: Salt, columns: Sequence[str], hot_keys: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    if salt.keys == "all":
        return F.lit(True)
    return build_key_text(columns).isin(*select_hot_keys(salt, hot_keys))


def _select_columns(settings: Join, tables: Mapping[str, DataFrame]) -> list[Column]:
    from pyspark.sql import functions as F

    if settings.select:
        return [F.expr(sql).alias(column) for column, sql in settings.select.items()]
    left = _list_value_columns(tables["left"].columns)
    right = [
        column for column in _list_value_columns(tables["right"].columns) if column not in left
    ]
    return [
        *(F.col(f"left.{column}") for column in left),
        *(F.col(f"right.{column}") for column in right),
    ]


def _list_value_columns(columns: Iterable[str]) -> list[str]:
    return [column for column in columns if column not in _RECORD_COLUMNS]


def _check_key_columns(
    side: str, names: Iterable[str], columns: Mapping[str, str]
) -> Iterable[str]:
    for name in names:
        if name not in columns and name not in _RECORD_COLUMNS:
            yield f"on: {side} has no column '{name}'; {suggest(name, columns)}"


def _check_times(settings: Join, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    for side, time in (("left", settings.left.time), ("right", settings.right.time)):
        known = columns.get(side)
        if not known or time in _RECORD_COLUMNS:
            continue
        if time not in known:
            yield f"{side}.time: there is no column '{time}'; {suggest(time, known)}"
        elif known[time].strip().lower() not in _TIMESTAMP_TYPES:
            yield f"{side}.time: '{time}' is {known[time]}; make it timestamp or timestamp_ms"


def _check_key_types(settings: Join, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    left, right = columns.get("left", {}), columns.get("right", {})
    for of_left, of_right in settings.on.items():
        types = left.get(of_left), right.get(of_right)
        if None not in types and types[0] != types[1]:
            what = f"'{of_left}' is {types[0]}, '{of_right}' {types[1]}"
            yield f"on: {what}; give both one type"


def _check_select(sql: str, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    for side, name in _SIDE_COLUMN_PATTERN.findall(sql):
        known = columns.get(side)
        if known and name not in known and name not in _RECORD_COLUMNS:
            yield f"{side} has no column '{name}'; {suggest(name, known)}"
