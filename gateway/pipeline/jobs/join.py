"""Jobs of type `join`: join two streams by key and time, such as orders with their payments.

The state has a row of left until the watermark is `after` beyond it, and a row of right until the
watermark is `before` beyond it. The watermark is the lower one of both sides, so an idle side holds
back all results. A record without a key (with a null in a column of `on`) joins nothing and is not
written, but its time counts: if a topic has no other records, send such heartbeats, because
otherwise the last rows are never written.

Salting: All rows of a hot key go to one task. With `salt`, the rows of left are distributed over
`buckets` tasks and those of right are copied to each, for hot keys only; so left should be the
larger side. The set of hot keys is part of the meaning of the state: a row of left finds its pairs
in its own bucket only, and a row of right that was stored before its key became hot is in the first
bucket only. So the set is determined once, before the first batch, and stored with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from gateway.pipeline.inputs.types import RECORD_COLUMN_TYPES, check_case
from gateway.pipeline.spark import F

from .sql import check_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from gateway.config.sections.pipelines import Join, Salt

JoinSide: TypeAlias = Literal["left", "right"]

_BUCKET_COLUMN = "_bucket"


def build(
    settings: Join, tables: Mapping[str, DataFrame], hot_keys: Sequence[str] = ()
) -> DataFrame:
    """Return the pairs of `left` and `right`, and with kind `left` the rows of left without a pair.

    Args:
        hot_keys: The texts (as of `build_key_text`) of the keys that are salted if `salt.keys` is
            `auto`. They must be the same for all runs with one checkpoint.
    """
    left = _drop_keyless(settings, "left", tables["left"])
    right = _drop_keyless(settings, "right", tables["right"])
    left_time, right_time = f"left.{settings.left.time}", f"right.{settings.right.time}"
    conditions = [f"left.{of_left} = right.{of_right}" for of_left, of_right in settings.on.items()]
    # From the bounds of the times, Spark derives when to drop rows.
    conditions += [
        f"{right_time} >= {left_time} - INTERVAL '{settings.before:.6f}' SECOND",
        f"{right_time} <= {left_time} + INTERVAL '{settings.after:.6f}' SECOND",
    ]
    salt = settings.salt
    if salt is not None and (salt.keys == "all" or select_hot_keys(salt, hot_keys)):
        left = left.withColumn(_BUCKET_COLUMN, _assign_bucket(settings, salt, hot_keys))
        right = right.withColumn(_BUCKET_COLUMN, _copy_to_buckets(settings, salt, hot_keys))
        conditions.append(f"left.{_BUCKET_COLUMN} = right.{_BUCKET_COLUMN}")
    condition = F.expr(" AND ".join(conditions))
    pairs = left.alias("left").join(right.alias("right"), condition, settings.kind)
    return pairs.select(*_select_columns(settings, tables))


def get_output_mode(settings: Join) -> Literal["append", "update"]:
    return "append"


def check_realtime(settings: Join) -> str | None:
    return "a join keeps state, which real-time mode does not support; use a trigger such as 0s"


def select_late(
    settings: Join, events: DataFrame, watermark: object, side: JoinSide = "left"
) -> DataFrame:
    """Return the rows of one side that Spark drops as late. Heartbeats are not among them.

    A row with exactly the time of the watermark is late.
    """
    time = settings.left.time if side == "left" else settings.right.time
    return _drop_keyless(settings, side, events).filter(F.col(time) <= F.lit(watermark))


def select_hot_keys(salt: Salt | None, detected: Sequence[str]) -> tuple[str, ...]:
    """Return the sorted texts of the keys that are salted; nothing if all keys are, or none."""
    if salt is None or salt.keys == "all":
        return ()
    return tuple(sorted(detected if salt.keys == "auto" else salt.keys))


def build_key_text(columns: Sequence[str]) -> Column:
    """Return a key as `salt.keys` has it: one column's text, or a JSON array of several."""
    texts = [F.col(column).cast("string") for column in columns]
    return texts[0] if len(texts) == 1 else F.to_json(F.array(*texts))


def check_job(settings: Join, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    sides = {"left": tuple(settings.on), "right": tuple(settings.on.values())}
    for side, keys in sides.items():
        yield from check_columns(f"on: {side}", keys, columns.get(side, {}))
    yield from _check_key_types(settings, columns)
    names = settings.select or [name for side in sides for name in columns.get(side, ())]
    if message := check_case(names):
        yield f"select: {message}"
    if settings.select or len(columns) == len(sides):
        yield from check_columns("to.key", settings.to.key, names)


def _drop_keyless(settings: Join, side: JoinSide, table: DataFrame) -> DataFrame:
    """Return the rows with a key and a time, without heartbeats.

    The filter must be above the watermark, so that the times of heartbeats count. If Spark pushes
    it below, the last rows of a stream are never written (4,977 of 500,000 orders in a trial).
    Spark also infers such filters (`IS NOT NULL`) from the condition of an inner join. It pushes
    nothing through a filter that is not deterministic. So the condition has a second part that is
    not deterministic, never true, and not evaluated if the first part is true.
    """
    keys, time = (
        (settings.on.keys(), settings.left.time)
        if side == "left"
        else (settings.on.values(), settings.right.time)
    )
    has_key = " AND ".join(f"{column} IS NOT NULL" for column in (*keys, time))
    return table.filter(F.expr(has_key) | (F.spark_partition_id() < 0))


def _assign_bucket(settings: Join, salt: Salt, hot_keys: Sequence[str]) -> Column:
    """Return the bucket of a row of left, by its offset, so that a repeated batch has the same."""
    bucket = F.pmod(F.xxhash64("_partition", "_offset"), F.lit(salt.buckets)).cast("int")
    return F.when(_is_hot(salt, list(settings.on), hot_keys), bucket).otherwise(F.lit(0))


def _copy_to_buckets(settings: Join, salt: Salt, hot_keys: Sequence[str]) -> Column:
    """Return the buckets of a row of right, one row for each: all if its key is hot."""
    all_buckets = F.array(*(F.lit(bucket) for bucket in range(salt.buckets)))
    first_bucket = F.array(F.lit(0))
    is_hot = _is_hot(salt, list(settings.on.values()), hot_keys)
    return F.explode(F.when(is_hot, all_buckets).otherwise(first_bucket))


def _is_hot(salt: Salt, columns: Sequence[str], hot_keys: Sequence[str]) -> Column:
    if salt.keys == "all":
        return F.lit(True)
    return build_key_text(columns).isin(*select_hot_keys(salt, hot_keys))


def _select_columns(settings: Join, tables: Mapping[str, DataFrame]) -> list[Column]:
    """Return the columns of the result: those of `select`, or all, of left where both have one."""
    if settings.select:
        return [F.expr(sql).alias(column) for column, sql in settings.select.items()]
    left, right = (
        [column for column in tables[side].columns if column not in RECORD_COLUMN_TYPES]
        for side in ("left", "right")
    )
    return [
        *(F.col(f"left.{column}") for column in left),
        *(F.col(f"right.{column}") for column in right if column not in left),
    ]


def _check_key_types(settings: Join, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    left, right = columns.get("left", {}), columns.get("right", {})
    for of_left, of_right in settings.on.items():
        types = left.get(of_left), right.get(of_right)
        if None not in types and types[0] != types[1]:
            yield (
                f"on: '{of_left}' is {types[0]}, '{of_right}' {types[1]}; give both the same type"
            )
