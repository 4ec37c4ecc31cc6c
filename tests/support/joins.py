"""What a join of two streams gives, in plain Python: no watermark, all rows at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

Row: TypeAlias = Mapping[str, Any]


class JoinRule(NamedTuple):
    """on: columns of left and what they equal. before, after: seconds."""

    key_columns: Mapping[str, str]
    left_time: str = "at"
    right_time: str = "at"
    before_s: float = 0.0
    after_s: float = 3600.0
    kind: str = "inner"


def join_rows(
    rule: JoinRule, left: Iterable[Row], right: Iterable[Row]
) -> Iterator[tuple[Row, Row | None]]:
    """Each row of left with each of right within the bounds, both inclusive; with kind left
    also those that stay alone. Rows without a key or a time are none."""
    kept: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in right:
        if (key := _get_key(row, list(rule.key_columns.values()), rule.right_time)) is not None:
            kept[key].append(row)
    for row in left:
        key = _get_key(row, list(rule.key_columns), rule.left_time)
        if key is None:
            continue
        pairs = [other for other in kept[key] if _is_within_bounds(rule, row, other)]
        yield from ((row, other) for other in pairs)
        if not pairs and rule.kind == "left":
            yield row, None


def _get_key(row: Row, columns: Sequence[str], time: str) -> tuple[Any, ...] | None:
    key = tuple(row.get(column) for column in columns)
    return None if None in key or row.get(time) is None else key


def _is_within_bounds(rule: JoinRule, left: Row, right: Row) -> bool:
    at: datetime = left[rule.left_time]
    since = right[rule.right_time] - at
    return bool(timedelta(seconds=-rule.before_s) <= since <= timedelta(seconds=rule.after_s))
